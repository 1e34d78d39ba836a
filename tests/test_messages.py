"""The text of messages: each hint is true where it is given, and uses the user's own words and numbers."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import arrowflow as af
from arrowflow.formats.registry import FORMATS

pytestmark = pytest.mark.any_version

NULLS = af.from_arrow(pa.table({"x": [1, None, 3]}))
ENUM = pl.Enum(["a", "b"])


def told(call: Callable[[], object]) -> str:
    """Returns the text of the library's error that a call ends in."""
    with pytest.raises(af.ArrowflowError) as caught:
        call()
    return str(caught.value)


# ------------------------------------------------------------------------------------------ batch


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (
            lambda: af.range(9).batch(4).take(2),
            "take: after `batch` the rows are no longer addressable, since .batch(4).take(2) could mean batches or "
            "rows; write .take(2).batch(4) for rows, .take(8).batch(4) for batches",
        ),
        (
            lambda: af.range(9).padded_batch(4).skip(2),
            "skip: after `padded_batch` the rows are no longer addressable, since .padded_batch(4).skip(2) could mean "
            "batches or rows; write .skip(2).padded_batch(4) for rows, .skip(8).padded_batch(4) for batches",
        ),
        (
            lambda: af.range(9).batch(4).repeat().take(2),
            "take: after `batch` the rows are no longer addressable, since .batch(4).take(2) could mean batches or "
            "rows; write .take(2).batch(4)",
        ),
        (
            lambda: af.range(9).batch(4).shard(3, 0),
            "shard: after `batch` the rows are no longer addressable, since .batch(4).shard(…) could mean batches or "
            "rows; write .shard(…).batch(4)",
        ),
        (
            lambda: af.zip(af.range(3), af.range(9).with_columns(x=1).batch(4)),
            "zip: after `batch` the rows are no longer addressable; leave .batch(4) out of its inputs, and call "
            ".batch(4) on its result",
        ),
    ],
)
def test_a_call_after_batch_is_spelled_with_its_own_numbers(call: Callable[[], object], hint: str) -> None:
    assert told(call) == hint


# ----------------------------------------------------------------------------------------- schema=


def test_schema_is_not_recommended_to_whoever_gave_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\nfoo,b\n")
    (tmp_path / "a.json").write_text('{"x": 1}\n{"x": "foo"}\n')
    given = pa.schema({"x": pa.int64()})
    csv = told(af.read_csv(tmp_path / "a.csv", schema=given).to_table)
    json = told(af.read_json(tmp_path / "a.json", schema=given).to_table)
    for text in (csv, json):
        assert "pass schema=" not in text
        assert (
            "take a type in schema= that holds all values of the column, or leave the column out of it"
            in text
        )
    assert "column 'x': row 2: CSV conversion error to int64: invalid value 'foo'" in csv
    rows = told(af.range(2).map_rows(lambda row: {"x": "foo"}, schema=given).to_table)
    assert "holds a value that is no int64 (" in rows
    assert rows.endswith(")")
    rows = told(af.range(2).map_rows(lambda row: {"x": row["id"] or "foo"}).to_table)
    assert rows.endswith("; declare types with schema=")
    source = af.from_generator(lambda: iter([pa.table({"x": [1]})]), schema=given)
    empty = told(source.map(lambda batch: batch.slice(0, 0)).to_table)
    assert empty.endswith("pass schema= to the `map` or the generator that has none")


# ---------------------------------------------------------------------------------- arrays and tensors


