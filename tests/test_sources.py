"""Where datasets start: what each source takes, in which order and splits its rows come, and how it resumes."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.ops.sources import from_memory
from arrowflow.optimizer import lengthen_chunks
from arrowflow.testing import (
    assert_same_batches,
    assert_same_rows,
    batches_of,
    check_dataset,
    check_declared,
    check_epochs,
    check_resume,
    chunked,
    failing,
)
from tests.ops.tables import (
    ALL_TYPES,
    NUMBERS,
    OPERATORS,
    identity,
    ids,
    refused,
    rows_of,
    sizes,
    write_shards,
)

# ---------------------------------------------------------------------------------------------- range


@pytest.mark.parametrize(
    "bounds",
    [(0,), (5,), (-3,), (2, 9), (9, 2), (9, 2, -2), (0, 10, 3), (-5, 5, 4), (1 << 62, (1 << 62) + 3)],
    ids=str,
)
def test_range_counts_like_pythons(bounds: tuple[int, ...]) -> None:
    ds = af.range(*bounds)
    assert ids(ds) == list(range(*bounds))
    assert ds.num_rows == len(range(*bounds))


@pytest.mark.parametrize("bounds", [(0,), (9, 2, -2), (1 << 62, (1 << 62) + 3)], ids=str)
def test_range_keeps_the_contracts(bounds: tuple[int, ...]) -> None:
    check_dataset(lambda: af.range(*bounds).batch(2))


def test_range_resumes_between_its_splits() -> None:
    check_resume(lambda: af.range(200_000))
    assert sizes(af.range(200_000)) == [65_536, 65_536, 65_536, 3_392]


@pytest.mark.parametrize(
    "bounds",
    [
        (1.5,),
        ("3",),
        (0, None, 0),
        (0, 3, 0),
        (True,),
        (0, 3, 1.0),
        (1 << 63,),
        (0, 1 << 64),
        (-(1 << 63) - 1, 0),
    ],
    ids=str,
)
def test_range_refuses_what_is_no_range_of_int64(bounds: tuple[Any, ...]) -> None:
    refused(af.PlanError, lambda: af.range(*bounds), "range")


# ------------------------------------------------------------------------------------------ from_arrow

BATCH = NUMBERS.combine_chunks().to_batches()[0]


class Streams:
    """Anything with `__arrow_c_stream__`, asked anew for each epoch."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


