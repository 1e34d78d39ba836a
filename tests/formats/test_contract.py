"""All formats keep one contract, those of other packages too; and its checks find formats that break it."""

from __future__ import annotations

import dataclasses
import gzip
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.formats import FORMATS, File, Footer, Format, Range, Split, Store, conform
from arrowflow.formats.avro import avro
from arrowflow.formats.csv.csv import CsvFormat
from arrowflow.formats.json.json import JsonFormat
from arrowflow.formats.text.lines import LinesFormat
from arrowflow.formats.tfrecord import framing
from arrowflow.formats.webdataset import webdataset
from arrowflow.testing import check_format
from arrowflow.testing.formats import TABLE
from tests.formats.reading import write_table
from tests.formats.records_format import HEADER, RECORD, SCHEMA, RecordsFormat, write_records
from tests.formats.tfrecords import encoded, framed
from tests.formats.webdataset.test_webdataset import write_tar
from tests.ops.tables import refused

RECORDS = pa.table({"id": pa.array(range(60), pa.int64()), "value": pa.array([row / 4 for row in range(60)])})
TEXTS = pa.table({"text": [f"{row} and" * (row % 3) for row in range(60)]})
MEMBERS = pa.table(
    {
        "__key__": [f"{row:03}" for row in range(60)],
        "cls": pa.array(range(60), pa.int64()),
        "bin": pa.array([None if row % 7 == 3 else bytes(9 * row) for row in range(60)], pa.binary()),
    }
)
EXAMPLES = pa.table(
    {
        "id": pa.array(range(60), pa.int64()),
        "name": pa.array([f"row {row}".encode() for row in range(60)], pa.binary()),
    }
)


def write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=17, data_page_version="2.0", write_page_checksum=True)


def write_ipc(table: pa.Table, path: Path, compression: str | None = None) -> None:
    write_table(path, table, rows=17, compression=compression)


def write_orc(table: pa.Table, path: Path) -> None:
    pyarrow.orc.write_table(table, path, stripe_size=64, batch_size=17)


def write_avro(table: pa.Table, path: Path) -> None:
    fields = [
        {"name": "id", "type": "long"},
        *({"name": name, "type": ["null", type]} for name, type in (("value", "double"), ("text", "string"))),
    ]
    with path.open("wb") as file:
        fastavro.writer(
            file, {"type": "record", "name": "row", "fields": fields}, table.to_pylist(), "deflate", 100
        )