def test_functions_are_not_told_what_only_loaders_take() -> None:
    ragged = af.from_arrow(pa.table({"x": [[1], [1, 2]]}))
    calls: list[Callable[[af.Dataset], object]] = [
        lambda ds: ds.map(lambda batch: batch, format="numpy").to_table(),
        lambda ds: ds.filter(lambda batch: batch["x"] > 1, format="numpy").to_table(),
        lambda ds: ds.reduce(0, lambda state, batch: state, format="numpy"),
    ]
    for call in calls:
        for ds in (NULLS, ragged):
            text = told(lambda call=call, ds=ds: call(ds))  # type: ignore[misc]
            assert not re.search(r"a loader|the loader|null=|lists=", text), text
            assert "take format='arrow' or 'polars'" in text
    assert told(lambda: calls[2](NULLS)).startswith("reduce: column 'x' has 1 null among 3 values")
    text = told(lambda: list(NULLS.to_numpy()))
    assert text.endswith('with filter; a loader also takes null="nan", null="mask" or a value')
    assert 'ask the loader for lists="padded"' in told(lambda: list(ragged.to_numpy()))


BY_ROW = "`map_rows` calls a function row by row, slowly"


@pytest.mark.parametrize(
    ("fn", "format", "hint"),
    [
        (lambda row: {"x": row["id"]}, "arrow", f"format='numpy' is for functions of arrays; {BY_ROW}"),
        (lambda row: {"x": row["id"]}, "polars", f"format='numpy' is for functions of arrays; {BY_ROW}"),
        (lambda frame: pl.DataFrame(frame), "arrow", "format='polars' is for functions of data frames"),
        (
            lambda columns: pa.record_batch({"x": [1]}),
            "numpy",
            "format='arrow' is for functions of record batches",
        ),
        (lambda row: row["id"] + 1, "numpy", f"expected a dict, since format='numpy'; {BY_ROW}"),
        (lambda row: {"n": len(row)}, "numpy", f"got the scalar 1; {BY_ROW}"),
        (lambda row: {"n": f"{row['id']}"}, "numpy", f"got the scalar '[0 1 2]'; {BY_ROW}"),
        (
            lambda row: row["id"] > 1,
            "arrow",
            f"not one row; format='numpy' hands it arrays, format='polars' a data frame; {BY_ROW}",
        ),
    ],
)
def test_functions_of_a_row_are_told_how_to_be_called(
    fn: Callable[[Any], Any], format: Any, hint: str
) -> None:
    assert hint in told(lambda: af.range(3).map(fn, format=format).to_table())


def test_predicates_of_a_row_are_told_what_they_see() -> None:
    text = told(lambda: af.range(3).filter(lambda row: row["id"] in (1, 2)).to_table())
    assert text.endswith(
        "expected one boolean a row: an array of NumPy or pyarrow, or a Polars Series; the function is given many rows, not one"
    )


@pytest.mark.parametrize("column", [pa.array([{"a": 1}]), pa.array([1, None]), pa.array([[{"a": 1}]])])
def test_tensors_are_not_called_numpy_arrays(column: pa.Array) -> None:
    pytest.importorskip("torch")
    text = told(lambda: list(af.from_arrow(pa.table({"x": column})).to_torch()))
    assert "which an array or tensor cannot hold" in text
    assert "NumPy" not in text


# ---------------------------------------------------------------------------------------- columns=


LOADERS = ["to_numpy", "to_dlpack", "to_torch", "to_jax", "to_polars"]


@pytest.mark.parametrize("name", LOADERS)
def test_columns_of_a_loader(name: str) -> None:
    if name in ("to_torch", "to_jax"):
        pytest.importorskip(name.removeprefix("to_"))
    ds = af.from_arrow(pa.table({"x": [1], "label": [0]}))
    loader = getattr(ds, name)
    assert told(lambda: list(loader(columns=["lable"]))) == (
        f"{name}: unknown column 'lable'; did you mean 'label'?"
    )
    assert told(lambda: list(loader(columns=["x", "x"]))).startswith(f"{name}: output columns have different")
    assert told(lambda: loader(columns=[])) == (
        f"{name}: columns=[] names no column; name some, or leave columns= out for all"
    )
    assert told(lambda: loader(columns=[1])) == f"{name}: expected names of columns, got [1]"