KINDS: dict[str, Any] = {
    "a table": NUMBERS,
    "a table of several chunks": pa.concat_tables([NUMBERS.slice(0, 5), NUMBERS.slice(5)]),
    "a batch": BATCH,
    "batches": [BATCH.slice(0, 3), BATCH.slice(3, 0), BATCH.slice(3)],
    "a data frame": pl.from_arrow(NUMBERS),
    "a stream": Streams(NUMBERS),
    "a dataset of pyarrow": pyarrow.dataset.dataset(NUMBERS),
    "another dataset": af.from_arrow(NUMBERS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_from_arrow_takes_what_holds_or_streams_arrow(kind: str) -> None:
    ds = af.from_arrow(KINDS[kind])
    assert_same_rows(batches_of(ds), [BATCH])
    assert ds.schema.equals(NUMBERS.schema)
    if kind in {"a table", "a batch", "batches", "a data frame"}:  # they pickle with their data
        check_dataset(lambda: af.from_arrow(KINDS[kind]).batch(3))
    else:
        check_declared(ds)
        check_epochs(lambda: af.from_arrow(KINDS[kind]), differ=False)
        check_resume(lambda: af.from_arrow(KINDS[kind]).batch(3))


LISTS = [[1, 2], None, [], [3]]


@pytest.mark.parametrize("type", [pa.list_view(pa.int64()), pa.large_list_view(pa.int64())], ids=str)
def test_from_arrow_takes_lists_as_views(type: pa.DataType) -> None:
    table = pa.table({"row": range(4), "list": pa.array(LISTS, type)})
    for start in (0, 1):
        part = table.slice(start)
        for source in (part, part.to_reader()):
            found = af.from_arrow(source).to_table()
            found.validate(full=True)
            assert found.schema.field("list").type == pa.list_(pa.int64())
            assert found.column("list").to_pylist() == LISTS[start:]


def test_from_arrow_refuses_lists_as_views_inside() -> None:
    column = pa.array([{"a": [1]}], pa.struct([("a", pa.list_view(pa.int64()))]))
    with pytest.raises(af.SchemaError, match=r"from_arrow: column 'x': .*list_view inside.*cast it to lists"):
        af.from_arrow(pa.table({"x": column})).to_table()


def test_from_arrow_copies_nothing() -> None:
    (found,) = batches_of(af.from_arrow(NUMBERS.combine_chunks()))
    for mine, theirs in zip(found.columns, NUMBERS.combine_chunks().columns, strict=True):
        addresses = [[b and b.address for b in array.buffers()] for array in (mine, theirs.chunk(0))]
        assert addresses[0] == addresses[1]


def test_from_arrow_travels_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_memory, "MAX_CHUNK_ROWS", 4)
    assert sizes(af.from_arrow([BATCH, BATCH.slice(0, 5)])) == [4, 4, 4, 4, 1, 4, 1]
    check_dataset(lambda: af.from_arrow([BATCH, BATCH.slice(0, 5)]))


NOISY = pa.schema({"x": pa.int64(), "noise": pa.float64()})


def noisy(rows: pa.RecordBatch, random: np.random.Generator) -> pa.RecordBatch:
    return rows.append_column("noise", pa.array(random.random(rows.num_rows)))


def test_many_narrow_rows_travel_in_slices_of_twice_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_memory, "MAX_CHUNK_ROWS", 4)
    monkeypatch.setattr(lengthen_chunks, "MANY_ROWS", 24)
    monkeypatch.setattr(lengthen_chunks, "NARROW_BYTES", 16)
    narrow = pa.record_batch({"x": range(25), "y": range(25)})
    wide = narrow.append_column("z", pa.array(range(25)))
    texts = [pa.record_batch({"x": pa.array(values)}) for values in ([""], ["a" * 30] * 24)]
    few = [narrow.slice(0, 12), narrow.slice(12, 11)]
    assert sizes(af.from_arrow([narrow.slice(0, 12), narrow.slice(12)])) == [8, 4, 8, 5]
    made_wide = af.from_arrow(narrow).with_columns(z=pl.col("x") + 1)
    small = af.from_arrow(narrow).with_options(af.Options(ram_budget="100MiB"))
    for dataset in (af.from_arrow(wide), made_wide, small):
        assert sizes(dataset) == [4, 4, 4, 4, 4, 4, 1]
    assert sizes(af.from_arrow(texts)) == [1, 4, 4, 4, 4, 4, 4]
    assert sizes(af.from_arrow(few)) == [4, 4, 4, 4, 4, 3]

    def noised() -> af.Dataset:
        return af.from_arrow(narrow.select(["x"])).map(noisy, seed=1, schema=NOISY)

    check_dataset(lambda: af.from_arrow(narrow))
    check_dataset(noised, epochs_differ=True)
    found, iterator, rows = batches_of(noised()), iter(af.from_arrow(narrow)), []
    for least in (26, 24, 26):  # a state goes on in chunks of another size
        rows += next(iterator)["x"].to_pylist()
        state = iterator.state_dict()
        iterator.close()
        monkeypatch.setattr(lengthen_chunks, "MANY_ROWS", least)
        assert_same_rows(batches_of(noised()), found)
        iterator = iter(af.from_arrow(narrow))
        iterator.load_state_dict(state)
    assert rows + [row for batch in iterator for row in batch["x"].to_pylist()] == list(range(25))


def test_a_one_shot_reader_gives_one_epoch_and_no_state() -> None:
    def once() -> af.Dataset:
        return af.from_arrow(
            pa.RecordBatchReader.from_batches(BATCH.schema, [BATCH.slice(0, 9), BATCH.slice(9)])
        )

    ds = once()
    with iter(ds) as iterator:
        refused(af.StateError, iterator.state_dict, "from_arrow", "one-shot")
        assert_same_rows(list(iterator), [BATCH])
    refused(af.StateError, lambda: iter(once().batch(3)).load_state_dict({}), "one-shot")
    refused(af.SourceError, lambda: batches_of(ds), "from_arrow", "once")


def test_a_stream_that_breaks_off_is_an_error_behind_what_came() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield BATCH
        raise OSError("gone")

    ds = af.from_arrow(pa.RecordBatchReader.from_batches(BATCH.schema, broken()))
    with iter(ds) as iterator:
        assert next(iterator).num_rows == 17
        refused(af.SourceError, lambda: next(iterator), "from_arrow", "1 record batches", "gone")