def write_lines(table: pa.Table, path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def write_text(table: pa.Table, path: Path) -> None:
    path.write_text("".join(f"{line}\n" for line in table["text"].to_pylist()))


def write_members(table: pa.Table, path: Path) -> None:
    rows = []
    for row in table.to_pylist():
        members = {"cls": b"%d" % row["cls"]}
        rows.append((row["__key__"], members | ({} if row["bin"] is None else {"bin": row["bin"]})))
    write_tar(path, rows)


def write_array(table: pa.Table, path: Path) -> None:
    path.write_text(json.dumps(table.to_pylist()))


def write_examples(table: pa.Table, path: Path) -> None:
    path.write_bytes(framed(encoded({"id": [row["id"]], "name": [row["name"]]}) for row in table.to_pylist()))


def zipped(write: Any) -> Any:
    def write_zipped(table: pa.Table, path: Path) -> None:
        write(table, path)
        path.write_bytes(gzip.compress(path.read_bytes()))

    return write_zipped


SHIPPED: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "parquet": ("parquet", write_parquet, {}),
    "ipc": ("ipc", write_ipc, {}),
    "compressed ipc": ("ipc", partial(write_ipc, compression="zstd"), {}),
    "orc": ("orc", write_orc, {}),
    "avro": ("avro", write_avro, {}),
    "csv": ("csv", pyarrow.csv.write_csv, {"has_end": False}),
    "json lines": ("json", write_lines, {"has_end": False}),
    "json array": ("json", write_array, {"has_end": False}),
    "text": ("text", write_text, {"has_end": False, "table": TEXTS}),
    "webdataset": ("webdataset", write_members, {"has_end": False, "table": MEMBERS}),
    "tfrecord": ("tfrecord", write_examples, {"has_end": False, "table": EXAMPLES}),
    "compressed tfrecord": (
        "tfrecord",
        zipped(write_examples),
        {"has_end": False, "has_splits": False, "table": EXAMPLES},
    ),
}
SMALL: dict[str, Format] = {
    "csv": CsvFormat(block_bytes=300),
    "json": JsonFormat(block_bytes=700),
    "text": LinesFormat(block_bytes=100),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_formats_keep_the_contract(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_SPLIT_ROWS", 17)
    monkeypatch.setattr(webdataset, "SPLIT_ROWS", 17)
    monkeypatch.setattr(avro, "SPLIT_BYTES", 200)
    format, write, more = SHIPPED[name]
    check_format(SMALL.get(format, FORMATS[format]), write, **more)


def test_compressed_text_keeps_the_contract(tmp_path: Path) -> None:
    zipped(pyarrow.csv.write_csv)(TABLE, tmp_path / "a.csv.gz")
    check_format(SMALL["csv"], tmp_path / "a.csv.gz", has_end=False, has_splits=False)


def test_the_format_to_copy_keeps_the_contract(tmp_path: Path) -> None:
    paths = [tmp_path / "a.records", tmp_path / "b.records", tmp_path / "c.records"]
    for path, (start, rows) in zip(paths, [(0, 23), (23, 0), (23, 37)], strict=True):
        write_records(RECORDS.slice(start, rows), path)
    check_format(RecordsFormat(split_rows=17), paths, table=RECORDS)


# ---------------------------------------------------------------------------------- formats that break it


class Miscounted(RecordsFormat):
    def footer(self, store: Store, file: File) -> Footer:
        return dataclasses.replace(RecordsFormat.footer(self, store, file), num_rows=59)


class Renumbered(RecordsFormat):
    def footer(self, store: Store, file: File) -> Footer:
        footer = RecordsFormat.footer(self, store, file)
        return dataclasses.replace(footer, splits=footer.splits[::-1])


class FromTheStart(RecordsFormat):
    def read(
        self, store: Store, footer: Footer, split: Split, schema: pa.Schema, offset_rows: int = 0
    ) -> Iterator[pa.RecordBatch]:
        return RecordsFormat.read(self, store, footer, split, schema)


class AllColumns(RecordsFormat):
    def read(
        self, store: Store, footer: Footer, split: Split, schema: pa.Schema, offset_rows: int = 0
    ) -> Iterator[pa.RecordBatch]:
        return RecordsFormat.read(self, store, footer, split, SCHEMA, offset_rows)


class FirstSplitAgain(RecordsFormat):
    def ranges(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[Range]:
        return RecordsFormat.ranges(self, footer, dataclasses.replace(split, index=0), columns)


class OneRecordShort(RecordsFormat):
    def ranges(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[Range]:
        ((start, stop),) = RecordsFormat.ranges(self, footer, split, columns)
        return [Range(start, stop - RECORD.itemsize)]


class Silent(RecordsFormat):
    def column_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        return 0

    def scratch_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        return 0


class Trusting(RecordsFormat):
    def footer(self, store: Store, file: File) -> Footer:
        """Goes by the size of the file, so that nothing tells that it is cut."""
        rows = max(0, file.size - HEADER.size) // RECORD.itemsize
        splits = [Split(index, min(17, rows - 17 * index), 17 * 16) for index in range(-(-rows // 17))]
        return Footer(file, SCHEMA, tuple(splits), rows)


class Unequal(RecordsFormat):
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (Miscounted, "splits have .* rows, the footer tells 59"),
        (Renumbered, r"splits have the numbers \[3, 2, 1, 0\]"),
        (FromTheStart, "from row 1 on: found 17 of 17 rows"),
        (AllColumns, r"columns \[\] of split 0 .*: found id"),
        (FirstSplitAgain, "split 1 from row 0 on.*row 0 is 0, expected 17"),
        (OneRecordShort, "found 16 of 17 rows"),
        (Silent, r"a batch takes 272 bytes, the format announced 0"),
        (Trusting, r"a file cut to 0 of 976 bytes gave 0 rows; expected an error"),
        (Unequal, "make it a frozen dataclass"),
        (
            lambda split_rows: RecordsFormat(),
            r"each file has one split, .*: pass a format whose options make",
        ),
    ],
)
def test_a_format_that_breaks_the_contract_is_found(format: type[RecordsFormat], text: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s){text}"):
        check_format(format(split_rows=17), write_records, table=RECORDS)


class Unsuspecting(RecordsFormat):
    """Decodes what it finds, as many rows as that is."""

    def footer(self, store: Store, file: File) -> Footer:
        (header,) = store.fetch(file, [(0, HEADER.size)])
        rows = HEADER.unpack(header)[1]
        return Footer(file, SCHEMA, (Split(0, rows, 16 * rows),), rows)

    def read(
        self, store: Store, footer: Footer, split: Split, schema: pa.Schema, offset_rows: int = 0
    ) -> Iterator[pa.RecordBatch]:
        with store.open(footer.file) as source:
            source.seek(HEADER.size)
            data = source.read_buffer((footer.file.size - HEADER.size) // 16 * 16)
        records = np.frombuffer(data, RECORD)[offset_rows:]
        columns = [pa.array(records[name]) for name in SCHEMA.names]
        yield from conform(pa.record_batch(columns, SCHEMA), schema)


def test_a_split_with_fewer_rows_than_its_footer_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.records"
    write_records(RECORDS, path)
    path.write_bytes(path.read_bytes()[: HEADER.size + 16 * 21])
    found = af.read(path, format=Unsuspecting())
    assert found.take(21).to_table().num_rows == 21
    with pytest.raises(af.SourceError, match="expected 60 rows as the footer says, found 21") as caught:
        found.to_table()
    assert (caught.value.file, caught.value.row_group) == (str(path), 0)


class Refusing(RecordsFormat):
    """Raises an error with a text alone."""

    def footer(self, store: Store, file: File) -> Footer:
        raise af.SourceError("no such word")


class Overflowing(RecordsFormat):
    """Has a mistake of its own."""

    def ranges(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[Range]:
        raise OverflowError("too large")


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (Refusing, r"^read: no such word \(in file '.*a\.records'\)$"),
        (
            Overflowing,
            r"^read: cannot read it: OverflowError: too large; .* that this format does not read",
        ),
    ],
)
def test_errors_of_a_format_say_where(format: type[RecordsFormat], text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.records"
    write_records(RECORDS, path)
    with pytest.raises(af.SourceError, match=text) as caught:
        af.read(path, format=format()).to_table()
    assert caught.value.file == str(path)


def test_a_global_shuffle_names_the_capability(tmp_path: Path) -> None:
    write_records(RECORDS, tmp_path / "a.records")
    ds = af.read(tmp_path, format=RecordsFormat()).shuffle()
    refused(af.PlanError, ds.to_table, "methods of arrowflow.formats.InPlaceFormat")


# --------------------------------------------------------------------------------------- as users read it


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of a format, as an installer leaves it: metadata beside the modules."""
    info = tmp_path / "installed" / "records-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: records\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[arrowflow.formats]\nrecords = tests.formats.records_format:RecordsFormat\n"
    )
    monkeypatch.syspath_prepend(info.parent)
    importlib.invalidate_caches()


@pytest.mark.usefixtures("installed")
def test_an_entry_point_installs_a_format(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "part=7"
    folder.mkdir(parents=True)
    write_records(RECORDS, folder / "a.records")
    (folder / "notes.txt").write_text("no records")
    found = af.read(
        tmp_path / "data", format="records", columns=["id", "part"], filter=pl.col("id") > 57, split_rows=9
    )
    assert found.num_rows is None
    assert found.to_table().to_pydict() == {"id": [58, 59], "part": [7, 7]}
    assert "read(" in repr(found) and " of records" in repr(found)
    assert af.read(folder, format="records").num_rows == 60
    memory = fsspec.filesystem("memory")
    memory.pipe("/records/a.records", (folder / "a.records").read_bytes())
    assert af.read("/records", format="records", filesystem=memory).to_table().equals(RECORDS)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("format", "options", "text"),
    [
        (
            "records",
            {"rows": 9},
            "read: the format 'records' has no option 'rows'; did you mean 'split_rows'",
        ),
        ("records", {"split_rows": 0}, "split_rows is at least 1, got 0"),
        ("records", {"columns": []}, "at least one column, got []; leave it out to read all"),
        (
            "parquet",
            {"stored": set()},
            "read_parquet: the format 'parquet' has no option 'stored'; it has no",
        ),
        (
            "csv",
            {"types": SCHEMA},
            "no option 'types'; known options: block_bytes, encoding, delimiter, quote",
        ),
        ("record", {}, "there is no format 'record'; did you mean 'records'"),
        (3, {}, "format is a name, or an arrowflow.formats.Format, got 3"),
    ],
)
def test_options_of_a_format_are_checked(
    tmp_path: Path, format: Any, options: dict[str, Any], text: str
) -> None:
    refused(af.PlanError, lambda: af.read(tmp_path, format=format, **options), text)


def test_states_and_caches_know_the_options(tmp_path: Path) -> None:
    path, root = tmp_path / "a.records", tmp_path / "cache"
    write_records(RECORDS, path)
    with iter(af.read(path, format=RecordsFormat(split_rows=9))) as batches:
        next(batches)
        state = batches.state_dict()
    with iter(af.read(path, format=RecordsFormat(), split_rows=9)) as batches:
        batches.load_state_dict(state)
        assert next(batches).column("id").to_pylist() == list(range(9, 18))
    with (
        iter(af.read(path, format=RecordsFormat())) as batches,
        pytest.raises(af.StateError, match="split_rows"),
    ):
        batches.load_state_dict(state)
    for rows in (9, 9, 8):
        assert af.read(path, format=RecordsFormat(split_rows=rows)).cache(root).to_table().equals(RECORDS)
    assert len(af.cache_info(root)) == 2


SAME: dict[str, Callable[[Path], tuple[af.Dataset, af.Dataset]]] = {
    "parquet": lambda path: (af.read_parquet(path), af.read(path, format="parquet")),
    "ipc": lambda path: (af.read_ipc(path, columns="x"), af.read(path, format="ipc", columns="x")),
    "avro": lambda path: (af.read_avro(path), af.read(path, format="avro")),
    "orc": lambda path: (af.read_orc(path), af.read(path, format="orc")),
    "csv": lambda path: (
        af.read_csv(path, null_values="-", column_names=["x"], block_bytes="1KiB"),
        af.read(path, format="csv", null_values=["-"], column_names=("x",), block_bytes=1024),
    ),
    "json": lambda path: (af.read_json(path), af.read(path, format="json", block_bytes="4MiB")),
    "text": lambda path: (af.read_text(path), af.read(path, format="text")),
    "webdataset": lambda path: (af.read_webdataset(path), af.read(path, format="webdataset")),
    "tfrecord": lambda path: (af.read_tfrecord(path, raw=True), af.read(path, format="tfrecord", raw=True)),
}


@pytest.mark.parametrize("format", FORMATS)
def test_a_function_for_one_format_is_read_with_its_name(format: str, tmp_path: Path) -> None:
    assert format in SAME, "add the function for this format to SAME"
    own, general = SAME[format](tmp_path)
    assert own == general
    assert any(format == checked for checked, _, _ in SHIPPED.values()), "add a writer for it to SHIPPED"


def test_raw_records_have_no_schema_to_give(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(framed([b"one"]))
    with pytest.raises(af.PlanError, match="no schema= to give"):
        _ = af.read(tmp_path / "a", format="tfrecord", raw=True, schema=SCHEMA).schema
