"""Servers that send no parts of files: files are read whole, and that is said once."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.storage import requests
from arrowflow.storage.requests import Requests, Wholes
from tests.ops.tables import ids
from tests.servers.web import WebServer

pytestmark = pytest.mark.any_version

pytest.importorskip("aiohttp", reason="aiohttp is not installed")

ROWS = 60_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    noise = np.random.default_rng(1).random(ROWS)
    for number in range(3):
        rows = range(number * ROWS, (number + 1) * ROWS)
        pl.DataFrame({"id": rows, "noise": noise}).write_parquet(
            tmp_path / f"{number}.parquet", row_group_size=ROWS // 4
        )
    return tmp_path


def urls(server: WebServer, suffix: str = "parquet") -> list[str]:
    return [f"{server.url}/{number}.{suffix}" for number in range(3)]


@pytest.mark.parametrize("held", [1, 1 << 30])
def test_files_are_read_whole(
    folder: Path,
    web_server_without_ranges: WebServer,
    held: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "WHOLE_BYTES", held)
    ds = af.read_parquet(urls(web_server_without_ranges))
    with caplog.at_level(logging.WARNING, "arrowflow"):
        assert ids(ds) == list(range(3 * ROWS))
        assert ids(ds.select("id")) == list(range(3 * ROWS))
    said = [record.getMessage() for record in caplog.records if "send parts of files" in record.getMessage()]
    assert said
    assert web_server_without_ranges.url in said[0]
    assert len(said) == 2, "once for each pipeline"
    assert (folder / "0.parquet").stat().st_size > 1 << 18, "larger than what a footer's read fetches"


def test_a_file_of_another_format(
    folder: Path, web_server_without_ranges: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    pl.read_parquet(folder / "1.parquet").write_csv(folder / "1.csv")
    with caplog.at_level(logging.WARNING, "arrowflow"):
        found = ids(af.read_csv(f"{web_server_without_ranges.url}/1.csv", block_bytes="256KiB"))
    assert found == list(range(ROWS, 2 * ROWS))
    assert len(caplog.records) == 1


def test_servers_with_ranges_are_asked_for_parts(
    folder: Path, web_server: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "arrowflow"):
        assert ids(af.read_parquet(urls(web_server))) == list(range(3 * ROWS))
    assert not caplog.records


def test_a_state_goes_on(folder: Path, web_server_without_ranges: WebServer) -> None:
    ds = af.read_parquet(urls(web_server_without_ranges)).batch(ROWS)
    with iter(ds) as first:
        next(first)
        state = first.state_dict()
    with iter(ds) as second:
        second.load_state_dict(state)
        assert next(second)["id"][0].as_py() == ROWS


def test_only_so_many_bytes_are_held(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(requests, "WHOLE_BYTES", 100)
    wholes = Wholes()
    assert not wholes
    for name in "abc":
        wholes.hold(f"https://user:secret@host/{name}", pa.py_buffer(bytes(50)))
    paths = [f"https://user:secret@host/{name}" for name in "abc"]
    assert [wholes.held(path) is not None for path in paths] == [False, True, True]
    wholes.hold("d", pa.py_buffer(bytes(500)))
    assert wholes.held("d") is not None
    assert wholes.held(paths[2]) is None
    assert wholes
    assert len(caplog.records) == 1
    assert "secret" not in caplog.text
    assert not pickle.loads(pickle.dumps(Requests(wholes=wholes))).wholes, "a pickle has no files"