def test_a_stream_goes_on_at_its_row_wherever_it_is_cut() -> None:
    class CutsAnew(Streams):
        rows = 4

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            self.rows = self.rows % 4 + 1
            batches = self.table.combine_chunks().to_batches(max_chunksize=self.rows)
            return pa.RecordBatchReader.from_batches(self.table.schema, batches).__arrow_c_stream__()

    check_resume(lambda: af.from_arrow(CutsAnew(NUMBERS)).batch(3))

    def turned(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.take(pa.array(range(batch.num_rows))[::-1])

    pieces = af.Options(max_chunk_rows=5)
    expected = batches_of(af.from_arrow(Streams(NUMBERS)).map(turned).batch(3).with_options(pieces))
    found = af.from_arrow(CutsAnew(NUMBERS)).map(turned).batch(3).with_options(pieces)
    assert_same_rows(batches_of(found), expected)
    check_resume(lambda: af.from_arrow(CutsAnew(NUMBERS)).map(turned).batch(3).with_options(pieces))


def test_a_stream_of_other_columns_than_before_is_an_error() -> None:
    class Changes:
        def __init__(self, *names: list[str]) -> None:
            self.names = iter(names)

        def __arrow_c_stream__(self, requested: object = None) -> object:
            return BATCH.select(next(self.names)).__arrow_c_stream__(requested)

    for names in (["x", "row"], ["row"], ["row", "x", "s"]):
        ds = af.from_arrow(Changes(["row", "x"], names))
        refused(af.SchemaError, ds.to_table, "from_arrow", "['row', 'x']", str(names))


def test_a_stream_that_can_be_read_once_says_what_to_do() -> None:
    class Once(Streams):
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            table, self.table = self.table, None
            return table.__arrow_c_stream__()

    ds = af.from_arrow(Once(NUMBERS))
    refused(af.SourceError, lambda: batches_of(ds), "from_arrow", "Once", "RecordBatchReader.from_stream")
    assert_same_rows(batches_of(af.from_arrow(pa.RecordBatchReader.from_stream(Streams(NUMBERS)))), [BATCH])


class Holds:
    """Anything with `__arrow_c_array__`."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self.array.__arrow_c_array__(requested_schema)


def test_from_arrow_takes_what_holds_one_array_of_structs() -> None:
    ds = af.from_arrow(Holds(BATCH))
    assert_same_rows(batches_of(ds), [BATCH])
    check_dataset(lambda: af.from_arrow(Holds(BATCH)).batch(4))
    assert ds.shuffle().num_rows == ds.num_rows
    assert af.from_arrow(pa.array([{"x": 1}, {"x": 2}])).to_table().to_pydict() == {"x": [1, 2]}
    refused(af.PlanError, lambda: af.from_arrow(pa.array([1, 2])), "from_arrow", "Int64Array", "non-struct")


def test_from_arrow_takes_a_scanner() -> None:
    scanner = pyarrow.dataset.dataset(NUMBERS).scanner(columns=["x"])
    check_epochs(lambda: af.from_arrow(scanner), differ=False)
    check_resume(lambda: af.from_arrow(scanner).batch(3))
    assert af.from_arrow(scanner).schema == pa.schema([NUMBERS.schema.field("x")])


@pytest.mark.parametrize(
    "source", [None, 3, "file.parquet", [], [1], {"x": [1]}, np.arange(3), [NUMBERS]], ids=repr
)
def test_from_arrow_refuses_what_is_no_arrow(source: Any) -> None:
    refused(af.PlanError, lambda: af.from_arrow(source), "from_arrow")


def test_from_arrow_refuses_batches_of_different_schemas() -> None:
    refused(af.SchemaError, lambda: af.from_arrow([BATCH, BATCH.select(["x"])]), "from_arrow", "batch 1")


class OfUser(pa.ExtensionType):
    """A type as users write them: it has no hash."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "arrowflow.tests.of_user")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Any:
        return cls()


def test_types_that_users_have_written_pass() -> None:
    column = pa.ExtensionArray.from_storage(OfUser(), pa.array(range(10)))
    ds = af.from_arrow(pa.record_batch({"x": column, "id": pa.array(range(10))}))
    more = ds.filter(pl.col("id") > 3).with_columns(y=pl.col("id") + 1).fill_null({"id": 0})
    for one in (more, more.select("x"), af.zip(more, ds.select("id").rename({"id": "z"})), more.shuffle(5)):
        assert one.schema.field("x").type == OfUser()
        assert one.to_table().schema.field("x").type == OfUser()
    assert next(iter(ds.batch(4).to_numpy(columns=["id"])))["id"].tolist() == [0, 1, 2, 3]
    refused(af.SchemaError, lambda: next(iter(ds.batch(4).to_numpy())), "'x'", "of_user")
    refused(af.PlanError, lambda: ds.filter(pl.col("x") > 3).schema, "'x'", "of_user", "cast")
    refused(af.PlanError, lambda: ds.stack(both=["x", "id"]).schema, "x: ", "of_user")


def test_columns_have_names_of_their_own() -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["x", "x"])
    refused(af.SchemaError, lambda: af.from_arrow(twice), "'x'", "rename")
    refused(af.SchemaError, lambda: af.from_arrow(pa.table({})), "at least one column")


