"""Where rows go: the windows of a shuffle, the parts of two processes, the lanes of a cluster, documents in rows of tokens, drawn as they really come.

python examples/orders.py docs/images
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import arrowflow as af

ROWS, GROUP_ROWS, WINDOW_ROWS, BATCH_ROWS, LANES, RANKS = 24, 6, 8, 8, 4, 2
TOKENS: Final = 12

COLOURS: Final = ("#9ad0f5", "#f7cf7a", "#8ed6bd", "#e3b5cf")
"""Of row groups and lanes: pale colours of Okabe and Ito's, on which black letters are read."""
CELL, TALL, TEXT, BRACKET, MARGIN = 30, 28, 24, 26, 12


class Strip(NamedTuple):
    """A line of rows.

    Attributes:
        text: What they are, above them.
        rows: Their numbers, in order; or the names of the documents of tokens, empty for padding.
        brackets: What is below them: names, each of as many rows as the others, line by line.
    """

    text: str
    rows: list[Any]
    brackets: Sequence[Sequence[str]] = ()

    def colour(self, row: int | str) -> str:
        """Returns the colour of a row: that of its row group, or of its document."""
        if isinstance(row, int):
            return COLOURS[row // GROUP_ROWS]
        return COLOURS[ord(row) - ord("a")] if row else "#eceff1"


# ---------------------------------------------------------------- what really comes


def file_of(folder: Path) -> af.Dataset:
    """Writes a file of numbered rows in four row groups, and returns its dataset."""
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"row": range(ROWS)}), path, row_group_size=GROUP_ROWS)
    return af.read_parquet(path)


def rows_of(dataset: af.Dataset) -> list[list[int]]:
    """Returns the numbers of the rows of each batch."""
    return [batch["row"].to_pylist() for batch in dataset]


