"""JSON: lines and arrays give the objects that were written for any block size; the rest is an error that says where."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.errors import SchemaError, SourceError
from arrowflow.formats.json.json import JsonFormat
from arrowflow.testing import check_dataset
from tests import warm
from tests.formats.csv.test_csv import compress, refused, write
from tests.formats.reading import KINDS, on_file_system, open_footer, read_all, read_split

ROWS = 30
TEXTS = ("plain", 'a "quoted" \\ one', "two\nlines", "[{,}]", "é \0", "\\", '\\"')
TABLE = pa.table(
    {
        "row": pa.array(range(ROWS), pa.int64()),
        "x": [None if i % 5 == 0 else i / 4 for i in range(ROWS)],
        "text": [None if i % 8 == 7 else TEXTS[i % 8] for i in range(ROWS)],
        "list": [None if i % 4 == 0 else list(range(i % 4)) for i in range(ROWS)],
        "struct": [{"a": i, "b": [{"c": str(i)}] * (i % 3)} for i in range(ROWS)],
        "yes": [i % 3 == 0 for i in range(ROWS)],
    }
)
BLOCKS = (1, 100, 1 << 20)
SHAPES = ("lines", "lines, not ended", "lines with blank ones", "array", "array on lines", "indented array")


def as_json(objects: list[Any], shape: str = "lines") -> bytes:
    if shape == "indented objects":
        return "\n".join(
            json.dumps(each, indent=1 + number % 4) for number, each in enumerate(objects)
        ).encode()
    if shape == "indented array":
        return json.dumps(objects, indent=2).encode() + b" \n"
    separator = {"array": ",", "array on lines": "\n,\n", "lines with blank ones": "\n \r\n\n"}.get(
        shape, "\n"
    )
    text = separator.join(json.dumps(each, ensure_ascii=shape == "lines") for each in objects)
    return (f"[{text}]" if "array" in shape else text + "\n" * (shape != "lines, not ended")).encode()


def as_written(objects: list[dict[str, Any]], number: int) -> dict[str, Any]:
    """Leaves out every third row's nulls, as some writers do."""
    return {key: value for key, value in objects[number].items() if value is not None or number % 3 != 1}


OBJECTS = [as_written(TABLE.to_pylist(), number) for number in range(ROWS)]


def read(folder: Path, data: bytes, **options: Any) -> af.Dataset:
    return af.read_json(write(folder, data, "a.json"), **options)


# ----------------------------------------------------------------------------------------- the same rows


@pytest.mark.parametrize("shape", [*SHAPES, "indented objects"])
def test_any_shape_and_block_size(tmp_path: Path, shape: str) -> None:
    for suffix, kinds, sizes in (
        ("", KINDS, BLOCKS),
        (".gz", ("mapped", "fsspec"), (1, 1 << 20)),
        (".zst", ("mapped",), (100,)),
    ):
        path = write(tmp_path, as_json(OBJECTS, shape), f"a.json{suffix}")
        for kind, block_bytes in itertools.product(kinds, sizes):
            format = JsonFormat(block_bytes=block_bytes)
            assert read_all(format, path, kind=kind).equals(TABLE), (suffix, kind, block_bytes)
            if block_bytes == 1:
                assert len(open_footer(format, path, kind)[1].splits) == (1 if suffix else ROWS)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("a.json", "array"), ("a.jsonl", "lines"), ("a.json.gz", "array"), ("b.ndjson", "indented objects")],
)
def test_the_rows_after_any_row(tmp_path: Path, name: str, shape: str) -> None:
    format = JsonFormat(block_bytes=500)
    wanted = TABLE.select(["list", "row"]).schema
    store, footer = open_footer(format, write(tmp_path, as_json(OBJECTS, shape), name))
    before = 0
    for split in footer.splits:
        for offset in (0, 1, split.num_rows // 2, split.num_rows):
            found = read_split(format, store, footer, split, wanted, offset)
            assert found.equals(TABLE.select(wanted.names).slice(before + offset, split.num_rows - offset))
        before += split.num_rows


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 99) | st.text(st.sampled_from('ab"\\[]{},\n\0é'), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from('a"\\]'), inner, max_size=2),
    max_leaves=5,
)