# ------------------------------------------------------------------------------------------ from_numpy


def arrays() -> dict[str, Any]:
    return {
        "f": np.array([1.5, np.nan, -0.0]),
        "i": np.arange(3, dtype=">i4"),
        "strided": np.arange(6)[::2],
        "matrix": np.arange(6, dtype=np.float32).reshape(3, 2),
        "b": np.array([True, False, True]),
        "day": np.array(["2020-01-02", "NaT", "1960-01-01"], "M8[D]"),
        "ns": np.array(["2020-01-02", "NaT", "1960-01-01"], "M8[ns]"),
        "weeks": np.array(["2020-01-02", "NaT", "1970-01-01"], "M8[7D]"),
        "took": np.array([5, "NaT", -5], "m8[ms]"),
        "masked": np.ma.masked_array([1, 2, 3], [False, True, False]),
        "text": np.array(["a", "", "ä"]),
        "varying": np.array(["a", "", "ä"], np.dtypes.StringDType()),
        "objects": np.array([[1], None, [2, 3]], object),
    }


def test_from_numpy_maps_types() -> None:
    check_dataset(lambda: af.from_numpy(arrays()).batch(2))
    ds = af.from_numpy(arrays())
    assert dict(zip(ds.schema.names, map(str, ds.schema.types), strict=True)) == {
        "f": "double",
        "i": "int32",
        "strided": "int64",
        "matrix": "fixed_size_list<item: float>[2]",
        "b": "bool",
        "day": "date32[day]",
        "ns": "timestamp[ns]",
        "weeks": "date32[day]",
        "took": "duration[ms]",
        "masked": "int64",
        "text": "string",
        "varying": "string",
        "objects": "list<item: int64>",
    }
    table = ds.drop("f", "ns", "took").to_table()
    assert table.to_pydict() == {
        "i": [0, 1, 2],
        "strided": [0, 2, 4],
        "matrix": [[0, 1], [2, 3], [4, 5]],
        "b": [True, False, True],
        "day": [datetime.date(2020, 1, 2), None, datetime.date(1960, 1, 1)],
        "weeks": [datetime.date(2020, 1, 2), None, datetime.date(1970, 1, 1)],
        "masked": [1, None, 3],
        "text": ["a", "", "ä"],
        "varying": ["a", "", "ä"],
        "objects": [[1], None, [2, 3]],
    }


def test_from_numpy_copies_nothing_where_layouts_agree() -> None:
    values = np.arange(10.0)
    (batch,) = batches_of(af.from_numpy({"x": values}))
    assert batch.column("x").buffers()[1].address == values.__array_interface__["data"][0]


@pytest.mark.parametrize(
    "column",
    [
        np.float64(1),
        np.zeros(3, complex),
        np.array([object()] * 3),
        np.array([1, "x", None], object),
        np.array(["2020"] * 3, "M8[Y]"),
        np.array([1 << 40] * 3, "M8[D]"),
        np.zeros(3, [("a", int), ("b", int)]),
        np.arange(4),
    ],
)
def test_from_numpy_refuses_what_has_no_type_or_another_length(column: Any) -> None:
    refused(af.SchemaError, lambda: af.from_numpy({"ok": np.arange(3), "bad": column}), "bad")


@pytest.mark.parametrize("given", [None, {}, np.arange(3), [("x", np.arange(3))]], ids=repr)
def test_from_numpy_refuses_what_is_no_mapping(given: Any) -> None:
    refused(af.PlanError, lambda: af.from_numpy(given), "from_numpy")


# -------------------------------------------------------------------------------------- from_generator

