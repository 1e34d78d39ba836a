"""The loaders, and how a test reads what they deliver."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.loaders.base import Loader

NEEDS = {"to_torch": "torch", "to_jax": "jax"}
LOADERS = ("to_numpy", "to_dlpack", "to_torch", "to_jax", "to_polars")
ARRAYS = tuple(name for name in LOADERS if name != "to_polars")


def installed(names: tuple[str, ...]) -> list[Any]:
    """Returns the names as parameters, skipped with a reason where a package is missing."""
    return [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None,
                reason=f"{NEEDS.get(name)} is not installed",
            ),
        )
        for name in names
    ]


def load(dataset: af.Dataset, name: str, **asked: Any) -> Loader[Any]:
    """Returns the loader of that name."""
    method: Callable[..., Loader[Any]] = getattr(dataset, name)
    return method(**asked)


def plain(value: Any) -> Any:
    """Returns what a framework holds as lists of Python values; the parts of ragged lists behind each other."""
    if isinstance(value, pl.DataFrame):
        return value.to_dict(as_series=False)
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    if getattr(value, "is_nested", False):
        return [plain(value.values()), plain(value.offsets())]
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        value = value.float()
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    return array.tolist()


def dtype_of(value: Any) -> str:
    """Returns the name of a dtype, the same in all frameworks."""
    return str(value.dtype).removeprefix("torch.")


def address(array: Any) -> int:
    """Returns where the values of an array or of a tensor lie."""
    return int(np.asarray(array).__array_interface__["data"][0])


def memory(rows: pa.RecordBatch) -> bytes:
    """Returns the bytes of all buffers."""
    return b"".join(bytes(buffer) for column in rows.columns for buffer in column.buffers() if buffer)