def windows(file: af.Dataset) -> list[Strip]:
    """Returns a file, what a shuffle reads, and what it delivers."""
    delivered = rows_of(file.shuffle(WINDOW_ROWS, seed=1).batch(WINDOW_ROWS))
    names = [f"window {number}" for number in range(len(delivered))]
    return [
        Strip("a file", list(range(ROWS)), [[f"row group {number}" for number in range(ROWS // GROUP_ROWS)]]),
        Strip(
            "shuffle(8) reads the row groups in the order of the epoch, 8 rows to a window",
            read(delivered),
            [names],
        ),
        Strip(
            "and delivers each window in an order of its own",
            [row for window in delivered for row in window],
            [names],
        ),
    ]


def read(delivered: Sequence[Sequence[int]]) -> list[int]:
    """Returns the rows of windows in the order in which they were read: a row group, once begun, is read to its end."""
    found: list[int] = []
    for window in delivered:
        groups = {row // GROUP_ROWS for row in window}
        begun = {row // GROUP_ROWS for row in found}
        counts = {group: sum(row // GROUP_ROWS == group for row in window) for group in groups}
        order = sorted(groups, key=lambda group: (group not in begun, -counts[group]))
        found += [row for group in order for row in sorted(window) if row // GROUP_ROWS == group]
    return found


def parts(file: af.Dataset) -> list[Strip]:
    """Returns a file in lanes, and the global batches of two processes, in parts and whole."""
    batches = file.batch(BATCH_ROWS)
    steps = [f"global batch {number}" for number in range(ROWS // BATCH_ROWS)]
    ranks = [f"rank {rank}" for _ in steps for rank in range(RANKS)]

    def delivered(shares: Iterable[af.Dataset]) -> list[int]:
        each = [rows_of(share) for share in shares]
        return [row for step in zip(*each, strict=True) for batch in step for row in batch]

    in_parts = [batches.split_by_rank(rank, RANKS, how="parts", lanes=LANES) for rank in range(RANKS)]
    whole = [batches.split_by_rank(rank, RANKS, how="whole") for rank in range(RANKS)]

    return [
        Strip(
            "the rows of a plan: four lanes take a part each",
            list(range(ROWS)),
            [[f"lane {lane}" for lane in range(LANES)]],
        ),
        Strip(
            "in parts: each rank reads its own lanes, two here",
            delivered(in_parts),
            [ranks, steps],
        ),
        Strip(
            "whole: each rank reads everything, and keeps its rows of each batch",
            delivered(whole),
            [ranks, steps],
        ),
    ]


def cluster(file: af.Dataset) -> list[Strip]:
    """Returns a file in lanes, which two workers of a cluster run, and the batches that the loop's process joins."""
    joined = rows_of(file.batch(BATCH_ROWS).split_by_rank(0, 1, how="parts", lanes=LANES))
    return [
        Strip(
            "each worker runs some lanes of the plan, on the cores of its node",
            list(range(ROWS)),
            [[f"lane {lane}" for lane in range(LANES)], ["worker 0", "worker 1"]],
        ),
        Strip(
            "the loop's process joins what they send: each batch has rows of all lanes",
            [row for batch in joined for row in batch],
            [[f"batch {number}" for number in range(len(joined))]],
        ),
    ]


def packed() -> list[Strip]:
    """Returns documents, and the rows of tokens that two strategies pack them into."""
    lengths = {"a": 5, "b": 9, "c": 4, "d": 3}
    documents = [name for name, length in lengths.items() for _ in range(length)]
    table = pa.table({"tokens": [[ord(name)] * length for name, length in lengths.items()]})

    def tokens(strategy: Literal["first_fit", "concat_then_split"]) -> list[str]:
        packed = af.from_arrow(table).pack_sequences("tokens", TOKENS, strategy=strategy)
        return [
            chr(token) if token else "" for row in packed.to_table()["tokens"].to_pylist() for token in row
        ]

    rows = [["row 0", "row 1"]]
    return [
        Strip("four documents, of 5, 9, 4 and 3 tokens", documents),
        Strip('strategy="first_fit" keeps documents whole', tokens("first_fit"), rows),
        Strip(
            'strategy="concat_then_split" cuts them, and pads the last row alone',
            tokens("concat_then_split"),
            rows,
        ),
    ]


def plan() -> af.Dataset:
    """Returns the plan that the page on tables shows."""
    visits = af.read_parquet("visits")
    bought, not_bought = visits.filter(pl.col("bought")), visits.filter(~pl.col("bought"))
    balanced = af.sample_from_datasets([bought, not_bought], weights=[0.5, 0.5], seed=1)
    return balanced.shuffle(10_000).batch(1024)


# ---------------------------------------------------------------- pictures


def picture(strips: Sequence[Strip]) -> str:
    """Returns the SVG text of strips, one below the other, on a ground of its own: pages are light or dark."""
    drawn: list[str] = []
    top = MARGIN
    for strip in strips:
        drawn += _strip(strip, top)
        top += TEXT + TALL + BRACKET * len(strip.brackets) + MARGIN
    width = ROWS * CELL + 2 * MARGIN
    label = escape("; ".join(strip.text for strip in strips), quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}" role="img" '
        f'aria-label="{label}" font-family="system-ui,sans-serif" font-size="14" fill="#1b1f24">\n'
        f'<rect width="{width}" height="{top}" rx="6" fill="#fff"/>\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def _strip(strip: Strip, top: int) -> Iterator[str]:
    yield f'<text x="{MARGIN}" y="{top + 15}">{strip.text}</text>'
    top += TEXT
    for place, row in enumerate(strip.rows):
        left = MARGIN + place * CELL
        yield (
            f'<rect x="{left + 1}" y="{top}" width="{CELL - 2}" height="{TALL}" rx="3" fill="{strip.colour(row)}"/>'
            f'<text x="{left + CELL / 2:g}" y="{top + 19}" text-anchor="middle">{row}</text>'
        )
    top += TALL
    for names in strip.brackets:
        wide = len(strip.rows) * CELL // len(names)
        for number, name in enumerate(names):
            left, right = MARGIN + number * wide + 3, MARGIN + (number + 1) * wide - 3
            yield (
                f'<path d="M{left} {top + 3}v4H{right}v-4" fill="none" stroke="#57606a"/>'
                f'<text x="{(left + right) // 2}" y="{top + 21}" text-anchor="middle" font-size="12">{name}</text>'
            )
        top += BRACKET


def pictures() -> Iterator[tuple[str, str]]:
    """Yields the name and the text of each picture."""
    with tempfile.TemporaryDirectory() as folder:
        file = file_of(Path(folder))
        yield "rows-windows.svg", picture(windows(file))
        yield "rows-parts.svg", picture(parts(file))
        yield "rows-cluster.svg", picture(cluster(file))
    yield "rows-packed.svg", picture(packed())
    # Grey is read on light and on dark pages.
    yield "plan.svg", plan().diagram().replace("<svg ", '<svg color="#7d8590" ', 1) + "\n"


def main() -> None:
    """Draws into the folder that the command line names."""
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/orders.py FOLDER")
    for name, text in pictures():
        path = Path(sys.argv[1], name)
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