ELEMENTS: dict[str, list[Any]] = {
    "batches": [BATCH.slice(0, 4), BATCH.slice(4)],
    "data frames": [pl.DataFrame({"row": [1, 2]}), pl.DataFrame({"row": [3]})],
    "rows": [{"row": 1, "s": "a"}, {"row": 2, "s": "b"}, {"row": 3, "s": "c"}],
    "rows with lists": [{"row": 1, "s": ["a", None]}, {"row": 2, "s": []}, {"s": ["b"], "row": 3}],
    "rows with arrays": [{"row": n, "x": np.full((2, 3), n, np.uint8)} for n in range(3)],
    "rows beside batches": [{"row": 1}, pa.table({"row": [2, 3]}), {"row": 4}],
    "with elements without rows": [BATCH.slice(0, 0), BATCH.slice(0, 4), BATCH.slice(4, 0), BATCH.slice(4)],
}
BATCHES: dict[str, list[Any]] = {
    "arrays": [{"row": np.arange(3), "x": np.zeros(3)}, {"row": np.arange(2), "x": np.ones(2)}],
    "lists": [{"row": [1, 2], "s": ["a", None]}, {"row": [3], "s": ["b"]}],
    "columns in another order": [{"row": [1], "s": ["a"]}, {"s": ["b"], "row": [2]}],
    "nothing typed in front": [{"row": []}, {"row": [1, 2]}],
}


@pytest.mark.parametrize("kind", [*ELEMENTS, *BATCHES])
@pytest.mark.parametrize("declared", [False, True])
def test_from_generator_takes_elements(kind: str, declared: bool) -> None:
    elements: Any = "rows" if kind in ELEMENTS else "batches"

    def undeclared(schema: pa.Schema | None = None) -> af.Dataset:
        return af.from_generator(lambda: iter((ELEMENTS | BATCHES)[kind]), schema, elements=elements)

    def make() -> af.Dataset:
        return undeclared(undeclared().to_table().schema if declared else None)

    check_declared(make())
    check_resume(lambda: make().batch(2)) if declared else check_resume(make)
    check_epochs(make, differ=False)
    assert make().num_rows is None
    assert sum(sizes(make())) == sum(sizes(make().batch(3)))


ROW_SCHEMA = pa.schema(
    {
        "tokens": pa.list_(pa.int32()),
        "weight": pa.float32(),
        "name": pa.string(),
        "raw": pa.binary(),
        "image": pa.list_(pa.list_(pa.uint8(), 2), 3),
    }
)
ROWS: list[dict[str, Any]] = [
    {"tokens": [1, 2], "weight": 1, "name": "a", "raw": b"x", "image": np.arange(6).reshape(3, 2)},
    {"tokens": np.array([], np.int64), "weight": None, "name": None, "raw": None, "image": None},
    {"tokens": None, "weight": np.float64(0.5), "name": "c", "raw": b"", "image": [[0, 1], [2, 3], [4, 5]]},
]
AS_PYTHON = [
    {"tokens": [1, 2], "weight": 1.0, "name": "a", "raw": b"x", "image": [[0, 1], [2, 3], [4, 5]]},
    {"tokens": [], "weight": None, "name": None, "raw": None, "image": None},
    {"tokens": None, "weight": 0.5, "name": "c", "raw": b"", "image": [[0, 1], [2, 3], [4, 5]]},
]


@pytest.mark.parametrize("tuples", [False, True])
def test_rows_of_a_generator_get_the_types_of_its_schema(tuples: bool) -> None:
    rows = [tuple(row.values()) for row in ROWS] if tuples else ROWS
    table = af.from_generator(lambda: iter(rows), ROW_SCHEMA).to_table()
    assert table.schema == ROW_SCHEMA
    assert table.to_pylist() == AS_PYTHON


def test_a_list_in_a_row_is_one_value() -> None:
    ds = af.from_generator(lambda: iter([{"x": [1, 2], "y": 0}, {"x": [3], "y": 1}]))
    assert ds.to_table().to_pylist() == [{"x": [1, 2], "y": 0}, {"x": [3], "y": 1}]
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    (batch,) = af.from_generator(lambda: iter([{"image": image}] * 2)).batch(2).to_numpy()
    assert batch["image"].shape == (2, 2, 2, 3) and (batch["image"] == image).all()


def test_from_generator_runs_anew_in_each_epoch() -> None:
    epochs = itertools.count()

    def fn() -> Iterator[dict[str, int]]:
        yield {"row": next(epochs)}

    ds = af.from_generator(fn)
    assert [batch.column("row")[0].as_py() for _ in range(3) for batch in ds] == [0, 1, 2]


