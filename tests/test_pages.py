"""The snippets of README and of `docs/` run, each in a folder with files as the page has them.

The snippets of `start.md` follow each other, as its reader runs them: they are one. A snippet whose first line is `# <name>.py` is also a module for the other snippets of its page.

Each pipeline that a snippet makes is run again, by one rank and for a `DataLoader`: its rows and batches stay the same. Brief
runs do so for `README.md` and `start.md`.

Sessions with `>>>` run in `test_docstrings.py`, those on neighbours in `tests/neighbours/`, that of
`cluster.md` in `tests/cluster/`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.ops.ranks.split_by_rank import SplitByRank
from arrowflow.plan.walk import post_order
from arrowflow.testing.contracts import IN_FULL
from tests.ops.tables import PNG
from tests.oracles.splits import check_rank, check_torch_dataset, ends_in_batches

pytestmark = pytest.mark.any_version

ROOT = Path(__file__).resolve().parent.parent
ROWS = 20_000
PACKAGES = {
    "torch": "torch",
    "torchdata": "torchdata",
    "datasets.": "datasets",
    "import deltalake": "deltalake",
    "import lance": "lance",
    "plot_timeline": "matplotlib",
    "PIL": "PIL",
}


def marks_of(block: str) -> list[pytest.MarkDecorator]:
    """Returns the markers of a snippet: what imports PyTorch, and what starts processes."""
    found = [pytest.mark.torch] if "torch" in block else []
    return found + [pytest.mark.slow] * ('executor="process"' in block)


def blocks(page: Path) -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M)
    return ["\n".join(found)] if page.name == "start.md" else found


def snippets() -> list[Any]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = [
        (page.name, block)
        for page in pages
        if page.name not in ("neighbours.md", "cluster.md")
        for block in blocks(page)
        if not block.startswith(">>>")
    ]
    return [
        pytest.param(page, block, id=f"{page}-{number}", marks=marks_of(block))
        for number, (page, block) in enumerate(found)
    ]


def offer_modules(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the page's snippets that begin with the name of a module, so that its other snippets can import them."""
    for other, block in (parameters.values for parameters in snippets()):
        named = re.match(r"# (\w+)\.py\n", str(block))
        if other == page and named:
            module = ModuleType(named[1])
            monkeypatch.setitem(sys.modules, named[1], module)
            exec(compile(str(block), page, "exec"), vars(module))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of all pages, of which each snippet gets a copy."""
    folder = tmp_path_factory.mktemp("files")
    numbers = af.range(ROWS)
    prices = {name: pl.col("id").cast(pl.Float64) for name in ("price", "discount", "tax")}
    numbers.with_columns(**prices, qty=pl.col("id") % 50, label=pl.col("id") % 2).write_parquet(
        folder / "train"
    )
    words = pa.table({"tokens": [[7] * (1 + number % 900) for number in range(500)], "text": ["a b"] * 500})
    af.from_arrow(words).write_parquet(folder / "docs")
    af.from_arrow(words).write_parquet(folder / "text")
    for number in range(130):
        (folder / f"images/class {number % 3}").mkdir(parents=True, exist_ok=True)
        (folder / f"images/class {number % 3}/{number}.png").write_bytes(PNG)
    af.from_numpy({"vector": np.zeros((ROWS, 16), np.float32)}).write_ipc(folder / "vectors")
    return folder


def copy_or_link(source: str, target: str) -> None:
    """No snippet writes images, of which there are many."""
    (os.link if source.endswith(".png") else shutil.copy2)(source, target)


def train(block: str) -> af.Dataset:
    """Returns the dataset that pages call `train`, with the columns that a snippet asks for."""
    if '"image"' not in block:
        return af.from_numpy({"dense": np.zeros((64, 3)), "label": np.arange(64)}).batch(32)
    columns = {
        "image": pa.FixedSizeListArray.from_arrays(pa.array(range(128)), 2),
        "tokens": [[1] * (1 + number % 3) for number in range(64)],
        "age": [None, 3] * 32,
        "label": [0, 1] * 32,
    }
    return af.from_arrow(pa.table(columns)).batch(32)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize(("page", "block"), snippets())
def test_a_snippet_runs(
    page: str, block: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {
        "af": af,
        "pl": pl,
        "np": np,
        "pa": pa,
        "saved": None,
        "train": train(block),
        "tokenize": lambda row: {"num_words": len(row["text"].split())},
        "dataset": af.range(64),
        "schema": {"num_words": pa.int64()},
    }
    for name in ("samples", "prepare", "mask"):
        names[name] = lambda *batch: batch
    for word, package in PACKAGES.items():
        if word in block:
            with warnings.catch_warnings(action="ignore"):
                names[package] = pytest.importorskip(package)
    given = names["train"]
    shutil.copytree(files, tmp_path, dirs_exist_ok=True, copy_function=copy_or_link)
    offer_modules(page, monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    exec(compile(block, page, "exec"), names)
    for name, shape in {"tokens": (32, 512), "vectors": (8192, 16), "images": (128, 224, 224, 3)}.items():
        if name in names:
            batch = next(iter(names[name].to_numpy()))
            assert batch["tokens" if name == "tokens" else name[:-1]].shape == shape
    if "documents" in names:
        assert names["documents"].to_table()["num_words"].to_pylist() == [2] * 500
    if "loader" in names:
        assert len(list(names["loader"])) == len(names["loader"]) > 0
    made = {
        id(value): value for value in names.values() if isinstance(value, af.Dataset) and value is not given
    }
    for dataset in made.values() if IN_FULL or page in ("README.md", "start.md") else ():
        check_split(dataset)


def check_split(dataset: af.Dataset) -> None:
    if any(isinstance(node, SplitByRank) for node in post_order(dataset._plan)):
        return
    check_rank(ends_in_batches(dataset))
    if importlib.util.find_spec("torch") is not None:
        with warnings.catch_warnings(action="ignore"):
            check_torch_dataset(ends_in_batches(dataset))
