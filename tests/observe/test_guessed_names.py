"""Names that people guess: errors say what to write, and the code that they name runs."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import pickle
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.dataset import plans_of
from arrowflow.loaders.base import Loader
from arrowflow.observe.guessed_names import OF_DATASET, OF_LIBRARY
from tests import warm
from tests.formats.webdataset.test_webdataset import write_tar
from tests.ops.tables import PNG

pytestmark = pytest.mark.any_version

GUESSES = {f"ds.{name}": code for name, code in OF_DATASET.items()} | {
    f"af.{name}": code for name, code in OF_LIBRARY.items()
}
CODE = {code: guess for guess, code in reversed(GUESSES.items())}
"""Each code, and the first name that it stands for."""

PACKAGES = {
    "datasets.": "datasets",
    "duckdb.": "duckdb",
    "to_jax": "jax",
    "to_tf": "tensorflow",
    "to_torch": "torch",
    "read_delta": "deltalake",
    "read_excel": "fastexcel",
    "read_iceberg": "pyiceberg",
    "to_pandas": "pandas",
    "from_pandas": "pandas",
}
"""The package that a piece of code needs, by a part of the code."""

SERVED = {"deltalake", "pyiceberg", "fastexcel", "datasets"}
"""Packages whose code would need files of their own, or a server."""

FRAMEWORKS = {"jax", "tensorflow", "torch"}
"""Packages that take seconds to import."""


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Yields what the code of the guesses is about."""
    monkeypatch.chdir(tmp_path)
    table = pa.table({"x": [1.0, 2.0, 3.0], "y": [4, 5, 6]})
    nested = pa.table({"s": [{"a": 1}, {"a": 2}], "tokens": [[1, 2], [3]]})
    with closing(sqlite3.connect(":memory:")) as connection:
        yield {
            "af": af,
            "pl": pl,
            "pa": pa,
            "pyarrow": pa,
            "numpy": np,
            "Path": Path,
            "ds": af.from_arrow(table),
            "more": af.from_arrow(table.slice(1)),
            "data": table,
            "n": 2,
            "nested": af.from_arrow(nested),
            "labels": af.from_numpy({"label": [0, 1, 0]}),
            "choices": af.range(2),
            "frame": pl.DataFrame({"x": [1.0], "z": [7]}),
            "fn": lambda value: value,
            "query": "select 1 as x",
            "connection": connection,
            "rows": [{"x": 1}],
            "array": np.arange(3),
            **dict.fromkeys(("path", "folder", "name"), "data"),
        }


def written(path: Path, guess: str) -> None:
    """Writes the file that a guess would read."""
    table = pa.table({"x": [1, 2]})
    if "ipc" in guess or "feather" in guess or "arrow" in guess:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    elif "json" in guess:
        path.write_text('{"x": 1}\n')
    elif "orc" in guess:
        pyarrow.orc.write_table(table, path)
    elif "avro" in guess:
        pl.DataFrame(table).write_avro(path)
    elif "parquet" in guess:
        pq.write_table(table, path)
    elif "tfrecord" in guess:
        path.write_bytes(bytes.fromhex("0e00000000000000c5e5693f0a0c0a0a0a017812051a030a010798993925"))
    elif "WebDataset" in guess:
        write_tar(path, [("a", {"txt": b"a cat"})])
    elif "image_folder" in guess:
        (path / "cat").mkdir(parents=True)
        (path / "cat" / "a.png").write_bytes(PNG)
    elif "np" in guess or "numpy" in guess:
        with path.open("wb") as file:
            np.save(file, np.arange(2))
    else:
        path.write_text("x\n1\n")


def pieces_of(code: str) -> list[str]:
    return [piece for piece in re.findall(r"`([^`]+)`", code) if "(" in piece or piece.startswith("ds.")]


def packages_of(code: str) -> set[str]:
    return {package for part, package in PACKAGES.items() if part in code}


def marked(code: str, guess: str) -> Any:
    marks = [pytest.mark.slow] if FRAMEWORKS & packages_of(code) else []
    return pytest.param(code, guess, id=code, marks=marks)


@pytest.mark.parametrize(("code", "guess"), [marked(code, guess) for code, guess in CODE.items()])
def test_the_code_for_a_guess_runs(code: str, guess: str, names: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path / "data", guess)
    for piece in pieces_of(code):
        packages = packages_of(piece)
        if SERVED.isdisjoint(packages) and all(map(importlib.util.find_spec, packages)):
            names |= {package: importlib.import_module(package) for package in packages}
            if "pandas" in packages:
                names |= {"df": names["frame"].to_pandas()}
            if '"s"' in piece or '"tokens"' in piece:
                names |= {"ds": names["nested"]}
            value = eval(piece, names)  # the library's own table
            if isinstance(value, af.Dataset | Loader):
                next(iter(value))


def test_names_in_the_code_exist_and_guesses_do_not() -> None:
    owners = {"ds": af.Dataset, "af": af, "pl": pl, "pa": pa}
    for code in CODE:
        assert pieces_of(code), f"{code} has no code"
        for module, name in re.findall(r"\b(ds|af|pl|pa)\.(\w+)", " ".join(pieces_of(code))):
            assert hasattr(owners[module], name), code
        if FRAMEWORKS & packages_of(code):  # which runs only with the slow tests
            for name in re.findall(r"\.(\w+)\(", " ".join(pieces_of(code))):
                assert hasattr(af.Dataset, name), code
    there = [name for name in OF_DATASET if hasattr(af.Dataset, name)]
    there += [name for name in OF_LIBRARY if hasattr(af, name)]
    assert not there, f"these exist now, so take them out of OF_DATASET and OF_LIBRARY: {there}"


def test_an_error_says_what_to_write() -> None:
    ds = af.range(3)
    with pytest.raises(
        AttributeError, match=r"a dataset has no attribute 'columns'; write `ds.schema.names`"
    ) as caught:
        _ = ds.columns  # type: ignore[attr-defined]
    assert (caught.value.name, caught.value.obj) == ("columns", ds)
    with pytest.raises(
        AttributeError, match=r"arrowflow has no attribute 'read_excel'; write `af.from_arrow\("
    ) as of_module:
        _ = af.read_excel  # type: ignore[attr-defined]
    assert (of_module.value.name, of_module.value.obj) == ("read_excel", af)


def test_python_suggests_names_that_are_nearly_right() -> None:
    _, _, errors = warm.plain().run("af.range(3).shufle(3)")
    assert "has no attribute 'shufle'. Did you mean: 'shuffle'?" in errors


def test_questions_for_names_stay_questions() -> None:
    ds = af.range(3)
    assert not hasattr(ds, "sort") and getattr(ds, "sort", None) is None
    assert not hasattr(af, "read_excel")
    assert (
        not hasattr(ds, "_repr_png_")
        and not hasattr(ds, "__array_interface__")
        and not hasattr(ds, "__dataframe__")
    )
    assert not isinstance(ds, SupportsIndex) and isinstance(ds, Iterable)
    assert copy.copy(ds) == copy.deepcopy(ds) == pickle.loads(pickle.dumps(ds)) == ds
    with pytest.raises(AttributeError, match="_plan"):
        _ = af.Dataset.__new__(af.Dataset)._plan  # a name that the class has, and that has no value yet


def test_a_property_that_fails_tells_its_own_error() -> None:
    class Broken(af.Dataset):
        @property
        def schema(self) -> pa.Schema:
            raise AttributeError("from within")

    with pytest.raises(AttributeError, match="from within"):
        _ = Broken(plans_of("test", [af.range(3)])[0]).schema