def test_each_element_is_a_split() -> None:
    ds = af.from_generator(lambda: iter([BATCH, BATCH.slice(0, 2)])).with_options(
        af.Options(max_chunk_rows=10)
    )
    assert sizes(ds.map(identity)) == [10, 7, 2]


def test_from_generator_raises_in_order_with_the_cause() -> None:
    error = ValueError("gone")
    with iter(af.from_generator(failing(ELEMENTS["rows"], error))) as iterator:
        assert [next(iterator).column("row")[0].as_py() for _ in range(3)] == [1, 2, 3]
        with pytest.raises(
            af.FunctionError, match=r"from_generator: failing\.generate raised ValueError: gone"
        ) as caught:
            next(iterator)
        assert caught.value.__cause__ is error
        with pytest.raises(af.ClosedError, match="has raised"):
            next(iterator)


@pytest.mark.parametrize(
    ("elements", "error", "text"),
    [
        ([3], af.FunctionError, "element 0"),
        ([BATCH, None], af.FunctionError, "element 1"),
        ([{}], af.FunctionError, "column"),
        ([(1, 2)], af.FunctionError, "declare schema="),
        ([{"row": 1}, {"row": "x"}], af.SchemaError, "element 1"),
        ([{"row": 1}, {"row": [2]}], af.SchemaError, "no int64"),
        ([{"row": []}, {"row": [2]}], af.SchemaError, "unless schema= does"),
        ([{"row": 1}, {"other": 1}], af.SchemaError, "element 1"),
        ([{"row": np.zeros((2, 2))}, {"row": np.zeros((2, 3))}], af.SchemaError, "element 1"),
    ],
)
def test_from_generator_refuses_other_elements(
    elements: list[Any], error: type[Exception], text: str
) -> None:
    refused(error, lambda: batches_of(af.from_generator(lambda: iter(elements))), "from_generator", text)


def test_columns_of_a_batch_have_one_length() -> None:
    ds = af.from_generator(lambda: iter([{"row": [1], "x": [1, 2]}]), elements="batches")
    refused(af.FunctionError, lambda: batches_of(ds), "from_generator", "length")
    bad: Any = "columns"
    refused(af.PlanError, lambda: af.from_generator(lambda: iter([]), elements=bad), "'rows' or 'batches'")


def test_from_generator_keeps_to_its_schema() -> None:
    ds = af.from_generator(lambda: iter([{"row": "x"}]), schema=pa.schema([("row", pa.int64())]))
    assert ds.schema == pa.schema([("row", pa.int64())])
    refused(af.SchemaError, lambda: batches_of(ds), "from_generator", "element 0", "int64")


def test_from_generator_makes_the_tensors_of_its_schema() -> None:
    schema = pa.schema([("image", pa.fixed_shape_tensor(pa.uint8(), [2, 3])), ("label", pa.int64())])
    image = np.arange(6, dtype=np.uint8).reshape(2, 3)
    rows = af.from_generator(lambda: iter([{"image": image, "label": 1}] * 2), schema)
    columns = {"image": image[None], "label": [1]}
    for ds in (rows, af.from_generator(lambda: iter([columns] * 2), schema, elements="batches")):
        assert ds.to_table().schema == schema
        (batch,) = ds.batch(2).to_numpy()
        assert (batch["image"] == image).all()


def test_from_generator_says_when_fn_is_none() -> None:
    bad: Any = [1, 2]
    refused(af.PlanError, lambda: af.from_generator(bad), "from_generator", "function")
    refused(af.FunctionError, lambda: batches_of(af.from_generator(lambda: bad and 3)), "not iterable")  # type: ignore[arg-type,return-value]


# ---------------------------------------------------------------------------------------------- files

SHARDS = [[3, 4], [], [5], [0], [1, 1, 2]]
VECTORS = pa.array([[i, -i] for i in range(ALL_TYPES.num_rows)], pa.list_(pa.float32(), 2))
FOR_PARQUET = ALL_TYPES.set_column(ALL_TYPES.column_names.index("vector"), "vector", VECTORS)
"""Older releases of pyarrow cannot write null vectors."""
NUM_ROWS = 16


def write_ipc(folder: Path, shards: list[list[int]]) -> Path:
    """The same files as `write_shards` writes, as Arrow IPC."""
    parquet, target = folder / "parquet", folder / "ipc"
    parquet.mkdir()
    target.mkdir()
    for path in sorted(write_shards(parquet, shards).iterdir()):
        file = pq.ParquetFile(path)
        with pyarrow.ipc.new_file(target / f"{path.stem}.arrow", file.schema_arrow) as writer:
            for group in range(file.num_row_groups):
                writer.write_table(file.read_row_group(group))
    return target


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_shards(tmp_path, SHARDS)