def test_columns_of_others(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1], "label": [0]}), tmp_path / "a.parquet")
    read = told(lambda: af.read_parquet(tmp_path, columns=["lable"]).to_table())
    assert read == "read_parquet: unknown column 'lable'; did you mean 'label'?"
    ds = af.read_parquet(tmp_path)
    reduced = told(lambda: ds.reduce(0, lambda state, batch: state, columns=["lable"]))
    assert reduced == "reduce: unknown column 'lable'; did you mean 'label'?"
    assert told(lambda: ds.drop([])) == "drop: expected at least one name of a column, got none"


# ------------------------------------------------------------------------------------- expressions


@pytest.mark.parametrize(
    "expr", [pl.col("s").struct.unnest(), pl.col("s").struct.field("a", "b"), pl.col("s").struct.field("*")]
)
def test_several_fields_are_refused_for_what_they_are(expr: pl.Expr) -> None:
    ds = af.from_arrow(pa.table({"s": [{"a": 1, "b": 2}]}))
    text = told(lambda: ds.select(expr))
    assert text.startswith(
        "select: `struct.unnest`, and `struct.field` of several fields, make several columns"
    )
    assert "element-wise" not in text
    one_each = ds.select(pl.col("s").struct.field("a"), pl.col("s").struct.field("b"))  # as the text says
    assert one_each.to_table().to_pydict() == {"a": [1], "b": [2]}


def test_casts_to_an_enum() -> None:
    texts = af.from_arrow(pa.table({"s": ["a", "c"]}))
    numbers = af.from_arrow(pa.table({"s": [0, 1]}))
    for ds in (texts.cast({"s": ENUM}), texts.with_columns(s=pl.col("s").cast(ENUM))):
        text = told(ds.to_table)
        assert 'for 1 out of 2 values: ["c"]; list all values in pl.Enum([…])' in text
        assert "strict_cast" not in text
        assert "\n" not in text
    loose = texts.with_columns(s=pl.col("s").cast(ENUM, strict=False))  # as the text says
    assert loose.to_table()["s"].to_pylist() == ["a", None]
    text = told(numbers.cast({"s": pl.Enum(["0", "1"])}).to_table) if pl.__version__ >= "2" else ""
    assert "cat.to" not in text  # which is refused
    made = numbers.cast({"s": pl.String}).cast({"s": pl.Enum(["0", "1"])})
    assert made.to_table()["s"].to_pylist() == ["0", "1"]


def test_expressions_are_shown_as_text() -> None:
    expr = pl.col("s").cast(ENUM)
    ds = af.from_arrow(pa.table({"s": ["a"]}))
    calls: list[Callable[[], object]] = [
        lambda: ds.cast({"s": expr}),
        lambda: ds.cast(expr),  # type: ignore[arg-type]
        lambda: ds.unique(expr),
        lambda: ds.stack(x=[expr]),
        lambda: ds.rename({"s": expr}),  # type: ignore[dict-item]
        lambda: ds.fill_null({"s": expr}).to_table(),
        lambda: ds.to_numpy(columns=[expr]),
    ]
    for call in calls:
        text = told(call)
        assert str(expr) in text
        assert " at 0x" not in text


# ------------------------------------------------------------------------------------------- files


