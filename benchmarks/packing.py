"""Documents packed into rows of one length: how full the rows are, and what it costs on top of reading them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from benchmarks import harness

if TYPE_CHECKING:
    import arrowflow as af

LENGTH: Final = 2_048
BATCH_ROWS: Final = 64
NEEDED_FILL: Final = 0.98
NEEDED_SPEED: Final = 1 / 3
COLUMNS: Final = ("tokens", "labels", "mask")
NEEDED_OF_ONE: Final = 0.8
"""Lists a second of three columns beside those of one."""


def _paths() -> list[str]:
    from benchmarks import data

    paths = data.documents()
    data.read_through(paths)
    return paths


def _sum(values: Any) -> float:
    return float(values.to_numpy().sum(dtype="int64")) if harness.CHECKING in os.environ else 0.0


def _read(batches: Iterable[Any], watch: harness.Stopwatch) -> harness.Measurement:
    """Drains record batches of documents as they are in the file."""
    documents, total = 0, 0.0
    for batch in batches:
        column = batch.column("tokens")
        documents += len(column)
        total += _sum(column.flatten())
    return watch.measurement(documents, **_checked(total))


def _checked(total: float) -> dict[str, float]:
    return {"sum of tokens": total} if harness.CHECKING in os.environ else {}


def table() -> harness.Measurement:
    """Reads the column into one table."""
    import pyarrow.parquet as pq

    paths = _paths()
    watch = harness.Stopwatch()
    return _read(pq.read_table(paths, columns=["tokens"]).to_batches(), watch)


def scanner() -> harness.Measurement:
    """Streams the column through pyarrow's scanner."""
    import pyarrow.dataset as pads

    paths = _paths()
    watch = harness.Stopwatch()
    return _read(pads.dataset(paths).to_batches(columns=["tokens"]), watch)


def files() -> harness.Measurement:
    """Streams the column, one file after the other."""
    import pyarrow.parquet as pq

    paths = _paths()
    watch = harness.Stopwatch()
    return _read(
        (batch for path in paths for batch in pq.ParquetFile(path).iter_batches(columns=["tokens"])), watch
    )


def arrowflow(*, strategy: Any = None) -> harness.Measurement:
    """Reads the documents with arrowflow; and packs them, if a strategy is given."""
    import arrowflow as af
    from benchmarks import data

    paths = _paths()
    watch = harness.Stopwatch()
    ds = af.read_parquet(paths).select("tokens")
    if strategy is None:
        return _read(ds, watch)
    return _packed(
        ds.pack_sequences("tokens", LENGTH, strategy=strategy).batch(BATCH_ROWS), watch, data.DOCUMENTS
    )


def columns(names: Sequence[str]) -> harness.Measurement:
    """Reads and packs some columns of the same documents; counts the lists of all of them."""
    import arrowflow as af
    from benchmarks import data

    paths = data.labelled_documents()
    data.read_through(paths)
    watch = harness.Stopwatch()
    packed = af.read_parquet(paths).select(*names).pack_sequences(list(names), LENGTH)
    rows = sum(batch.num_rows for batch in packed.batch(BATCH_ROWS))
    return watch.measurement(len(names) * data.LABELLED, packed_rows=float(rows))


def _packed(ds: af.Dataset, watch: harness.Stopwatch, documents: int) -> harness.Measurement:
    rows, total = 0, 0.0
    for batch in ds:
        rows += batch.num_rows
        total += _sum(batch.column("tokens").flatten())
    return watch.measurement(documents, packed_rows=float(rows), **_checked(total))


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars."""
    bars = []
    for name in ("first_fit", "concat_then_split"):
        title = f"{name} into rows of {LENGTH:,}"
        bars += harness.race_bar(
            rounds, title, ours=name, theirs=("table", "scanner", "files"), needed=NEEDED_SPEED
        )
    if {"one_column", "three_columns"} <= rounds.keys():
        title = "lists of three columns beside those of one"
        bars += harness.race_bar(
            rounds, title, ours="three_columns", theirs=("one_column",), needed=NEEDED_OF_ONE
        )
    return bars + (_fill_bar(rounds["first_fit"]) if "first_fit" in rounds else [])


def _fill_bar(ours: Any) -> list[harness.Bar]:
    from benchmarks import data

    places = harness.median_extra(ours, "packed_rows") * LENGTH
    fill = data.document_tokens() / places
    return [
        harness.Bar("fill with first_fit", f">= {NEEDED_FILL:.0%}", f"{fill:.2%}", fill >= NEEDED_FILL, fill)
    ]


CONTENDERS: Final[dict[str, harness.Contender]] = {
    "table": table,
    "scanner": scanner,
    "files": files,
    "read": arrowflow,
    "first_fit": lambda: arrowflow(strategy="first_fit"),
    "best_fit": lambda: arrowflow(strategy="best_fit"),
    "concat_then_split": lambda: arrowflow(strategy="concat_then_split"),
    "one_column": lambda: columns(COLUMNS[:1]),
    "three_columns": lambda: columns(COLUMNS),
}

if __name__ == "__main__":
    harness.main("packing", CONTENDERS, judge)
