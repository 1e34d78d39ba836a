"""Arguments that a `TypedDict` lists: help shows each with its usual value, and other names are refused."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import arrowflow as af

READERS = [
    getattr(af, f"read_{name}")
    for name in ("parquet", "ipc", "orc", "avro", "csv", "json", "text", "webdataset", "tfrecord")
]
LOADERS = [getattr(af.Dataset, f"to_{name}") for name in ("numpy", "dlpack", "torch", "torch_dataset", "jax")]


def usual(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


@pytest.mark.parametrize("function", [*READERS, *LOADERS], ids=lambda function: function.__name__)
def test_help_shows_each_argument_with_its_usual_value(function: Callable[..., Any]) -> None:
    shown = inspect.signature(function)
    assert shown.return_annotation != shown.empty
    assert all(each.kind is not each.VAR_KEYWORD for each in shown.parameters.values())
    assert all(each.annotation != shown.empty for each in shown.parameters.values() if each.name != "self")
    assert shown.empty not in usual(function).values()
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize(
    "function",
    [af.read_parquet, af.read_csv, af.read_tfrecord, *LOADERS],
    ids=lambda function: function.__name__,
)
def test_docstrings_tell_of_each_argument(function: Callable[..., Any]) -> None:
    told = inspect.getdoc(function) or ""
    assert [name for name in usual(function) if f"\n    {name}: " not in told] == []


@pytest.mark.parametrize("function", READERS, ids=lambda function: function.__name__)
def test_usual_values_are_those_of_read(function: Callable[..., Any]) -> None:
    name = function.__name__.removeprefix("read_")
    options = {name: value for name, value in usual(function).items() if name not in usual(af.read)}
    assert function("a", **usual(function)) == function("a") == af.read("a", format=name, **options)


def test_values_that_are_not_given() -> None:
    assert usual(af.read_csv)["quote_char"] == '"' and usual(af.read_csv)["block_bytes"] == 4 << 20
    assert usual(af.read_parquet)["partitioning"] == "auto" and usual(af.read_tfrecord)["raw"] is False
    assert usual(af.Dataset.to_torch)["null"] == "error" and usual(af.Dataset.to_torch)["pin_memory"] is False


def test_other_names_are_refused_with_the_nearest_ones() -> None:
    with pytest.raises(
        TypeError, match=r"read_csv\(\) has no argument 'delimeter'; did you mean 'delimiter'"
    ):
        af.read_csv("a", delimeter=";")  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match=r"read_json\(\) has no argument 'memory_map'; known arguments: paths"
    ):
        af.read_json("a", memory_map=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"to_torch\(\) has no argument 'devise'; did you mean 'device'"):
        af.range(3).to_torch(devise="cpu")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"no argument 'format'"):
        af.read_csv("a", format="json")  # type: ignore[call-arg]
