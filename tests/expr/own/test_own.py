"""Functions of the library's own: the values that XXH64 and Polars give, in any place of an expression."""

from __future__ import annotations

import hashlib
import itertools
import pickle
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.expr import parse_expression
from arrowflow.expr.own import places
from arrowflow.expr.own.function import FUNCTIONS, Function
from arrowflow.expr.own.hash_bucket import hashes
from tests.ops.tables import refused

HASHES = {  # by the package xxhash 3
    "": 0xEF46DB3751D8E999,
    "a": 0xD24EC4F1A98C6E5B,
    "abc": 0x44BC2CF5AD770999,
    "Málaga": 0xC3FA1FEDCB68F5E5,
    "12345678": 0xD2D02F08CF7CFD4A,
    "0123456789abcdef0123456789abcde": 0x1FDFC63FEBACFDE7,
    "0123456789abcdef0123456789abcdef": 0x642A94958E71E6C5,
    "x" * 100: 0x92F0DE5A88A3C094,
    "0123456789" * 1000: 0x4313472CD025FC68,
    0: 0x34C96ACDCADB1BBB,
    1: 0x9F29CB17A2A49995,
    -1: 0x85D136ADB773C6C9,
    255: 0x2AA06ADFE623603F,
    -(2**63): 0x3F425EACF01544E0,
    2**63 - 1: 0xFF70CC60366E770C,
}
TEXTS = [each for each in HASHES if isinstance(each, str)]
NUMBERS = [each for each in HASHES if isinstance(each, int)]


