"""Very many keys of JSON: what would take too much memory is an error before pyarrow is asked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson
import pytest

import arrowflow as af
from arrowflow.errors import BudgetError
from arrowflow.formats.json import keys as json_keys
from arrowflow.formats.json.keys import num_keys

USERS = [{"users": {f"user {number:06} of all": number}} for number in range(9000)]


def written(folder: Path, rows: list[Any], *, as_array: bool = False) -> Path:
    path = folder / "a.json"
    path.write_text(json.dumps(rows) if as_array else "".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize("of_lists", [False, True])
def test_keys_that_are_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_array: bool, of_lists: bool
) -> None:
    """pyarrow would take gigabytes for a file of 400 kB."""
    rows: list[Any] = [{"users": [row["users"] for row in USERS]}] if of_lists else USERS
    path = written(tmp_path, rows, as_array=as_array)
    with monkeypatch.context() as patched:
        patched.delattr(pajson, "read_json")
        with pytest.raises(BudgetError, match=r"9,\d{3} different keys.*pass schema= .*a\.json"):
            af.read_json(path).to_table()
    texts = af.read_json(path, schema=pa.schema({"users": pa.string()})).to_table()["users"].to_pylist()
    assert [json.loads(text) for text in texts] == [row["users"] for row in rows]


def test_as_many_keys_as_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, USERS[:100])
    keys, objects = 101, 200
    most = keys * (objects * json_keys._VALUE_BYTES + json_keys.KEY_BYTES)
    monkeypatch.setattr(json_keys, "MOST_BYTES", most)
    monkeypatch.setattr(json_keys, "_PARTS", 1000)  # so that a look at some parts does not settle it
    assert af.read_json(path).to_table().to_pylist()[7]["users"]["user 000007 of all"] == 7
    monkeypatch.setattr(json_keys, "MOST_BYTES", most - 1)
    with pytest.raises(BudgetError, match=re.escape(f"{keys} different keys")):
        af.read_json(path).to_table()


def test_colons_and_quotes_in_values_are_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"time": f"12:{number:04}", "text": f'"key {number}" : no'} for number in range(3000)]
    monkeypatch.setattr(json_keys, "MOST_BYTES", 10 * 3000 * json_keys._VALUE_BYTES)
    assert af.read_json(written(tmp_path, rows)).to_table().to_pylist() == rows


def test_lists_of_objects_without_their_keys(tmp_path: Path) -> None:
    """A text of 3 bytes would become values of 300 keys."""
    full = {"list": [{f"k{number}": number for number in range(300)}]}
    path = written(tmp_path, [full, {"list": [{}] * 200_000}])
    inferred = pa.schema({"list": pa.list_(pa.struct({f"k{number}": pa.int64() for number in range(300)}))})
    for options in ({}, {"schema": inferred}):
        with pytest.raises(BudgetError, match=r"200,00\d objects.*a\.json"):
            af.read_json(path, **options).to_table()
    small = written(tmp_path, [full, {"list": [{}] * 2000}])
    for options in ({}, {"schema": inferred}):
        rows = af.read_json(small, **options).to_table()["list"].combine_chunks()
        assert len(rows.values) == 2001 and rows.values.field(0).null_count == 2000


def test_decoding_very_many_keys_announces_its_memory(tmp_path: Path) -> None:
    def of(keys: int) -> af.Dataset:
        path = written(tmp_path, [{"a": {f"k{number}": number for number in range(keys)}}])
        return af.read_json(path).with_options(af.Options(ram_budget="32MiB"))

    assert of(4).to_table().num_rows == 1
    with pytest.raises(BudgetError, match="under the least that this pipeline needs"):
        of(20_000).to_table()


def test_number_of_keys() -> None:
    inner = pa.struct({"a": pa.int64(), "b": pa.list_(pa.struct({"c": pa.int8(), "d": pa.int8()}))})
    assert num_keys(inner) == num_keys(pa.list_(inner), of_lists=True) == 3
    assert num_keys(inner, of_lists=True) == 2
    assert num_keys(pa.list_(pa.list_(inner)), of_lists=True) == 3
    for plain in (pa.int8(), pa.list_(pa.int8()), pa.list_(pa.list_(pa.int8()))):
        assert num_keys(plain) == 1 and num_keys(plain, of_lists=True) == 0