def test_only_parquet_has_row_groups(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\nfoo\n")
    text = told(af.read_csv(tmp_path, schema=pa.schema({"x": pa.int64()})).to_table)
    assert text.endswith("a.csv', block 0)")

    def fails(batch: Any) -> Any:
        raise ValueError

    (tmp_path / "a.csv").write_text("x\n1\n")
    assert "block 0" in told(af.read_csv(tmp_path).map(fails).to_table)
    af.range(3).write_ipc(tmp_path / "ipc")
    assert "record batch 0" in told(af.read_ipc(tmp_path / "ipc").map(fails).to_table)
    af.range(3).write_parquet(tmp_path / "parquet")
    assert "row group 0" in told(af.read_parquet(tmp_path / "parquet").map(fails).to_table)


@pytest.mark.parametrize(
    ("codec", "ending"), [("gzip", ".gz"), ("bz2", ".bz2"), ("zstd", ".zst"), ("lz4", ".lz4")]
)
@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_compressed_files_without_their_ending(tmp_path: Path, codec: str, ending: str, name: str) -> None:
    path = tmp_path / name
    with pa.CompressedOutputStream(str(path), codec) as stream:
        stream.write(b'{"x": 1}\n' if name == "a.json" else b"x\n1\n")
    format = name[2:]
    text = told(af.read(path, format=format).to_table)
    assert f"the file is compressed, and its name does not say so: let the name end in {ending} " in text
    path.rename(tmp_path / (name + ending))
    read = af.read(tmp_path / (name + ending), format=format)
    assert read.to_table().to_pydict() == {"x": [1]}


def test_a_header_that_only_looks_compressed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("BZh9\n1\n")
    assert af.read_csv(tmp_path).schema.names == ["BZh9"]
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x\n1\n"))
    assert af.read_csv(tmp_path / "a.csv.gz").num_rows == 1


class Failing(MemoryFileSystem):
    """A storage that fails from some request on, or that delivers whole files, and `more`, whatever it is asked for."""

    protocol = "failing"
    cachable = False

    def __init__(self, error: Exception | None, first: int = 0, more: bytes = b"") -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.error = error
        self.more = more
        self.requests = -first

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> Any:
        self.requests += 1
        if self.requests > 0 and self.error is not None:
            raise self.error
        if self.error is not None:
            return super().cat_file(path, start, end, **kwargs)
        return super().cat_file(path, **kwargs) + self.more


class ClientResponseError(Exception):
    """An error as aiohttp and botocore have."""

    __module__ = "aiohttp.client_exceptions"


ERRORS = [
    ClientResponseError("429, message='Too Many Requests'"),
    TimeoutError("no answer"),
    OSError(5, "EIO"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_storage_that_fails_is_no_fault_of_the_file(error: Exception, first: int, format: str) -> None:
    storage = Failing(error, first)
    ds = af.read(held(storage, format), format=format, filesystem=storage)
    text = told(ds.with_options(af.Options(retries=0)).to_table)
    assert f"the storage did not deliver it: {type(error).__name__}: {error}; the file may be whole" in text
    assert not re.search("corrupt|truncated|write it anew", text)


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_storage_without_ranges_is_no_fault_of_the_file(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arrowflow.ops.sources.files.splits.SMALL_FILE_BYTES", 0)
    storage = Failing(None, more=b"and a part of an advertisement")
    text = told(af.read(held(storage, format), format=format, filesystem=storage).to_table)
    assert "does not deliver parts of files (HTTP range requests), which reading needs; copy the file" in text


def held(storage: Failing, format: str) -> str:
    """Returns the path of a file in a storage."""
    sink = io.BytesIO()
    if format == "parquet":
        pq.write_table(pa.table({"x": range(9)}), sink, row_group_size=3)
    else:
        sink.write(b"x\n1\n2\n")
    storage.pipe_file(f"/bucket/a.{format}", sink.getvalue())
    return f"/bucket/a.{format}"


# ----------------------------------------------------------------------------------- other libraries


BATCHES = af.range(10).batch(4)


def test_a_data_loader_of_a_dataset_or_a_loader_says_what_to_write() -> None:
    data = pytest.importorskip("torch.utils.data")
    for given in (BATCHES, af.range(10)):
        text = told(lambda given=given: list(data.DataLoader(given, sampler=[0])))  # type: ignore[misc]
        assert "DataLoader(ds.to_torch_dataset(), batch_size=None)" in text
    for arguments in ({}, {"batch_size": None}):
        text = told(lambda arguments=arguments: list(data.DataLoader(BATCHES.to_torch(), **arguments)))  # type: ignore[misc]
        assert text.startswith(
            "to_torch: a loader has no batches by number, and takes the place of a DataLoader"
        )
    assert len(list(data.DataLoader(BATCHES.to_torch_dataset(), batch_size=None))) == 3  # as the texts say


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_makes_no_batches_of_batches(workers: int) -> None:
    data = pytest.importorskip("torch.utils.data")
    # A worker process imports PyTorch, which takes seconds.
    for arguments in ({"batch_size": 2, "drop_last": True}, {}, {"batch_size": 32})[: 1 if workers else 3]:
        loader = data.DataLoader(
            BATCHES.to_torch_dataset(),
            num_workers=workers,
            multiprocessing_context="forkserver" if workers else None,
            **arguments,
        )
        text = told(lambda loader=loader: list(loader))  # type: ignore[misc]
        assert "write DataLoader(…, batch_size=None), and put the size into .batch(…)" in text


def test_data_frames_and_arrays_are_not_made_of_batches() -> None:
    pandas = pytest.importorskip("pandas")
    for make in (pandas.DataFrame, np.array, np.asarray):
        text = told(lambda make=make: make(BATCHES))  # type: ignore[misc]
        assert "pl.DataFrame(ds)" in text and "ds.to_table().to_pandas()" in text
        text = told(lambda make=make: make(BATCHES.to_numpy()))  # type: ignore[misc]
        assert "iterate over it" in text
    assert pl.DataFrame(BATCHES).shape == BATCHES.to_table().to_pandas().shape == (10, 1)  # as the texts say


def test_a_dataset_does_not_look_for_a_value() -> None:
    assert "not ds.filter(pl.col('x') == 3).head(1).is_empty()" in told(lambda: 3 in BATCHES)
    assert not af.range(5).filter(pl.col("id") == 3).head(1).is_empty()  # as the text says


def test_brackets_of_other_libraries_are_told_their_operators() -> None:
    ds = af.from_arrow(pa.table({"x": [1, 2, 3, 4, 5, 6], "age": range(6)}))
    texts: list[tuple[Any, str]] = [
        (
            "age",
            "ds.select('age') is the dataset of these columns, and ds.to_table().select(['age']) their values",
        ),
        (("x", "age"), "ds.select(['x', 'age']) is the dataset of these columns"),
        (slice(5), "ds.take(5) is the dataset of these rows, and ds.head(5) a data frame of them"),
        (
            slice(2, 5),
            "ds.skip(2).take(3) is the dataset of these rows, and ds.skip(2).head(3) a data frame of them",
        ),
        (slice(None, None, 2), "ds.shard(n, 0) is every nth row"),
        (slice(-2, None), "ds.skip(n).take(m) are m rows after the first n"),
        (0, "skip(n).take(1) reads row n"),
    ]
    for key, text in texts:
        assert text in told(lambda key=key: ds[key]), key  # type: ignore[misc]
    assert 'ds.filter([(col("x")) > (dyn int: 3)])' in told(lambda: ds[pl.col("x") > 3])
    assert ds.skip(2).take(3).to_table() == ds.to_table()[2:5]  # as the texts say
    assert ds.select(["x", "age"]).to_table() == ds.to_table().select(["x", "age"])
    assert ds.shard(2, 0).to_table() == ds.to_table().take([0, 2, 4])


# --------------------------------------------------------------------------------------------- sources


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ([{"x": 1}, {"x": 2}], "af.from_arrow(pa.Table.from_pylist(source))"),
        ({"x": [1, 2]}, "af.from_numpy(source)"),
        ([pa.table({"x": [1]}), pa.table({"x": [2]})], "af.from_arrow(pa.concat_tables(source))"),
        ([pl.DataFrame({"x": [1]}), pl.DataFrame({"x": [2]})], "af.from_arrow(pl.concat(source))"),
        (np.array([1, 2]), 'af.from_numpy({"x": source})'),
        (({"x": each} for each in (1, 2)), "af.from_generator(lambda: source)"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_other_data_than_arrow_is_told_its_way(source: Any, code: str) -> None:
    hint = re.search("write `(.*)`$", told(lambda: af.from_arrow(source)))
    assert hint is not None
    assert re.sub(r"\b(rows|columns|tables|frames|array)\b", "source", hint[1]) == code
    ds = eval(code, {"af": af, "pa": pa, "pl": pl, "source": source})
    assert [row["x"] for row in ds.to_table().to_pylist()] == [1, 2]


def test_a_path_is_told_its_reader(tmp_path: Path) -> None:
    assert "got str; write `af.read_parquet(path)`" in told(lambda: af.from_arrow("x.parquet"))
    assert "got PosixPath; write `af.read_parquet(path)`" in told(lambda: af.from_arrow(tmp_path))
    assert told(lambda: af.from_arrow(3)).endswith("got int")


KNOWN = ", ".join(FORMATS)


@pytest.mark.parametrize(
    ("paths", "code"),
    [
        ("x.orc", "af.read_orc(path)"),
        ("x.avro", "af.read_avro(path)"),
        ("x.npy", 'af.from_numpy({"x": numpy.load(path)})'),
        ("s3://bucket/*.parquet", "af.read_parquet(path)"),
        (["x.CSV.gz", "y.csv.gz"], "af.read_csv(path)"),
        (Path("x.tfrecord"), "af.read_tfrecord(path)"),
        ("folder", ""),
        ([], ""),
        (3, ""),
    ],
    ids=str,
)
def test_files_without_a_format_are_told_their_reader(paths: Any, code: str) -> None:
    text = f"read: format= names the format of the files, one of {KNOWN}"
    assert told(lambda: af.read(paths)) == (f"{text}; write `{code}`" if code else text)


def test_tables_without_a_format_are_told_their_reader(tmp_path: Path) -> None:
    for name, code in (("_delta_log", 'af.read_delta("…")'), ("_versions", 'af.read_lance("…")')):
        (tmp_path / name / name).mkdir(parents=True)
        assert told(partial(af.read, tmp_path / name)).endswith(f"; write `{code}`")
    (tmp_path / "ice" / "metadata").mkdir(parents=True)
    assert "read_iceberg" not in told(partial(af.read, tmp_path / "ice"))
    (tmp_path / "ice" / "metadata" / "v1.metadata.json").touch()
    assert told(partial(af.read, tmp_path / "ice")).endswith(
        '; write `af.read_iceberg(catalog.load_table("…"))`'
    )


def test_formats_that_others_read_are_told_their_way() -> None:
    text = told(lambda: af.read("x", format="excel"))
    assert text == (
        f"read: there is no format 'excel'; known formats: {KNOWN}; write `af.from_arrow(pl.read_excel(path))`"
    )
    assert (
        told(lambda: af.read("x", format="delta"))
        == f"read: there is no format 'delta'; known formats: {KNOWN}; write `af.read_delta(…)`"
    )
    assert (
        told(lambda: af.read("x", format="parket"))
        == "read: there is no format 'parket'; did you mean 'parquet'?"
    )


# ------------------------------------------------------------------------------------------ what an outside look found

MANY: Any = [{"a": number} for number in range(100_000)]


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (
            lambda: af.from_generator(MANY),
            "(list of 100,000 elements); for rows that are there write `lambda: rows`",
        ),
        (lambda: af.range(3).map(cast(Any, dict(enumerate(MANY)))), "(dict of 100,000 elements)"),
        (lambda: af.range(3).with_columns(z=MANY), "(list of 100,000 elements)"),
        (lambda: af.range(3).batch(MANY), "(list of 100,000 elements)"),
        (lambda: af.range(3)[[str(number) for number in range(100_000)]], "(list of 100,000 elements)"),
        (lambda: af.range(3).select(*(f"column {number}" for number in range(5_000))).schema, "select"),
    ],
)
def test_a_large_argument_does_not_make_a_message_large(call: Callable[[], object], hint: str) -> None:
    text = told(call)
    assert hint in text
    assert len(text) < 11_000


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: af.range(3).write_csv("o.csv.gz"),
            r"as in write_csv\('o'\), or end the name with '/' .* have it$",
        ),
        (lambda: af.range(3).write_tfrecord("o.tfrecord"), "shall have it$"),
        (lambda: af.range(3).write_json("o.jsonl"), r"write pl.DataFrame\(ds\).write_ndjson\('o.jsonl'\)"),
        (
            lambda: af.range(3).write_parquet("o.parquet"),
            r"write pl.DataFrame\(ds\).write_parquet\('o.parquet'\)",
        ),
        (lambda: af.range(3)[[1, 2]], "no rows by number"),
        (lambda: af.count_rows(af.range(3)), "count_rows: it counts rows of files, .* found range$"),
        (lambda: af.zip([af.range(3), af.range(3)]), r"zip: .* got a list: put \* before it"),  # type: ignore[arg-type]
        (
            lambda: af.choose_from_datasets([af.range(3)], [0]),  # type: ignore[arg-type]
            r"choice_dataset is a Dataset, got list; of numbers make one by af.from_numpy",
        ),
    ],
)
def test_advice_that_can_be_followed(call: Callable[[], object], text: str) -> None:
    assert re.search(text, told(call))


