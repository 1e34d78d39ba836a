"""Files of other projects: rows equal to pyarrow's, or one typed error. Never a crash, a hang or wrong rows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arrowflow.formats import FORMATS, decoded_schema
from tests.formats.reading import KINDS, read_all

FOLDER = os.environ.get("ARROWFLOW_CORPUS")
pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not FOLDER, reason="ARROWFLOW_CORPUS does not name the folder of the corpus"),
]
ROOT = Path(FOLDER or "nowhere")
READ = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from arrowflow.errors import SourceError
from arrowflow.formats import FORMATS
from tests.formats.reading import read_all
format, kind = sys.argv[2:4]
for path in map(Path, sys.argv[4:]):
    try:
        print(path.stem, "rows", read_all(FORMATS[format], path, kind=kind).num_rows, flush=True)
    except SourceError as error:
        assert error.file, error
        said = str(error).replace("\\n", " ")
        print(path.stem, "refused", error.operator, "row group", error.row_group, said, flush=True)
"""


def files(folder: str, suffix: str) -> list[Path]:
    return sorted((ROOT / folder).glob(f"*{suffix}"))


@cache
def read_apart(format: str, folder: str, kind: str) -> dict[str, str]:
    """Reads the files of a folder in a process of its own; a crash is told of the file after the last one told of."""
    root = str(Path(__file__).parents[2])
    paths = map(str, files(folder, FORMATS[format].suffixes[0]))
    command = [sys.executable, "-c", READ, root, format, kind, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    return defaultdict(lambda: f"status {done.returncode}: {done.stderr}", told)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", files("parquet", ".parquet"), ids=lambda path: path.stem)
def test_well_formed_parquet(path: Path, kind: str) -> None:
    expected = pq.read_table(path)
    expected = expected.cast(decoded_schema(expected.schema))
    found = read_all(FORMATS["parquet"], path, kind=kind)
    assert found.schema == expected.schema
    assert found.equals(expected) or repr(found.to_pylist()) == repr(expected.to_pylist()), (
        "NaN equals itself"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_flights(kind: str) -> None:
    path = ROOT / "tables" / "flights-200k.arrow"
    with pa.ipc.open_file(path) as opened:
        expected = opened.read_all()
    assert read_all(FORMATS["ipc"], path, kind=kind).equals(expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", files("ipc-fuzz", ".arrow"), ids=lambda path: path.stem)
def test_fuzzed_ipc(path: Path, kind: str) -> None:
    assert read_apart("ipc", "ipc-fuzz", kind)[path.stem].startswith("refused read_ipc")


BAD = {
    "ARROW-GH-41317": "row group 0",
    "PARQUET-1481": "row group None",
    "datapage_v1-corrupt-checksum": "row group 0",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", files("parquet-bad", ".parquet"), ids=lambda path: path.stem)
def test_bad_parquet(path: Path, kind: str) -> None:
    said = read_apart("parquet", "parquet-bad", kind)[path.stem]
    if path.stem in BAD:
        assert said.startswith(f"refused read_parquet {BAD[path.stem]}")
    else:
        assert said == f"rows {pq.read_metadata(path).num_rows}"
        assert read_all(FORMATS["parquet"], path, kind=kind).equals(pq.read_table(path))