@given(
    values=st.lists(VALUES, max_size=6),
    shape=st.sampled_from(SHAPES),
    block_bytes=st.sampled_from([1, 5, 40]),
    window=st.sampled_from([1, 7, 1 << 20]),
)
def test_records_end_where_they_do(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], shape: str, block_bytes: int, window: int
) -> None:
    """Whatever lies in columns that are not read, blocks hold whole objects."""
    objects = [{"row": number, "other": value} for number, value in enumerate(values)]
    path = write(tmp_path_factory.mktemp("json"), as_json(objects, shape), "a.json")
    format = JsonFormat(block_bytes=block_bytes).typed(pa.schema({"row": pa.int64()}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arrowflow.formats.text.blocks._WINDOW_BYTES", window)
        found = read_all(format, path)
    assert found.column("row").to_pylist() == list(range(len(values)))


# -------------------------------------------------------------------------------------------- pipelines


PIPELINES: dict[str, Callable[[af.Dataset], af.Dataset]] = {
    "rows": lambda ds: ds.filter(pl.col("row") > 1).select("text", "struct").skip(2).take(18).batch(5),
    "a .shuffle and a .repeat": lambda ds: ds.shuffle(100, seed=3).repeat(2).batch(9),
}


@pytest.mark.parametrize("kind", ["local", "fsspec", pytest.param("native", marks=pytest.mark.slow)])
def test_contracts(tmp_path: Path, kind: str) -> None:
    """Files of several blocks, one of them compressed, on a file system."""
    write(tmp_path, as_json(OBJECTS[:10], "indented array"), "0.json")
    write(tmp_path, as_json(OBJECTS[10:20]), "1.jsonl")
    write(tmp_path, as_json(OBJECTS[20:25]), "2.ndjson.gz")
    make = partial(af.read_json, **on_file_system(kind, tmp_path), block_bytes=400)
    assert make().to_table().equals(TABLE.slice(0, 25))
    assert make().num_rows == 25
    if kind == "local":
        check_dataset(lambda: PIPELINES["rows"](make()))
    pipeline = PIPELINES["a .shuffle and a .repeat"]
    check_dataset(lambda: pipeline(make()), epochs_differ=True, in_full=False)


def test_only_wanted_columns_are_converted(tmp_path: Path) -> None:
    data = as_json([{"good": 1, "bad": 2}, {"good": 2, "bad": "no number"}])
    schema = pa.schema({"good": pa.int64(), "bad": pa.int64()})
    assert read(tmp_path, data, schema=schema, columns=["good"]).to_table().to_pydict() == {"good": [1, 2]}
    refused(lambda: read(tmp_path, data, schema=schema), SchemaError, r"Column\(/bad\) changed .* row 2")


# ------------------------------------------------------------------------------------------------ types


def test_types_are_those_of_the_first_file(tmp_path: Path) -> None:
    write(tmp_path, as_json([{"a": 1.5, "b": "x"}, {"a": None}]), "0.json")
    write(tmp_path, as_json([{"more": 1, "b": "y"}, {"a": 2}], "array"), "1.json")
    found = af.read_json(tmp_path).to_table()
    assert found.schema == pa.schema({"a": pa.float64(), "b": pa.string()})
    assert found.to_pydict() == {"a": [1.5, None, None, 2.0], "b": ["x", None, "y", None]}


@pytest.mark.parametrize("shape", ["lines", "array"])
@pytest.mark.parametrize("value", ["text", 1.5, [1], 1 << 70])
def test_a_value_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any, shape: str
) -> None:
    monkeypatch.setattr("arrowflow.formats.json.json.SAMPLE_BYTES", 100)
    data = as_json([{"a": 1}] * 120 + [{"a": value}], shape)
    error = refused(lambda: read(tmp_path, data), SchemaError, "take a type in schema=")
    assert error.operator == "read_json" and error.file.endswith("a.json") and error.row_group == 0
    if not isinstance(value, (int, float)):
        assert "row 121" in str(error)


def test_texts_that_look_like_times_are_texts(tmp_path: Path) -> None:
    data = as_json([{"a": "2024-01-02", "b": [{"c": "2024-01-02T03:04:05Z"}]}] + [{"a": "soon", "b": []}] * 2)
    found = read(tmp_path, data, block_bytes=1).to_table()
    assert found.column("a").to_pylist() == ["2024-01-02", "soon", "soon"]
    assert found.column("b").to_pylist()[0] == [{"c": "2024-01-02T03:04:05Z"}]
    times = pa.schema({"a": pa.timestamp("us")})
    assert read(tmp_path, as_json([{"a": "2024-01-02"}]), schema=times).to_table().schema == times


def test_types_of_lists(tmp_path: Path) -> None:
    data = as_json([{"a": [1, 2], "b": [[1.5]], "c": {"d": [1]}}, {"a": None, "b": [], "c": None}])
    schema = pa.schema(
        {
            "a": pa.list_(pa.int16(), 2),
            "b": pa.large_list(pa.list_(pa.float32())),
            "c": pa.struct({"d": pa.large_list(pa.int8())}),
        }
    )
    found = read(tmp_path, data, schema=schema, block_bytes=1).to_table()
    assert found.schema.types == [
        schema.types[0],
        pa.list_(pa.list_(pa.float32())),
        pa.struct({"d": pa.list_(pa.int8())}),
    ]
    assert found.to_pydict() == {"a": [[1, 2], None], "b": [[[1.5]], []], "c": [{"d": [1]}, None]}
    three = pa.schema({"a": pa.list_(pa.int16(), 3)})
    refused(lambda: read(tmp_path, data, schema=three), SchemaError, "take a type in schema=")
    maps = pa.schema({"a": pa.map_(pa.string(), pa.int8())})
    refused(lambda: read(tmp_path, data, schema=maps), SchemaError, "map")


# -------------------------------------------------------------------------------------------- odd files

ODD: dict[str, tuple[bytes, list[Any]]] = {
    "byte-order mark": (b'\xef\xbb\xbf{"a": 1}\n', [1]),
    "returns": (b'{"a": 1}\r\n\r\n{"a": 2}\r\n', [1, 2]),
    "blanks in front": (b' \n\t{"a": 1}\n  {"a": 2}', [1, 2]),
    "null characters": (b'{"a": "x\\u0000y"}\n', ["x\0y"]),
    "empty objects": (b'{"a": 1}\n{}\n', [1, None]),
    "an array of one": (b' [ {"a": 1} ] ', [1]),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_files(tmp_path: Path, name: str) -> None:
    data, expected = ODD[name]
    for block_bytes in (1, 1 << 20):
        assert read(tmp_path, data, block_bytes=block_bytes).to_table().to_pydict() == {"a": expected}


BAD: dict[str, tuple[bytes, type[Exception], str]] = {
    "empty": (b"", SourceError, "no rows.*pass schema="),
    "blank": (b"\n \n", SourceError, "no rows.*pass schema="),
    "an empty array": (b"[]", SourceError, "no rows.*pass schema="),
    "cut off": (b'{"a": 1}\n{"a"', SourceError, "row 2"),
    "two on a line": (b'{"a": 1} {"a": 2}\n', SourceError, "expected 1 rows behind row 0.* found 2"),
    "one on two lines, the next on one": (b'{"a"\n: 1}\n{"a": 1}\n', SourceError, "row 1"),
    "no object": (b'{"a": 1}\n3\n', SchemaError, "from object to number in row 2"),
    "a key twice": (b'{"a": 1, "a": 2}\n', SourceError, "twice in row 1"),
    "no UTF-8": (b'{"a": "\xff"}\n', SourceError, "UTF8"),
    "no UTF-8 in a key": (b'{"\xff": 1}\n', SourceError, "utf-8"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), SourceError, "UTF-16"),
    "a control character in front": (b'\x0b{"a": 1}\n', SourceError, "row 1"),
    "a line of a control character": (b'\x0b\n{"a": 1}\n', SourceError, "row 1"),
    "a null character": (b'{"a": "x\0y"}\n', SourceError, "row 1"),
    "an array that is not closed": (b'[{"a": 1}, {"a": 2}', SourceError, "no `]`"),
    "an array cut behind a comma": (b'[{"a": 1},', SourceError, "no `]`"),
    "an array closed by a row's list": (b'[{"a": [1]', SourceError, "no `]`"),
    "text behind the array": (b'[{"a": 1}] {"a": 2}', SourceError, "nothing behind the `]`"),
    "a comma too many": (b'[{"a": 1}, , {"a": 2}]', SourceError, "an object in front of each comma"),
    "a comma at the end": (b'[{"a": 1},]', SourceError, "an object in front of each comma"),
    "a comma too many, no blanks": (b'[{"a": 1},,{"a": 2}]', SourceError, "an object in front of each comma"),
    "numbers in an array": (b"[1, 2]", SchemaError, "from object to number"),
    "mixed up brackets": (b'[{"a": [1}], {"a": 2}]', SourceError, "row 1"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "column"),
    [
        ([{"id": 2**64 - 1}, {"id": 2**53 + 1}], "id"),
        ([{}, {"a": {"b": [1, None]}}, {"a": {"b": [-(2**63) - 1]}}], "a.b[]"),
        ([{"a": [{"b": 10**40}], "c": 1.5}], "a[].b"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whole_numbers_that_would_be_rounded(tmp_path: Path, rows: list[dict[str, Any]], column: str) -> None:
    text = f"column '{re.escape(column)}': .*schema= with uint64"
    for number, shape in enumerate(("lines", "indented array")):
        path = write(tmp_path, as_json(rows, shape), f"{number}.json")
        refused(partial(af.read_json, path), SchemaError, text)
        found = af.read_json(path, schema={"id": pa.uint64()}).to_table().column("id").to_pylist()
        assert found == [row.get("id") for row in rows]


def test_numbers_that_are_no_whole_ones(tmp_path: Path) -> None:
    """A column with fractions is one, what fits is kept, and texts are texts."""
    rows = [{"a": 1.5, "b": 2**63 - 1, "c": str(10**30)}, {"a": 2**64 - 1, "b": -(2**63)}]
    table = read(tmp_path, as_json(rows)).to_table()
    assert list(map(str, table.schema.types)) == ["double", "int64", "string"]
    assert table.column("b").to_pylist() == [2**63 - 1, -(2**63)]


@pytest.mark.parametrize("name", BAD)
def test_bad_files(tmp_path: Path, name: str) -> None:
    data, kind, text = BAD[name]
    error = refused(lambda: read(tmp_path, data), kind, text)
    assert (error.operator, error.file) == ("read_json", str(tmp_path / "a.json"))


def test_files_without_rows_among_others(tmp_path: Path) -> None:
    write(tmp_path, b'{"a": 1}\n', "0.json")
    for data in (b"", b"\n", b"[]", b" [ \n ] \n"):
        write(tmp_path, data, "1.json")
        assert af.read_json(tmp_path).to_table().to_pydict() == {"a": [1]}
        assert af.read_json(tmp_path / "1.json", schema=pa.schema({"a": pa.int8()})).num_rows == 0


ZEROS = bytes(5_000)
"""What a file system has in place of a block that was lost."""


@pytest.mark.parametrize(
    "data",
    [
        ZEROS,
        b'{"a": 1}\n' + ZEROS,
        b'{"a": 1}\n' + ZEROS + b'\n{"a": 2}\n',
        b'[{"a": 1}]' + ZEROS,
        b"[" + ZEROS + b"]",
        b'{\n"a": 1\n}\n' * 10_000 + ZEROS,
    ],
    ids=["alone", "at the end", "between", "behind an array", "in an array", "behind objects"],
)
def test_zeros_are_no_blanks(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path, data, "a.json")
    for block_bytes in (1 << 20, 16):
        dataset = af.read_json(path, schema=pa.schema({"a": pa.int8()}), block_bytes=block_bytes)
        with pytest.raises(SourceError, match=r"document is empty|nothing behind|no `}`"):
            dataset.to_table()


def test_zeros_in_an_array_are_a_bad_row(tmp_path: Path) -> None:
    path = write(tmp_path, b'[{"a": 1},' + ZEROS + b',{"a": 3}]', "a.json")
    dataset = af.read_json(path, schema=pa.schema({"a": pa.int8()}), on_error="skip")
    assert dataset.to_table().to_pydict() == {"a": [1, 3]}


def test_truncated_compressed_files(tmp_path: Path) -> None:
    for suffix in (".gz", ".zst"):
        whole = compress(as_json(OBJECTS), suffix)
        path = tmp_path / f"a.jsonl{suffix}"
        path.write_bytes(whole[: len(whole) // 2])
        error = refused(lambda path=path: af.read_json(path), SourceError, "cannot read it")  # type: ignore[misc]
        assert error.file == str(path)


# ----------------------------------------------------------------------------------------------- corpus


@pytest.mark.corpus
@pytest.mark.parametrize("block_bytes", ["4MiB", "10KiB"])
def test_corpus(corpus: Path, block_bytes: str) -> None:
    """A title of a film is a number, `1776`: that is an error unless it is not read."""
    path = corpus / "tables" / "movies.json"
    refused(
        lambda: af.read_json(path), SchemaError, r"Column\(/Title\) changed from string to number in row 22"
    )
    schema = pa.schema({"US Gross": pa.int64(), "Release Date": pa.string(), "IMDB Rating": pa.float64()})
    found = af.read_json(path, schema=schema, block_bytes=block_bytes).to_table()
    expected = json.loads(path.read_bytes())
    assert found.to_pylist() == [{name: row[name] for name in schema.names} for row in expected]


# --- what ends the process of pyarrow's own reader ---------------------------------------------------------

READ = """
import sys
import pyarrow as pa
import arrowflow as af
for path in sys.argv[1:]:
    for schema in (None, pa.schema({"x": pa.int64()})):
        try:
            print("rows", af.read_json(path, schema=schema).to_table().to_pydict(), flush=True)
        except af.ArrowflowError as error:
            print(type(error).__name__, error, flush=True)
"""


def read_apart(*paths: Path) -> list[str]:
    """Reads files in a process of its own: by the types of the file, and by given ones."""
    status, out, errors = warm.plain().run(READ, *map(str, paths))
    assert status == 0, errors
    return out.splitlines()


def test_rows_that_are_null(tmp_path: Path) -> None:
    texts = ['null\n{"x":1}\nnull\n', '  null\nnull\n{"x":1}', '[null,{"x":1}]', '{"x":1}\nnull\n']
    paths = [tmp_path / f"{number}.json" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    found = read_apart(*paths)
    assert found[::2] == found[1::2]
    assert found[::2] == [
        f"rows {{'x': {rows}}}" for rows in ([None, 1, None], [None, None, 1], [None, 1], [1, None])
    ]


def test_values_of_many_levels(tmp_path: Path) -> None:
    levels, paths = 10_000, []
    for number, (start, middle, end) in enumerate(
        (("[", "", "]"), ('{"a":', "1", "}"), ('[{"a":', "1", "}]"))
    ):
        body = f'{{"x":1,"y":{start * levels}{middle}{end * levels}}}'
        for name, text in (("lines", f"{body}\n"), ("array", f"[{body}]")):
            paths.append(tmp_path / f"{number}{name}.json")
            paths[-1].write_text(text)
    found = read_apart(*paths)
    assert all("nested deeper than 64 levels; pass schema=" in line for line in found[::2])
    assert set(found[1::2]) == {"rows {'x': [1]}"}


def test_levels_that_are_few_enough(tmp_path: Path) -> None:
    for levels in (63, 64):  # and the object around them
        path = write(tmp_path, f'{{"x":{"[" * levels}"[[[]]]"{"]" * levels}}}\n'.encode(), f"{levels}.json")
    assert af.read_json(tmp_path / "63.json").to_table().num_rows == 1
    refused(lambda: af.read_json(path), SourceError, "nested deeper")


# ------------------------------------------------------------------------------------- objects over several lines


def test_objects_over_several_lines_resume_and_leave_bad_ones_out(tmp_path: Path) -> None:
    objects = [{"x": number, "t": "} {\n"} for number in range(9)]
    path = write(tmp_path, "\n".join(json.dumps(each, indent=1) for each in objects).encode(), "a.json")
    check_dataset(lambda: af.read_json(path, block_bytes=40).batch(2))
    bad = path.read_bytes().replace(b'"x": 4', b'"x": "4"')
    kept = af.read_json(write(tmp_path, bad, "b.json"), on_error="skip").to_table()
    assert kept.to_pylist() == [each for each in objects if each["x"] != 4]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{\n"x": 1\n}\n{\n"x":', "the file is malformed"),
        ('{\n"x": 1\n}\n' * 9_000 + '{\n"x":', "the last object has no `}`"),
        ('{\n"x": 1\n}\n' * 9_000 + '}\n{"x": 2}\n', "the bracket at byte 99000 closes nothing"),
        ('{"x": 1\n{"x": 2}\n', "row 1; the file is malformed"),
        ('{"x": 1},\n{"x": 2},\n', "the file is malformed"),
        ("[1, 2]", "from object to number in row 1; rows are objects"),
        ("7\n", "from object to number in row 1; rows are objects"),
    ],
)
def test_other_shapes_are_told(tmp_path: Path, text: str, why: str) -> None:
    refused(lambda: af.read_json(write(tmp_path, text.encode(), "a.json")), af.ArrowflowError, why)


# ------------------------------------------------------------------------------------------ values of several kinds

MIXED = (
    '{"id": "a", "in": {"n": 1, "l": [1, "x", null, {"q": [1.50]}]}}',
    '{"id": 1, "in": {"n": "y"}}',
    '{"id": null}',
    "{}",
    '{"id": {"é": [1.0, "\\"\\\\"]}, "in": {"n": {}}, "other": 12345678901234567890}',
    '{"id": true, "in": null}',
)
ANY = pa.schema({"id": pa.string(), "in": pa.struct({"n": pa.string(), "l": pa.list_(pa.string())})})


@pytest.mark.parametrize("shape", ["lines", "array", "objects"])
def test_values_of_any_kind_come_as_their_text(tmp_path: Path, shape: str) -> None:
    text = "\n".join(MIXED)
    if shape == "array":
        text = f"[{','.join(MIXED)}]"
    elif shape == "objects":
        text = "\n".join(each.replace("{", "{\n", 1) for each in MIXED)
    path = write(tmp_path, text.encode(), "a.json")
    for block_bytes in BLOCKS:
        given = partial(af.read_json, path, schema=ANY, block_bytes=block_bytes)
        for found in (given(), given(on_error="skip")):
            assert found.to_table().to_pydict() == {
                "id": ["a", "1", None, None, '{"é": [1.0, "\\"\\\\"]}', "true"],
                "in": [
                    {"n": "1", "l": ["1", "x", None, '{"q": [1.50]}']},
                    {"n": "y", "l": None},
                    None,
                    None,
                    {"n": "{}", "l": None},
                    None,
                ],
            }
            assert found.skip(2).to_table().equals(found.to_table().slice(2))


def test_types_that_are_inferred_take_one_kind(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"id": "a"}\n{"id": 1}\n', "a.json")
    advice = r"column of|from string to number in row 2; .* pa.string\(\) takes values of any kind"
    refused(lambda: af.read_json(path), SchemaError, advice)
    assert af.read_json(path, schema={"id": pa.string()}).to_table().to_pydict() == {"id": ["a", "1"]}
    assert af.read_json(path, on_error="skip").to_table().to_pydict() == {"id": ["a"]}


@pytest.mark.parametrize(
    "more", ['{"id": 1', '{"id": 1 2}', '{"id": "x}', '{"id" 1}', "{\"id\": '1'}", '{"id": 1, "id": 2}']
)
def test_values_of_any_kind_beside_malformed_ones(tmp_path: Path, more: str) -> None:
    path = write(tmp_path, f'{{"id": "a"}}\n{{"id": 1}}\n{more}\n'.encode(), "a.json")
    schema = {"id": pa.string()}
    refused(lambda: af.read_json(path, schema=schema), SourceError, "row 3|truncated")
    assert af.read_json(path, schema=schema, on_error="skip").to_table().to_pydict() == {"id": ["a", "1"]}


NO_JSON = (
    '{"b":tru}',
    "[1,,2]",
    '{"b" 1}',
    '{"k":"\\q"}',
    '{"b":1,}',
    "[1 2]",
    "[1}",
    "01",
    "tru",
    "+1",
    "[Inf]x",
    "[-1{",
    '{"b":[1}',
)


@pytest.mark.parametrize("value", NO_JSON)
def test_text_that_is_no_json_does_not_come_as_json_text(tmp_path: Path, value: str) -> None:
    values = ("[]", '"y"', "{}", value, "[1, NaN, Inf]")
    path = write(tmp_path, "".join(f'{{"a": {each}}}\n' for each in values).encode(), "a.json")
    refused(lambda: af.read_json(path, schema={"a": pa.string()}), SourceError, "row 4|truncated")
    found = af.read_json(path, schema={"a": pa.string()}, on_error="skip").to_table()
    assert found.to_pydict() == {"a": ["[]", "y", "{}", "[1, NaN, Inf]"]}


# ------------------------------------------------------------------------------------- columns without a value


@pytest.mark.parametrize(
    "values",
    [
        [[], [None, None], [None], None],
        [[[]], [[None, None], [None]], [None, []]],
        [[{"b": [None, None]}, {}], [{"b": [None]}, {"b": None}]],
        [{"b": [None, None]}, {}, {"b": [None]}],
    ],
)
def test_lists_of_nothing_but_nulls(tmp_path: Path, values: list[Any]) -> None:
    """pyarrow makes too few nulls of them."""
    objects = [json.dumps({"a": value}) for value in values]
    expected = pl.read_ndjson("\n".join(objects).encode()).to_dicts()
    for text in ("\n".join(objects), f"[{','.join(objects)}]"):
        path = write(tmp_path, text.encode(), "a.json")
        for table in (af.read_json(path).to_table(), af.read_json(path, on_error="skip").to_table()):
            table.validate(full=True)
            assert table.to_pylist() == expected


@pytest.mark.parametrize("shape", ["lines", "array"])
def test_columns_that_are_empty_for_a_long_time(
    tmp_path: Path, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arrowflow.formats.json.json.SAMPLE_BYTES", 1_000)
    monkeypatch.setattr("arrowflow.formats.text.blocks._WINDOW_BYTES", 1_000)
    objects = ['{"a": 123456789, "b": null, "c": [], "d": {}, "e": [{"f": null}]}'] * 300
    objects.append('{"a": 1, "b": 7, "c": ["x"], "d": {"g": 1.5}, "e": [{"f": true}]}')
    text = "\n".join(objects) if shape == "lines" else f"[{','.join(objects)}]"
    found = af.read_json(write(tmp_path, text.encode(), "a.json"), block_bytes=1_000)
    assert found.schema == pa.schema(
        {
            "a": pa.int64(),
            "b": pa.int64(),
            "c": pa.list_(pa.string()),
            "d": pa.struct({"g": pa.float64()}),
            "e": pa.list_(pa.struct({"f": pa.bool_()})),
        }
    )
    assert found.skip(300).to_table().to_pylist() == [json.loads(objects[-1])]
