"""Codes that a terminal obeys do not come out of names of columns and messages of functions."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af

CODES = "\x1b[31mred\x07\u202eback\x9b"


def named() -> af.Dataset:
    return af.from_arrow(pa.table({CODES: [1, 2, 3]}))


def raises(batch: Any) -> Any:
    raise ValueError(CODES)


def check(text: str) -> None:
    assert not set(CODES[:1] + "\x07\u202e\x9b") & set(text)
    assert "\\x1b[31mred\\x07\\u202eback\\x9b" in text


def test_plans_and_reports() -> None:
    ds = named().filter(pl.col(CODES) > 1).select(CODES)
    check(repr(ds))
    _ = ds.schema
    check(repr(ds))
    check(ds.explain())
    assert ds.explain().count("\n") > 3
    mapped = named().map(raises)
    with iter(mapped) as iterator, pytest.raises(af.FunctionError) as found:
        next(iterator)
    check(str(found.value))
    assert isinstance(found.value.__cause__, ValueError)


def test_copies_of_columns() -> None:
    for null in ("error", "mask"):
        loader = named().batch(2, mask=CODES + "mask", pad_remainder=True).to_numpy(null=null)
        check(loader.explain(copies=True))


def test_errors_of_names() -> None:
    with pytest.raises(af.PlanError) as found:
        named().select(CODES + "x")
    check(str(found.value))
