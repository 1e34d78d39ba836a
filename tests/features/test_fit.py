"""`fit`, `describe`, and the expressions of `FeatureStatistics`, beside NumPy and Polars."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.expr.own.buckets import Buckets
from arrowflow.features.distinct import Counts, Distinct
from arrowflow.features.fit import asked_for, everything
from arrowflow.features.parts import add_part, batch_rows, part_of, part_schema
from arrowflow.features.quantiles import BLOCK_ROWS, Quantiles
from tests.effort import scaled
from tests.ops.tables import refused

ROWS = 150_000  # two blocks of numbers, also without nulls: they are merged
GAMMA = np.random.default_rng(1).gamma(2.0, 1.0, ROWS)
TABLE = pl.DataFrame(
    {
        "price": pl.Series(GAMMA).set(pl.Series(np.arange(ROWS) % 10 == 3), None),
        "qty": pl.Series(np.arange(ROWS) % 50, dtype=pl.Int16),
        "tax": pl.Series(GAMMA.astype(np.float32)).set(pl.Series(np.arange(ROWS) % 7 == 0), math.nan),
        "brand": pl.Series([f"b{number * number % 23}" for number in range(ROWS)]),
    }
)
EVERYTHING: dict[str, Any] = {
    "mean": ["price"],
    "min_max": ["tax"],
    "quantiles": {"price": 16, "qty": 5},
    "vocabulary": {"brand": 4, "qty": 10},
}


@pytest.fixture(scope="module")
def stats() -> af.FeatureStatistics:
    return af.from_arrow(TABLE).fit(**EVERYTHING)


def test_figures_are_those_of_polars(stats: af.FeatureStatistics) -> None:
    price, tax = TABLE["price"], TABLE["tax"].fill_nan(None)
    assert stats.mean("price") == pytest.approx(price.mean(), rel=1e-12)
    assert stats.std("price") == pytest.approx(price.std(), rel=1e-12)
    assert stats.missing("price") == price.null_count() and stats.missing("tax") == tax.null_count()
    assert stats.min_max("tax") == (tax.min(), tax.max())
    most = TABLE["brand"].value_counts().sort("count", "brand", descending=[True, False])["brand"].head(4)
    assert stats.vocabulary("brand") == most.to_list()
    assert stats.vocabulary("qty") == list(range(10))


def test_boundaries_are_near_the_quantiles(stats: af.FeatureStatistics) -> None:
    values = np.sort(TABLE["price"].drop_nulls().to_numpy())
    ranks = np.searchsorted(values, stats.boundaries("price")) / len(values)
    np.testing.assert_allclose(ranks, np.arange(1, 16) / 16, atol=0.001)
    qty = np.searchsorted(np.arange(50), stats.boundaries("qty"))
    np.testing.assert_allclose(qty, [10, 20, 30, 40], atol=1)


def test_expressions_are_those_of_polars(stats: af.FeatureStatistics) -> None:
    exprs = {
        "standard": stats.standardize("price"),
        "scaled": stats.rescale("tax"),
        "imputed": stats.impute("price"),
        "bucket": stats.bucketize("price"),
        "index": stats.index("brand"),
        "number": stats.index("qty"),
        "one_hot": stats.one_hot("brand"),
    }
    made = af.from_arrow(TABLE).select(**exprs).to_table()
    found = pl.DataFrame(made)
    assert made.schema.field("one_hot").type == pa.list_(pa.float32(), 4)
    price, words = TABLE["price"], stats.vocabulary("brand")
    values = price.to_numpy()  # null is NaN
    mean = np.nanmean(values)
    np.testing.assert_allclose(found["standard"].to_numpy(), (values - mean) / np.nanstd(values, ddof=1))
    np.testing.assert_allclose(found["imputed"].to_numpy(), np.where(np.isnan(values), mean, values))
    tax = TABLE["tax"].to_numpy()
    np.testing.assert_allclose(
        found["scaled"].to_numpy(),
        (tax - np.nanmin(tax)) / (np.nanmax(tax) - np.nanmin(tax)),
        rtol=1e-5,
        atol=1e-6,
    )
    buckets = np.searchsorted(stats.boundaries("price"), price.drop_nulls().to_numpy(), side="right")
    assert found["bucket"].drop_nulls().to_list() == buckets.tolist()
    assert found["bucket"].null_count() == price.null_count()
    numbers = [words.index(word) + 1 if word in words else 0 for word in TABLE["brand"]]
    assert found["index"].to_list() == numbers
    assert found["number"].to_list() == [value + 1 if value < 10 else 0 for value in TABLE["qty"]]
    assert found["one_hot"].to_list() == [
        [float(place == number) for place in range(1, 5)] for number in numbers
    ]


@pytest.mark.parametrize("type", [pl.Int8, pl.Int64, pl.UInt64, pl.Float32, pl.Float64, pl.Decimal(9, 2)])
@pytest.mark.parametrize("buckets", [5, 300])
def test_buckets_of_other_types(type: Any, buckets: int) -> None:
    """Columns of other types than the fitted one are compared with its boundaries, in Polars, too."""
    stats = af.range(-500, 10_000).fit(quantiles={"id": buckets})
    boundaries = stats.boundaries("id")
    table = pl.DataFrame({"id": pl.Series([0, None, 1, 34, 127], dtype=type)})
    found = af.from_arrow(table).skip(1).select(bucket=stats.bucketize("id")).to_table()["bucket"]
    expected = np.searchsorted(boundaries, [0, 1, 34, 127], side="right").tolist()
    assert found.type == pa.int32() and found.to_pylist() == [None, *expected[1:]]
    assert table.select(stats.bucketize("id"))["id"].to_list() == [expected[0], None, *expected[1:]]
    if table["id"].dtype.is_float():
        last = table.with_columns(pl.lit(math.nan, dtype=type).alias("id")).select(stats.bucketize("id"))
        assert last["id"].to_list() == [len(boundaries)] * 5


@pytest.mark.parametrize("size", [3, 100])
def test_buckets_of_several_blocks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arrowflow.expr.own.buckets._BLOCK_BYTES", 1000)
    values = np.random.default_rng(size).integers(0, 1000, 2500)
    boundaries = np.linspace(1, 999, size).astype(np.int64)
    found = Buckets.of(0, pl.Series(boundaries), pa.int64())(pa.array(values))
    assert found.to_pylist() == np.searchsorted(boundaries, values, side="right").tolist()


def test_nothing_depends_on_how_rows_are_cut_or_on_threads(
    stats: af.FeatureStatistics, tmp_path: Path
) -> None:
    af.from_arrow(TABLE).write_parquet(tmp_path / "data", shard_rows=40_000, row_group_rows=7_001)
    rows = af.read_parquet(str(tmp_path / "data/*.parquet"))
    for budget in (1, 2):
        found = rows.with_options(af.Options(cpu_budget=budget)).fit(**EVERYTHING)
        assert found.to_json() == stats.to_json()
    assert rows.shuffle(1_000, seed=1).fit(**EVERYTHING).vocabulary("brand") == stats.vocabulary("brand")


def test_a_part_holds_what_was_counted() -> None:
    """Counted in one call and added, batches give what the columns give that count them one after the other."""
    schema, types = af.from_arrow(TABLE).schema, [pa.float64(), pa.int16(), pa.float32(), pa.string()]
    arrays = [TABLE[name].to_arrow().cast(type) for name, type in zip(schema.names, types, strict=True)]
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
    for columns in (asked_for(schema, **EVERYTHING), everything(schema)):
        expected = {name: column.without_rows() for name, column in columns.items()}
        rows, size = 0, batch_rows(columns)
        for start in range(0, ROWS, size):
            part = part_of(whole.slice(start, size), columns=columns)
            assert part.schema == part_schema(columns, schema)
            rows += add_part(columns, part)
        for start in range(0, ROWS, BLOCK_ROWS):
            for name, column in expected.items():
                values = whole.slice(start, BLOCK_ROWS).column(name)
                column.add(values)
                if column.counts is not None:
                    counted = pl.Series("value", values).drop_nulls().value_counts(name="count")
                    column.counts.merge(Counts(name, pending=[counted]))
        assert rows == ROWS
        assert af.FeatureStatistics(columns).to_json() == af.FeatureStatistics(expected).to_json()
        distinct = [
            [each.distinct and each.distinct.count for each in found.values()]
            for found in (columns, expected)
        ]
        assert distinct[0] == distinct[1]


@pytest.mark.parametrize("count", [999, 1_000, 1_001, 5_000])
def test_places_are_those_of_the_vocabulary_however_long_it_is(count: int) -> None:
    """Whole numbers that come most often first are in no order. Polars computes what is more than the function alone."""
    numbers = np.random.default_rng(0).permutation(count) * 3
    rows = af.from_numpy({"x": np.repeat(numbers, np.arange(count, 0, -1) % 7 + 1)})
    stats = rows.fit(vocabulary={"x": count})
    places = {word: place for place, word in enumerate(stats.vocabulary("x"), 1)}
    wanted = [*numbers[:50].tolist(), 1]
    frame = pl.DataFrame({"x": wanted})
    expected = [places.get(word, 0) for word in wanted]
    made = af.from_arrow(frame).select(
        y=stats.index("x"), more=stats.index("x") + 0, flags=stats.one_hot("x")
    )
    table = made.to_table()
    assert table["y"].to_pylist() == table["more"].to_pylist() == expected
    flags = [row.index(1.0) + 1 if any(row) else 0 for row in table["flags"].to_pylist()]
    assert flags == expected == frame.select(y=stats.index("x"))["y"].to_list()


def test_a_vocabulary_of_large_whole_numbers() -> None:
    column = pa.array([2**63 + 1, 2**63 + 1, 1, 2**64 - 1], pa.uint64())
    rows = af.from_arrow(pa.table({"x": column}))
    stats = rows.fit(vocabulary={"x": 2})
    table = rows.select(y=stats.index("x"), more=stats.index("x") + 0).to_table()
    assert table["y"].to_pylist() == table["more"].to_pylist() == [1, 1, 2, 0]


def test_a_filter_and_a_split_are_honoured() -> None:
    train, validation = af.range(10_000).split([0.8, 0.2], seed=0)
    for part in (train, validation, train.filter(pl.col("id") > 5_000)):
        ids = part.to_table()["id"].to_numpy()
        found = part.fit(min_max=["id"])
        assert found.mean("id") == pytest.approx(ids.mean()) and found.min_max("id") == (ids.min(), ids.max())


def test_parts_are_merged(stats: af.FeatureStatistics) -> None:
    parts = [af.from_arrow(TABLE.slice(start, 50_000)).fit(**EVERYTHING) for start in range(0, ROWS, 50_000)]
    merged = parts[0].merge(*parts[1:])
    assert merged.mean("price") == pytest.approx(stats.mean("price"), rel=1e-12)
    assert merged.std("price") == pytest.approx(stats.std("price"), rel=1e-12)
    assert merged.vocabulary("brand") == stats.vocabulary("brand")
    assert merged.min_max("tax") == stats.min_max("tax")
    values = np.sort(TABLE["price"].drop_nulls().to_numpy())
    ranks = np.searchsorted(values, merged.boundaries("price")) / len(values)
    np.testing.assert_allclose(ranks, np.arange(1, 16) / 16, atol=0.002)
    other = af.from_arrow(TABLE).fit(mean=["price"])
    refused(af.PlanError, lambda: other.merge(parts[0]), "merge", "quantiles")


def test_what_does_not_fit_together_is_not_merged() -> None:
    texts = af.from_numpy({"x": ["a", "1"]}).fit(vocabulary={"x": 5})
    numbers = af.from_numpy({"x": [1, 2]}).fit(vocabulary={"x": 5})
    none = af.from_arrow(pa.table({"x": pa.nulls(3, pa.string())})).fit(vocabulary={"x": 5})
    more = af.from_numpy({"x": ["a"]}).fit(vocabulary={"x": 6})
    refused(
        af.PlanError, lambda: texts.merge(numbers), "a vocabulary of texts of column 'x', got one of numbers"
    )
    refused(af.PlanError, lambda: none.merge(texts, numbers), "of texts", "of numbers")
    refused(af.PlanError, lambda: texts.merge(more), "vocabulary of 5", "vocabulary of 6")
    refused(af.PlanError, lambda: texts.merge(5), "expected FeatureStatistics", "got 5")  # type: ignore[arg-type]
    assert none.merge(numbers).vocabulary("x") == [1, 2] and texts.merge(none).vocabulary("x") == ["1", "a"]
    buckets = [af.from_numpy({"x": [1.0, 2.0]}).fit(quantiles={"x": size}) for size in (2, 3)]
    refused(af.PlanError, lambda: buckets[0].merge(buckets[1]), "quantiles of 2", "quantiles of 3")


@pytest.mark.parametrize("figure", [{"count": "a"}, {"missing": -1}, {"mean": "b"}, {"least": None}])
def test_figures_of_a_file_are_numbers(stats: af.FeatureStatistics, figure: dict[str, Any]) -> None:
    stored = stats.to_json()
    stored["columns"]["price"]["moments"] |= figure
    refused(af.DataError, lambda: af.FeatureStatistics.of_json(stored), "no statistics as fit() makes them")


@pytest.mark.parametrize("call", [lambda ds: ds.fit(mean=["id"]), af.Dataset.describe])
def test_an_endless_dataset_has_no_figures(call: Callable[[af.Dataset], Any]) -> None:
    refused(af.PlanError, lambda: call(af.range(3).repeat()), "endless", "take(n)")


def test_decimals_are_described_as_floats() -> None:
    prices = pa.array([Decimal("1.50"), None, Decimal("3.50")], pa.decimal128(9, 2))
    found = af.from_arrow(pa.table({"price": prices})).describe()["price"].to_list()
    assert found[:5] == [2.0, 1.0, 2.5, math.sqrt(2), 1.5] and found[8] == 3.5


def test_they_are_stored_and_pickled(stats: af.FeatureStatistics, tmp_path: Path) -> None:
    stats.save(tmp_path / "stats.json")
    loaded = af.FeatureStatistics.load(tmp_path / "stats.json")
    assert loaded.to_json() == stats.to_json() == pickle.loads(pickle.dumps(stats)).to_json()
    assert loaded.boundaries("price") == stats.boundaries("price")
    refused(af.SourceError, lambda: stats.save(tmp_path / "none/stats.json"), "no folder")
    refused(af.SourceError, lambda: af.FeatureStatistics.load(tmp_path / "none.json"), "none.json")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "columns": {"a": 1}}', "\ud800"]
)
def test_what_is_no_file_of_statistics(text: str, tmp_path: Path) -> None:
    (tmp_path / "stats.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises((af.DataError, af.SourceError)):
        af.FeatureStatistics.load(tmp_path / "stats.json")


@settings(max_examples=scaled(100))
@given(
    sizes=st.lists(st.sampled_from([0, 1, 5, 1_000, BLOCK_ROWS - 1, BLOCK_ROWS, 3 * BLOCK_ROWS]), max_size=4),
    seed=st.integers(0, 99),
)
def test_ranks_are_within_the_bound(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    draws: list[Callable[[int], Any]] = [
        rng.standard_normal,
        lambda size: rng.integers(0, 9, size).astype(float),
        lambda size: np.arange(size) * 1.0,
    ]
    parts = [draws[seed % 3](size) for size in (*sizes, 3)]
    sketch, other = Quantiles(), Quantiles()
    for number, part in enumerate(parts):
        (sketch if number % 2 else other).add(part)
    sketch.merge(other)
    values = np.sort(np.concatenate(parts))
    shares = np.array([0, 0.01, 0.25, 0.5, 0.75, 0.99, 1])
    found = sketch.at(shares)
    bound = 0 if len(values) < BLOCK_ROWS else (math.log2(len(values) / BLOCK_ROWS) + 1) / 4_096
    below = np.searchsorted(values, found, side="left") / len(values)
    upto = np.searchsorted(values, found, side="right") / len(values)
    assert (below - bound <= shares).all() and (upto + bound + 1 / len(values) >= shares).all()
    if len(values) < BLOCK_ROWS:
        assert found.tolist() == np.quantile(values, shares, method="lower").tolist()


def test_merges_of_a_level_take_the_even_and_the_odd_values_in_turn() -> None:
    """Else all of them would round to the same side, and their errors add up."""
    sketch = Quantiles()
    for blocks in range(1, 9):
        sketch.add(np.arange(BLOCK_ROWS, dtype=np.float64))
        assert sketch.odd == {level for level in range(3) if blocks >> (level + 1) & 1}


@pytest.mark.parametrize("count", [0, 7, 4_095, 30_000])
def test_distinct_values_are_counted_to_within_five_percent(count: int) -> None:
    distinct = Distinct()
    values = pl.Series([f"v{number}" for number in range(count)], dtype=pl.String)
    for part in itertools.chain([values], (values.slice(at, 9_999) for at in range(0, count, 9_999))):
        distinct.add(part.extend(pl.Series([None], dtype=pl.String)) if count == 7 else part)
    assert distinct.count == (count if count < 4_096 else pytest.approx(count, rel=0.05))


def test_describe_is_that_of_polars() -> None:
    table = TABLE.head(50_000).with_columns(pl.col("tax").fill_nan(None), flag=pl.col("qty") > 7)
    found = af.from_arrow(table).describe()
    expected = table.describe(interpolation="lower")
    assert found["statistic"].to_list() == [*expected["statistic"].to_list(), "distinct"]
    for name in ("price", "qty", "tax"):
        np.testing.assert_allclose(found[name][:-1].to_numpy(), expected[name].to_numpy(), rtol=1e-5)
    assert found["brand"].to_list() == [50_000.0, 0.0, *[None] * 7, 12.0]
    assert found["flag"].to_list()[:3] == [50_000.0, 0.0, None]
    assert af.from_arrow(table.clear()).describe()["price"].to_list()[:3] == [0.0, 0.0, None]


def test_columns_of_one_value_and_of_none() -> None:
    table = pa.table({"one": [5.0, 5.0, None], "none": pa.array([None] * 3, pa.float64())})
    stats = af.from_arrow(table).fit(mean=["one", "none"], min_max=["one"], quantiles={"one": 4})
    made = af.from_arrow(table).select(
        a=stats.standardize("one"), b=stats.rescale("one"), c=stats.bucketize("one")
    )
    assert made.to_table().to_pydict() == {"a": [0.0, 0.0, None], "b": [0.0, 0.0, None], "c": [1, 1, None]}
    refused(af.DataError, lambda: stats.standardize("none"), "'none'", "no value but nulls")
    empty = af.from_arrow(table).cast({"none": pa.string()}).fit(vocabulary={"none": 3})
    refused(af.DataError, lambda: empty.one_hot("none"), "'none'", "no vocabulary")
    assert af.FeatureStatistics.of_json(json.loads(json.dumps(stats.to_json()))).missing("none") == 3


@pytest.mark.parametrize("value", [0.1, 123.456, 1e15 + 0.3, 3.3e-300, 1_700_000_000_123_456_789])
@pytest.mark.parametrize("rows", [3, 1000, 65_537])
def test_the_mean_of_one_value_is_that_value(value: float, rows: int) -> None:
    ds = af.from_numpy({"x": np.full(rows, value)})
    stats = ds.fit(mean=["x"])
    assert (stats.mean("x"), stats.std("x")) == (float(value), 0.0)
    assert ds.select(stats.standardize("x")).to_table()["x"].unique().to_pylist() == [0.0]


@pytest.mark.parametrize("type", [pa.uint8(), pa.int8(), pa.uint32(), pa.float32()], ids=str)
def test_boundaries_below_all_values_of_a_type(type: pa.DataType) -> None:
    stats = af.from_numpy({"x": np.arange(-400, 100)}).fit(quantiles={"x": 400})
    found = af.from_arrow(pa.table({"x": pa.array([0, 1, 5], type)})).select(stats.bucketize("x")).to_table()
    assert found["x"].to_pylist() == np.searchsorted(stats.boundaries("x"), [0, 1, 5], "right").tolist()


@pytest.mark.parametrize("given", [{"mean": ["x"]}, {"min_max": ["x"]}, {"quantiles": {"x": 4}}], ids=list)
def test_numbers_that_no_figure_holds(given: dict[str, Any]) -> None:
    infinite, large = (af.from_numpy({"x": np.array(x)}) for x in ([1.0, math.inf], [1e200, -1e200]))
    refused(af.DataError, lambda: infinite.fit(**given), "fit: ", "'x'", "holds infinity")
    refused(af.DataError, lambda: large.fit(**given), "fit: ", "'x'", "sum of their squares is no float64")


def test_describe_of_odd_columns() -> None:
    table = pa.table(
        {
            "statistic": [1.0, math.nan],
            "decimal": pa.array([Decimal("1.5"), None], pa.decimal256(40, 2)),
            "interval": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
        }
    )
    found = af.from_arrow(table).describe()
    assert found.columns == ["statistic_", *table.column_names]
    counted = found.filter(pl.col("statistic_").is_in(["count", "null_count", "distinct"]))
    assert counted.drop("statistic_").rows() == [(1, 1, 1), (1, 1, 1), (1, None, None)]


def test_a_vocabulary_without_words() -> None:
    for type in pa.int64(), pa.string():
        stats = af.from_arrow(pa.table({"x": pa.nulls(2, type)})).fit(vocabulary={"x": 5})
        ds = af.from_arrow(pa.table({"x": pa.array([None, 3]).cast(type)}))
        assert ds.select(stats.index("x")).to_table()["x"].to_pylist() == [0, 0]
        first, second = ds.select(stats.index("x", oov=4)).to_table()["x"].to_pylist()
        assert first == 0 and 1 <= second <= 4


def test_figures_are_shown_a_line_a_column() -> None:
    table = pa.table(
        {"price": [3.0, None, 9.0], "brand": ["ab", "cd", "ab"], "none": pa.nulls(3, pa.int64())}
    )
    stats = af.from_arrow(table).fit(mean=["price"], quantiles={"none": 4}, vocabulary={"brand": 9})
    assert repr(stats).splitlines() == [
        "FeatureStatistics of 3 columns",
        "  price: 2 values, 1 missing, mean 6, std 4.243, min 3, max 9",
        "  none: 0 values, 3 missing, 4 buckets",
        "  brand: 3 values, 0 missing, vocabulary of 2: 'ab', 'cd'",
    ]
    wide = af.from_numpy({f"x{number}": np.array([number]) for number in range(12)})
    lines = repr(wide.fit(mean=wide.schema.names)).splitlines()
    assert lines[1] == "  x0: 1 value, 0 missing, mean 0, min 0, max 0"
    assert len(lines) == 12 and lines[-1] == "  … 2 more"
    words = af.from_arrow(pa.table({"word": list("abcdef")})).fit(vocabulary={"word": 5})
    assert repr(words).endswith("vocabulary of 5: 'a', 'b', 'c', …")


def test_what_cannot_be_fitted() -> None:
    ds = af.from_arrow(TABLE)
    refused(af.PlanError, lambda: ds.fit(), "fit", "at least one")
    refused(af.PlanError, lambda: ds.fit(mean=["pirce"]), "fit", "'pirce'", "did you mean 'price'")
    refused(af.PlanError, lambda: ds.fit(mean="price"), "fit", "list of names")
    refused(af.SchemaError, lambda: ds.fit(mean=["brand"]), "fit", "'brand'", "numbers")
    refused(af.SchemaError, lambda: ds.fit(vocabulary={"price": 10}), "fit", "'price'", "quantiles=")
    refused(af.PlanError, lambda: ds.fit(quantiles={"price": 1}), "fit", "'price'", "from 2 on")
    refused(af.PlanError, lambda: ds.fit(mean=3), "fit", "list of names")  # type: ignore[arg-type]
    names: Any = ["brand"]
    refused(af.PlanError, lambda: ds.fit(quantiles=names), "fit: quantiles is a mapping")
    refused(af.PlanError, lambda: ds.fit(vocabulary=names), "fit: vocabulary is a mapping")
    refused(af.PlanError, lambda: ds.fit(vocabulary={"brand": True}), "fit", "'brand'")
    refused(af.DataError, lambda: ds.filter(pl.col("qty") > 99).fit(mean=["price"]), "fit", "no rows")
    infinite: npt.NDArray[np.float64] = np.array([1.0, math.inf, -math.inf])
    refused(af.DataError, lambda: af.from_numpy({"x": infinite}).fit(mean=["x"]), "'x'", "infinity")
    stats = ds.fit(mean=["price"])
    refused(af.PlanError, lambda: stats.standardize("pirce"), "'pirce'", "did you mean 'price'")
    refused(af.PlanError, lambda: stats.bucketize("price"), "quantiles")
    refused(af.PlanError, lambda: stats.index("price"), "vocabulary")


def test_a_vocabulary_of_a_dictionary() -> None:
    words = pa.array(["b", "a", None, "b"]).dictionary_encode()
    ds = af.from_arrow(pa.table({"word": words}))
    stats = ds.fit(vocabulary={"word": 9})
    assert stats.merge(stats).vocabulary("word") == stats.vocabulary("word") == ["b", "a"]
    assert ds.select(stats.index("word")).to_table()["word"].to_pylist() == [1, 2, 0, 1]


def test_a_long_vocabulary(tmp_path: Path) -> None:
    words = pl.Series([f"w{number % 9_000}" for number in range(20_000)])
    ds = af.from_arrow(pl.DataFrame({"word": words}))
    stats = ds.fit(vocabulary={"word": 8_000})
    places = {word: place for place, word in enumerate(stats.vocabulary("word"), 1)}
    indexed = ds.with_columns(place=stats.index("word"))
    assert indexed.to_table()["place"].to_pylist() == [places.get(word, 0) for word in words]
    assert pickle.loads(pickle.dumps(indexed)).cache(str(tmp_path / "cache")).to_table().num_rows == len(
        words
    )


def test_a_vocabulary_has_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arrowflow.features.distinct.MOST_VALUES", 20)
    refused(
        af.DataError,
        lambda: af.range(100).fit(vocabulary={"id": 5}).vocabulary("id"),
        "'id'",
        "more than 20 different",
    )
