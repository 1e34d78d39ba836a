"""Long constants are lifted out of the JSON forms of expressions: no tree holds them, and nothing else changes."""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import pickle
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.expr import parse_expression
from arrowflow.expr.parse import polars_tree
from arrowflow.expr.parse.lifted import Constant, Text, dumps, lifted, like, loads, pieces, whole
from tests.ops.tables import rows_of

KEYS = list(range(0, 8_000, 2))
LOOKS_LIKE_A_KEY = b"\xa6Series\xc5\x10\x00\xff\xff\xff\xff"
x = pl.col("row")
LONG: dict[str, pl.Expr] = {
    "is_in": x.is_in(KEYS),
    "a series": x.is_in(pl.Series(KEYS).implode()),
    "texts": x.cast(pl.String).is_in([str(key) for key in KEYS]),
    "two lists": x.replace_strict(KEYS, [key + 1 for key in KEYS], default=-1),
    "one list twice": x.replace_strict(KEYS, KEYS, default=-1),
    "a mapping": x.replace_strict({key: f"{key}" for key in KEYS}, default="none"),
    "among others": (x + 0.1).is_in([0.5])
    | x.is_in(KEYS)
    | pl.lit('":[255,255,255,255,').eq(x.cast(pl.String)),
    "bytes that look like keys": x.cast(pl.String)
    .cast(pl.Binary)
    .is_in([LOOKS_LIKE_A_KEY + str(key).encode() for key in KEYS]),
    "a long value beside": x.is_in(KEYS) & (pl.lit(LOOKS_LIKE_A_KEY + b"x" * 100) != pl.lit(b"")),
    "a choice": pl.when(x.is_in(KEYS)).then(1).otherwise(x) + 1,
}


def test_a_tree_is_spelled_as_polars_spells_it() -> None:
    column = pl.col('näme "q" \\ 日本')
    for expr in (
        column.cast(pl.Float32) * (1 - column),
        column >= datetime.date(1995, 1, 1),
        column.is_in([1, 2]),
    ):
        text = polars_tree.serialise(expr)
        assert dumps(loads(text)) == text


@pytest.mark.parametrize("name", LONG)
def test_the_form_is_short_and_can_be_read_again(name: str) -> None:
    given = LONG[name].meta.serialize(format="json")
    text = polars_tree.serialise(LONG[name])
    assert isinstance(text, Text) and 2000 > len(text) < len(given) / 20
    assert whole(text) == given == "".join(pieces(text)) == whole(lifted(given))
    again = dumps(loads(text))
    assert isinstance(again, Text) and json.loads(whole(again)) == json.loads(given)
    part = polars_tree.deserialise(again)
    # Polars may write a series that it has read in other words, which have to be those of the whole form.
    rewritten = pl.Expr.deserialize(io.StringIO(given), format="json").meta.serialize(format="json")
    assert part is not None and json.loads(part.meta.serialize(format="json")) == json.loads(rewritten)
    assert polars_tree.serialise(LONG[name]) == text and dumps({"a": 1}) == '{"a":1}'
    assert like(text, "x") == "x" and not isinstance(like("y", "x"), Text)


@pytest.mark.parametrize("name", LONG)
def test_the_digest_is_that_of_the_whole_form(name: str) -> None:
    """So states that name it go on."""
    given = parse_expression(LONG[name], operator="test")
    whole_form = LONG[name].meta.serialize(format="json")
    if hasattr(LONG[name], "otherwise"):
        whole_form = LONG[name].otherwise(None).meta.serialize(format="json")  # type: ignore[attr-defined]
    assert given.digest() == f"polars:{hashlib.sha256(whole_form.encode()).hexdigest()[:32]}"
    other = pickle.loads(pickle.dumps(given))
    assert other == given and hash(other) == hash(given) and other.tree() == given.tree()


@pytest.mark.parametrize("name", LONG)
def test_values_are_those_of_polars(name: str) -> None:
    frame = pl.DataFrame({"row": range(5000)})
    expected = frame.select(y=LONG[name])["y"]
    found = af.from_arrow(frame).with_columns(y=LONG[name])
    assert rows_of(found, "y") == expected.to_list()
    schema = found.schema
    assert schema is not None and schema.field("y").type == found.to_table().schema.field("y").type


def test_the_binary_form_has_the_constants() -> None:
    """Polars needs twenty times as long to write them as JSON, and forty times to read that."""
    text = polars_tree.serialise(LONG["two lists"])
    assert isinstance(text, Text) and len(text.constants) == 2
    for constant in text.constants.values():
        assert constant.data == (
            constant.data if isinstance(constant.data, str) else bytes(json.loads(whole_of(constant)))
        )
    if pl.__version__ >= "2":
        assert all(isinstance(constant.data, bytes) for constant in text.constants.values())


def whole_of(constant: Constant) -> str:
    return "".join(constant.pieces())


def test_wrong_types_are_found_before_the_run() -> None:
    ds = af.from_arrow(pa.table({"row": ["a"]}))
    for wrong in (x.is_in(KEYS), x.replace_strict(KEYS, KEYS, default=-1) + "a"):
        with pytest.raises(af.PlanError, match="cannot evaluate"):
            ds.with_columns(y=wrong).schema  # noqa: B018


def test_another_list_is_another_expression() -> None:
    one, two = (parse_expression(x.is_in(keys), operator="test") for keys in (KEYS, [*KEYS[:-1], 1]))
    assert one != two and one.digest() != two.digest()
    values: Any = one.tree().args[1]  # type: ignore[union-attr]
    assert list(values.value) == KEYS


NUMBERS = pl.Series("key", KEYS)
TYPES: dict[str, pl.Series] = {
    "whole numbers": NUMBERS,
    "nulls": NUMBERS.shift(1).cast(pl.UInt16),
    "numbers": (NUMBERS / 3).cast(pl.Float32),
    "128 bits": NUMBERS.cast(pl.Int128),
    "booleans": pl.Series(KEYS * 4) % 3 == 0,
    "texts": NUMBERS.cast(pl.String) + " is longer than a view holds",
    "binaries": NUMBERS.cast(pl.String).shift(-1).cast(pl.Binary),
    "dates": NUMBERS.cast(pl.Date),
    "times": NUMBERS.cast(pl.Datetime("us", "Europe/Oslo")),
    "spans": NUMBERS.cast(pl.Duration("ms")),
    "decimals": NUMBERS.cast(pl.Decimal(20, 2)),
    "categories": NUMBERS.cast(pl.String).cast(pl.Categorical),
    "an enum": NUMBERS.cast(pl.String).cast(pl.Enum(list(map(str, KEYS)))),
    "lists": NUMBERS.reshape((-1, 2)).arr.to_list(),
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("form", ["series", "a list in a series", "a list"])
def test_a_constant_is_read_as_polars_reads_it(name: str, form: str) -> None:
    given = TYPES[name]
    literal = pl.lit(given.to_list() if form == "a list" else given.implode() if "in" in form else given)
    found = polars_tree.value_of(loads(polars_tree.serialise(literal)))
    expected = pl.select(literal).to_series()
    assert found is not None and found.dtype == expected.dtype
    assert found.to_list() == expected.to_list()
