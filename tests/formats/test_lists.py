"""The lists that name every format: what tests run, the rows of the documentation, and what states depend on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import arrowflow as af
from arrowflow.formats import FORMATS
from arrowflow.formats.avro import avro
from arrowflow.formats.tfrecord import framing
from arrowflow.formats.webdataset import webdataset
from tests.fuzz.damaged_reader import REFERENCES
from tests.fuzz.good_files import good_files

DOCS = Path(__file__).resolve().parents[2] / "docs"

NOT_DAMAGED = {
    "orc": "Arrow's reader ends the process on some damaged files: see its README",
    "avro": "Polars' reader is the only other one here: tests/formats/avro damages files",
    "text": "any bytes are lines, or no UTF-8: tests/formats/text has both",
    "webdataset": "its members are files of others: tests/formats/webdataset damages headers",
}
"""Formats that the fuzzer of damaged files leaves out, with a reason."""

SPLITS: dict[str, Any] = {
    "parquet": "row groups of the file",
    "ipc": "record batches of the file",
    "orc": "stripes of the file",
    "avro": (1 << 20, 1 << 10),
    "csv": "block_bytes, an option, which states name",
    "json": "block_bytes, an option, which states name",
    "text": "block_bytes, an option, which states name",
    "tfrecord": (1 << 20, 1 << 10, 4 << 20, 1 << 16, 1 << 20),
    "webdataset": (4 << 20, 1 << 10),
}
"""What decides where the splits of a file end."""


def test_every_format_has_a_function_in_the_documentation() -> None:
    operators = (DOCS / "operators.md").read_text(encoding="utf-8")
    reference = (DOCS / "reference" / "sources.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`read_(\w+)`", "".join(re.findall(r"^\|[^|]*\|", operators, re.MULTILINE))))
    for name in FORMATS:
        assert callable(getattr(af, f"read_{name}"))
        assert name in named, "docs/operators.md: the table of sources"
        assert f"::: arrowflow.read_{name}\n" in reference, "docs/reference/sources.md"


def test_the_fuzzer_damages_files_of_every_format() -> None:
    """`good_files` in `tests/fuzz/good_files.py`, and `REFERENCES` in `tests/fuzz/damaged_reader.py`."""
    assert good_files().keys() == REFERENCES.keys()
    assert sorted([*good_files(), *NOT_DAMAGED]) == sorted(FORMATS)


def test_splits_end_where_they_did_in_earlier_versions() -> None:
    """States name splits by number. With other borders a state of an earlier version would go on at another row.

    Whoever changes one of these makes it an option, or raises `VERSION` in `arrowflow/state.py`.
    """
    limits = framing.SPLIT_BYTES, framing.SPLIT_ROWS, framing.MAX_SPLIT_BYTES, framing.MAX_SPLIT_ROWS
    today = {
        "avro": (avro.SPLIT_BYTES, avro._MAX_SPLIT_BLOCKS),
        "tfrecord": (*limits, framing.MAX_SPLIT_CELLS),
        "webdataset": (webdataset.SPLIT_BYTES, webdataset.SPLIT_ROWS),
    }
    assert SPLITS.keys() == FORMATS.keys()
    assert {name: rule for name, rule in SPLITS.items() if isinstance(rule, tuple)} == today


@pytest.mark.parametrize("name", [name for name, rule in SPLITS.items() if "block_bytes" in rule])
def test_a_state_names_the_size_of_blocks(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{name.replace('text', 'txt')}"
    path.write_text('{"x": 1}\n' * 100)
    loaders = [af.read(path, format=name, block_bytes=size).batch(10).to_polars() for size in (1_000, 2_000)]
    next(iter(loaders[0]))
    with pytest.raises(af.StateError, match="block_bytes"):
        loaders[1].load_state_dict(loaders[0].state_dict())