@pytest.mark.parametrize("type", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_hashes_of_texts_are_those_of_xxh64(type: pa.DataType) -> None:
    for start, repeated in itertools.product((0, 3), (1, 50)):  # of a few long texts and of many
        texts = TEXTS * repeated
        found = hashes(pa.array(texts, type)[start:])
        assert found.tolist() == [HASHES[text] for text in texts[start:]]
    assert hashes(pa.array([], type)).tolist() == []


@pytest.mark.parametrize("type", [pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.int64(), pa.uint64()])
def test_a_number_has_one_hash_in_all_types(type: pa.DataType) -> None:
    limits = np.iinfo(type.to_pandas_dtype())
    numbers = [number for number in NUMBERS if limits.min <= number <= limits.max]
    assert hashes(pa.array([0, *numbers], type)[1:]).tolist() == [HASHES[number] for number in numbers]


def test_buckets_in_any_place_of_an_expression() -> None:
    texts = [*TEXTS, None]
    table = pl.DataFrame({"text": texts, "word": pl.Series(texts, dtype=pl.Enum(TEXTS))})
    bucket = af.hash_bucket("text", 10)
    expected = [*(HASHES[text] % 10 for text in TEXTS), None]
    made = af.from_arrow(table).select(
        alone=bucket,
        word=af.hash_bucket("word", 10),
        more=bucket + 1,
        of=af.hash_bucket(pl.col("text").str.slice(0), 10),
        some=pl.when(bucket >= 0).then(bucket),
    )
    found = made.to_table().to_pydict()
    assert found.pop("more") == [None if each is None else each + 1 for each in expected]
    assert list(found.values()) == [expected] * 4
    assert made.schema.field("alone").type == pa.int64()
    assert table.select(bucket)["text"].to_list() == expected  # Polars itself
    kept = af.from_arrow(table).filter(bucket < 5).to_table()["text"].to_pylist()
    assert kept == [text for text in TEXTS if HASHES[text] % 10 < 5]


def test_the_name_is_the_identity_of_a_function() -> None:
    """Another Python pickles it in other bytes; a state or a cache that names it goes on all the same."""
    one, other = (parse_expression(af.hash_bucket("x", n), operator="select") for n in (10, 11))
    assert one == parse_expression(pickle.loads(pickle.dumps(one.source)), operator="select") != other
    assert one.digest() != other.digest()
    assert '"function":"arrowflow:hash_bucket:10"' in one.json()
    assert one.digest() == f"polars:{hashlib.sha256(one.json().encode()).hexdigest()[:32]}"


def test_other_functions_of_python_are_refused() -> None:
    def same(columns: Any, **_: Any) -> Any:
        return columns[0]

    expr = pl.map_batches(["x"], same, return_dtype=pl.Int64, is_elementwise=True)
    refused(af.PlanError, lambda: af.from_numpy({"x": [1]}).select(expr), "Python function")


def test_what_cannot_be_hashed() -> None:
    ds = af.from_numpy({"x": [0.5]})
    refused(af.PlanError, lambda: ds.select(af.hash_bucket("x", 3)).schema, "select", "double", "cast")
    refused(af.PlanError, lambda: ds.select(af.hash_bucket("x", 3) + 1).schema, "select", "double", "cast")
    for n in (0, 2**63, True):
        with pytest.raises(af.PlanError, match="number of buckets"):
            af.hash_bucket("x", n)


VALUES: dict[str, list[Any]] = {
    "texts": ["b", "a", None, "zz", "", "b"],
    "numbers": [7, -3, None, 0, 2**62, 7],
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("most", [0, 9])
def test_places_are_those_of_a_dictionary(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MOST_SHORT_BY_ARROW", most)
    values = VALUES[name]
    ds = af.from_arrow(pl.DataFrame({"x": [values[0], *values]})).skip(1)
    stats = af.from_arrow(pl.DataFrame({"x": values[:3]})).fit(vocabulary={"x": 9})
    words = stats.vocabulary("x")
    expected = [words.index(value) + 1 if value in words else 0 for value in values]
    made = ds.select(index=stats.index("x"), oov=stats.index("x", oov=5), one_hot=stats.one_hot("x"))
    found = made.to_table().to_pydict()
    assert found["index"] == expected
    assert found["one_hot"] == [[float(place == number) for number in (1, 2)] for place in expected]
    buckets = af.from_arrow(pl.DataFrame({"x": values})).select(af.hash_bucket("x", 5)).to_table()["x"]
    behind = [None if bucket is None else bucket + 3 for bucket in buckets.to_pylist()]
    assert found["oov"] == [place or other or 0 for place, other in zip(expected, behind, strict=True)]
    table = ds.to_table()
    assert pl.DataFrame(table).select(stats.index("x", oov=5))["x"].to_list() == found["oov"]


@pytest.mark.parametrize("type", [pl.Int8, pl.UInt64, pl.Int64])
def test_numbers_of_other_types_are_found(type: Any) -> None:
    stats = af.from_arrow(pl.DataFrame({"x": [-1, 300, 5]})).fit(vocabulary={"x": 9})
    column = pl.Series("x", [5, 44, 0, *([2**64 - 1] if type == pl.UInt64 else [])], dtype=type)
    found = af.from_arrow(pl.DataFrame({"x": column})).select(stats.index("x")).to_table()["x"].to_pylist()
    assert found == [stats.vocabulary("x").index(5) + 1] + [0] * (len(column) - 1)


def test_a_column_of_another_kind_than_its_vocabulary() -> None:
    stats = af.from_numpy({"x": ["a"]}).fit(vocabulary={"x": 9})
    refused(af.PlanError, lambda: af.range(3).select(stats.index("x").alias("y")), "unknown column")
    ds = af.from_numpy({"x": [1]})
    refused(af.PlanError, lambda: ds.select(stats.index("x")).schema, "select", "texts", "int64")
    refused(af.PlanError, lambda: stats.index("x", oov=-1), "number of places")


def test_plans_name_our_functions_wherever_they_stand() -> None:
    words = pa.table({"x": ["a", "b", "c", "b"], "y": [1.0, 2.0, 3.0, 4.0]})
    stats = af.from_arrow(words).fit(vocabulary={"x": 3}, quantiles={"y": 2})
    inner = af.hash_bucket(af.hash_bucket("x", 9).cast(pl.String), 7)
    plan = af.from_arrow(words).with_columns(
        a=pl.when(af.hash_bucket("x", 3) > 1).then(stats.bucketize("y")).otherwise(inner),
        b=stats.index("x", oov=2),
        c=stats.one_hot("x"),
        d=stats.index("x").is_in(list(range(5000))).alias("python_udf("),
    )
    text = plan.explain()
    assert (
        'a=pl: .when([(col("x").hash_bucket(3)) > (dyn int: 1)]).then(col("y").bucketize(…))'
        '.otherwise(col("x").hash_bucket(9).strict_cast(String).hash_bucket(7))'
    ) in text
    assert 'b=pl: col("x").index(…, 2)' in text and 'c=pl: col("x").one_hot(…)' in text
    assert 'd=pl: col("x").index(…).is_in(' in text
    assert "python_udf()" not in text and "python_udf([" not in text


@pytest.mark.parametrize("count", [100, places.MOST_SHORT_BY_ARROW + 1], ids=["few", "many"])
def test_a_vocabulary_inside_of_an_expression_is_taken_in_once(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"word {number}" for number in range(count)]
    made: list[int] = []
    of = places.Index.of

    def counted(*arguments: Any) -> places.Index:
        made.append(0)
        return of(*arguments)

    monkeypatch.setitem(FUNCTIONS, "index", counted)
    rows = np.random.default_rng(3).integers(0, count, 20_000)
    table = pa.table({"x": [words[row] for row in rows]})
    stats = af.from_arrow(pa.table({"x": words})).fit(vocabulary={"x": count})
    place = {word: number for number, word in enumerate(stats.vocabulary("x"), 1)}
    ds = af.from_arrow(table).with_options(af.Options(max_chunk_rows=1000, cpu_budget=1))
    found = ds.with_columns(p=stats.index("x").cast(pl.Int64) * 2).to_table()
    assert found["p"].to_pylist() == [2 * place[words[row]] for row in rows]
    assert len(made) <= 2, "once for the types and once for the rows"


def test_one_function_takes_other_words_and_other_types_as_they_come() -> None:
    made = Function("index:0")
    for words, values in [("ab", "bca"), ("ba", "bca"), ("bac", "bca"), ([7, 8], [8, 9, 7]), ("ba", "bca")]:
        found = made([pl.Series("x", list(values)), pl.Series([list(words)])])
        assert found.to_list() == [list(words).index(each) + 1 if each in words else 0 for each in values]
    numbers = pl.Series("x", [8, 7], pl.Int8)
    assert made([numbers, pl.Series([[7, 8]])]).to_list() == [2, 1]
    assert made([numbers.cast(pl.Int64), pl.Series([[7, 8]])]).to_list() == [2, 1]