@pytest.fixture(params=["parquet", "ipc"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_shards(tmp_path, SHARDS) if request.param == "parquet" else write_ipc(tmp_path, SHARDS)


def read(paths: Any, **arguments: Any) -> af.Dataset:
    first = paths[0] if isinstance(paths, list) else paths
    return (af.read_ipc if "ipc" in str(first) else af.read_parquet)(paths, **arguments)


def test_files_come_in_sorted_order_split_by_split(either: Path) -> None:
    ds = read(either)
    assert ds.num_rows == NUM_ROWS
    assert rows_of(ds) == list(range(NUM_ROWS))
    assert sizes(ds) == [3, 4, 5, 1, 1, 2]
    assert ds.schema == pa.schema([("row", pa.int64()), ("file", pa.int32())])


def test_files_keep_the_contracts(either: Path) -> None:
    check_dataset(lambda: read(either).skip(2).take(11).batch(3), in_full=False)
    check_resume(lambda: read(either, filter=pl.col("row") > 4).map(identity).batch(2))


def test_paths_may_be_given_in_many_ways(folder: Path) -> None:
    expected = rows_of(read(folder))
    files = sorted(map(str, folder.iterdir()))
    for paths in (str(folder), str(folder / "*"), files, set(files), [folder], f"file://{folder}"):
        assert rows_of(read(paths)) == expected
    backwards = [row for file in reversed(files) for row in rows_of(read(file))]
    assert backwards != expected and rows_of(read(files[::-1])) == backwards
    assert rows_of(read(files[2])) == [7, 8, 9, 10, 11]


def test_columns_and_filter_are_select_and_filter(either: Path) -> None:
    ds = read(either, columns=["row"], filter=pc.field("file") == 2)
    assert ds.to_table().to_pydict() == {"row": [7, 8, 9, 10, 11]}
    refused(af.PlanError, lambda: read(either, columns=["roww"]).schema, "did you mean 'row'?")
    refused(af.PlanError, lambda: read(either, filter=pl.col("roww") > 1).schema, "did you mean 'row'?")


def test_a_schema_widens_and_fills(either: Path) -> None:
    schema = pa.schema([("file", pa.int64()), ("new", pa.string()), ("row", pa.int64())])
    ds = read(either, schema=schema)
    assert ds.schema == schema
    table = ds.to_table()
    assert table.column("row").to_pylist() == list(range(NUM_ROWS))
    assert table.column("new").null_count == NUM_ROWS
    check_resume(lambda: read(either, schema=schema).batch(4))


@pytest.mark.parametrize(
    "schema",
    [
        pl.Schema({"file": pl.Int64, "new": pl.String, "row": pl.Int64}),
        {"file": pl.Int64(), "new": pa.large_string(), "row": "int64"},
    ],
)
def test_a_schema_of_polars_is_one_of_pyarrow(folder: Path, schema: Any) -> None:
    same = pa.schema([("file", pa.int64()), ("new", pa.string()), ("row", pa.int64())])
    assert read(folder, schema=schema).to_table() == read(folder, schema=same).to_table()
    made = af.range(3).map(lambda batch: batch, schema=pl.Schema({"id": pl.Int64}))
    assert made.schema == pa.schema({"id": pa.int64()})
    assert made.to_table().num_rows == 3
    made = af.from_generator(lambda: iter([{"x": 1}]), schema=pl.Schema({"x": pl.Int64}))
    assert made.to_table().to_pydict() == {"x": [1]}


def test_a_schema_that_is_none(folder: Path) -> None:
    refused(af.PlanError, lambda: read(folder, schema=["x"]), "polars.Schema", "got list")
    refused(af.PlanError, lambda: read(folder, schema={1: pl.Int8}), "names columns by texts, got 1")
    refused(af.PlanError, lambda: read(folder, schema={"x": "int7"}), "column 'x'", "got 'int7'")
    refused(af.PlanError, lambda: read(folder, schema={"x": pl.Categorical}), "column 'x'", "pl.Enum")


def test_files_without_rows_are_read_for_their_schema_only(tmp_path: Path) -> None:
    ds = af.read_parquet(write_shards(tmp_path, [[], [0], []]))
    assert ds.num_rows == 0
    assert ds.schema.names == ["row", "file"]
    assert not batches_of(ds.shuffle(3).repeat().batch(2))


def test_shards_of_other_schemas_are_refused_with_file_and_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": [1], "x": [1]}), tmp_path / "a.parquet")
    for bad in (pa.table({"row": [2]}), pa.table({"row": [2], "x": ["text"]})):
        pq.write_table(bad, tmp_path / "b.parquet")
        with iter(af.read_parquet(tmp_path)) as iterator:
            assert next(iterator).num_rows == 1
            refused(af.SchemaError, partial(next, iterator), "read_parquet", "b.parquet", "'x'")
    pq.write_table(pa.table({"y": [9], "x": [2], "row": [2]}), tmp_path / "b.parquet")
    assert af.read_parquet(tmp_path).to_table().to_pydict() == {"row": [1, 2], "x": [1, 2]}


@pytest.mark.parametrize("read_files", [af.read_parquet, af.read_ipc])
@pytest.mark.parametrize("missing", ["none.parquet", "*.parquet", ""])
def test_what_is_not_there_is_named(tmp_path: Path, read_files: Any, missing: str) -> None:
    path = tmp_path / missing
    refused(af.SourceError, lambda: read_files(path).schema, read_files.__name__, str(path))


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_truncated_file_is_an_error_that_names_it(either: Path, keep: int) -> None:
    file = sorted(either.iterdir())[2]
    file.write_bytes(file.read_bytes()[:keep])
    with iter(read(either)) as iterator:
        assert next(iterator).num_rows + next(iterator).num_rows == 7
        with pytest.raises(af.SourceError) as caught:
            next(iterator)
        assert caught.value.file is not None and file.name in caught.value.file
        with pytest.raises(af.ClosedError, match="has raised"):
            next(iterator)


@pytest.mark.parametrize("format", ["parquet", "ipc"])
def test_every_type_goes_through_files(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"all.{format}"
    if format == "parquet":
        pq.write_table(FOR_PARQUET, path, row_group_size=4)
    else:
        pyarrow.feather.write_feather(ALL_TYPES, str(path), compression="uncompressed", chunksize=4)
    ds = read(path)
    check_declared(ds)
    table = FOR_PARQUET if format == "parquet" else ALL_TYPES
    expected = af.from_arrow(table).to_table().cast(ds.schema).combine_chunks().to_batches()
    assert_same_rows(batches_of(ds), expected)


@pytest.fixture(scope="module")
def of_all_types(tmp_path_factory: pytest.TempPathFactory) -> tuple[af.Dataset, af.Dataset]:
    """The same rows in a file and in memory, split in the same way."""
    folder = tmp_path_factory.mktemp("types")
    pq.write_table(FOR_PARQUET, folder / "all.parquet", row_group_size=4)
    ds = af.read_parquet(folder)
    return ds, chunked([[batch] for batch in ds], ds.schema)


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_every_operator_takes_every_type_from_files(
    of_all_types: tuple[af.Dataset, af.Dataset], name: str
) -> None:
    """A shuffle orders the files, too."""
    ds, memory = of_all_types
    found, expected = batches_of(OPERATORS[name](ds)), batches_of(OPERATORS[name](memory))
    if name == "shuffle":
        assert_same_rows(found, expected, ordered=False)
    else:
        assert_same_batches(found, expected)


def test_num_parallel_calls_changes_no_row(folder: Path) -> None:
    expected = batches_of(read(folder))
    for calls in (1, 7):
        assert_same_batches(batches_of(read(folder, num_parallel_calls=calls)), expected)


@pytest.mark.parametrize("calls", [0, -2, 1.5, True])
def test_bad_num_parallel_calls(calls: Any) -> None:
    refused(af.PlanError, lambda: af.read_parquet("a", num_parallel_calls=calls), "num_parallel_calls")


# ------------------------------------------------------------------------------------- who reads it


def test_others_read_a_dataset_directly() -> None:
    ds = af.from_arrow(NUMBERS).filter(pl.col("row") > 3).batch(4)
    assert pl.DataFrame(ds)["row"].to_list() == list(range(4, 17))
    relation = duckdb.sql("SELECT sum(row)::BIGINT AS total FROM ds")
    assert relation is not None and relation.to_arrow_table().to_pydict() == {"total": [sum(range(4, 17))]}
    assert pa.table(ds).num_rows == 13
    assert_same_rows(ds.to_reader().read_all().to_batches(), ds.to_table().to_batches())