def test_the_name_of_one_file_is_advice_that_works(tmp_path: Path) -> None:
    pl.DataFrame(af.range(3)).write_ndjson(tmp_path / "o.jsonl")
    assert af.read_json(tmp_path / "o.jsonl").to_table()["id"].to_pylist() == [0, 1, 2]


def test_nulls_among_texts_are_not_told_of_nan() -> None:
    both = af.from_arrow(pa.table({"s": ["a", None], "x": [1, None]})).batch(2)
    assert told(lambda: next(iter(both.to_numpy(null="nan")))).endswith(
        'a loader also takes null="mask" or a text'
    )
    texts = both.select("s")
    assert texts.to_numpy(null="mask").peek()["s_mask"].tolist() == [True, False]
    assert texts.to_numpy(null="x").peek()["s"].tolist() == ["a", "x"]


def test_an_open_file_is_no_path(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    with (tmp_path / "a.csv").open() as file:
        assert "got the open file" in told(lambda: af.read_csv(file).to_table())  # type: ignore[arg-type]


def test_files_of_other_kinds_are_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    with pa.ipc.new_file(tmp_path / "a.arrow", pa.schema({"x": pa.int64()})):
        pass
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        member = tarfile.TarInfo("a.csv")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"x\n1\n"))
    (tmp_path / "a.tar").write_bytes(data.getvalue())
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(data.getvalue()))
    for read in (af.read_csv, af.read_json, af.read_text):
        assert "read it with read_parquet" in told(read(tmp_path / "a.parquet").to_table)
        assert "read it with read_ipc" in told(read(tmp_path / "a.arrow").to_table)
        for name in ("a.tar", "a.tar.gz"):
            assert "a tar archive; read a file in it as tar://" in told(read(tmp_path / name).to_table)
    assert af.read_csv(f"tar://a.csv::{tmp_path}/a.tar.gz").to_table()["x"].to_pylist() == [1]


def test_objects_with_commas_between_them(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a":1},\n{"a":2},\n')
    assert "put [ before the first one" in told(af.read_json(tmp_path / "a.json").to_table)


def test_names_of_columns_of_another_number(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n3,4\n")
    text = told(af.read_csv(tmp_path / "a.csv", column_names=["a", "b", "c"]).to_table)
    assert "column_names= has a name for each field of a line" in text


def test_the_text_of_a_dataset_shows_some_of_many_columns() -> None:
    ds = af.from_arrow(pa.table({f"c{number}": [1] for number in range(3000)}))
    lines = str(ds).splitlines()
    assert len(lines) < 120
    assert lines[-2:] == ["  c99: int64", "  … and 2,900 more: `schema` has all"]
