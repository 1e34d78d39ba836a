"""`RowCounts`: which rows of each split of some files reach a place in a pipeline that drops rows.

Lanes are dealt equally many of the rows that are left, so that all ranks know how many steps they make. The epoch's order
of splits is another one in each epoch, so counts alone would not do: where a lane begins in the middle of a split, a bit
for each of its rows tells where. A file of counts takes an eighth of a byte a row. It is no Arrow file: readers would take it
for data, and what is in a file is checked before anything is made of it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from arrowflow.errors import PlanError, counted
from arrowflow.formats.registry import FORMATS
from arrowflow.plan.node import Node
from arrowflow.plan.shape import checked
from arrowflow.plan.walk import post_order

_MAGIC: Final = b"arrowflow counts 1\n"
_DIGEST_BYTES: Final = 16
_CALL: Final = "af.count_rows(dataset, save=path)"

Counted = tuple[int, int, int, bytes]
"""Number of a file, number of a split, its rows that are left, and a bit for each row."""


@dataclass(frozen=True, eq=False)
class RowCounts:
    """The rows that are left of each split. Picklable; made by `af.count_rows`.

    Attributes:
        of: Identifies the pipeline, with the relative paths and sizes of its files.
        splits: The splits that have rows left.
        operators: Identifies the pipeline without its files; None in counts of an earlier release.
    """

    of: str
    splits: tuple[Counted, ...]
    operators: str | None = None

    def __repr__(self) -> str:
        return f"RowCounts: {counted(self.num_rows, 'row')} of {counted(len(self.splits), 'split')}"

    @cached_property
    def num_rows(self) -> int:
        """Rows that are left in all."""
        return sum(kept for _, _, kept, _ in self.splits)

    @cached_property
    def _places(self) -> dict[tuple[int, int], Counted]:
        return {each[:2]: each for each in self.splits}

    def kept(self, file: int, split: int) -> int:
        """Returns how many rows of a split are left."""
        found = self._places.get((file, split))
        return 0 if found is None else found[2]

    def row(self, file: int, split: int, number: int) -> int:
        """Returns the number in its split of a row that is left, given its number among these."""
        return int(np.flatnonzero(_bits(self._places[file, split][3]))[number])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes them to a local file, which is there as a whole or not at all.

        Raises:
            PlanError: A reader would take a file of this name for data.
        """
        name = Path(path).name
        suffixes = {suffix for format in FORMATS.values() for suffix in format.suffixes if suffix}
        taken = [suffix for suffix in suffixes if name.lower().endswith(suffix)]
        if taken:
            raise PlanError(
                f"count_rows: save={os.fspath(path)!r} ends in {taken[0]}, so that a reader may take it for data; expected another "
                f"ending, as in {name[: -len(taken[0])] + '.counts'!r}"
            )
        part = Path(f"{os.fspath(path)}.{os.getpid()}.part")
        numbers = [(file, split, kept, len(bits)) for file, split, kept, bits in self.splits]
        head = json.dumps({"of": self.of, "splits": numbers, "operators": self.operators}).encode() + b"\n"
        body = head + b"".join(bits for _, _, _, bits in self.splits)
        try:
            part.write_bytes(_MAGIC + _digest(body) + body)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RowCounts:
        """Reads what `save` wrote.

        Raises:
            PlanError: There is no such file, `af.count_rows` did not write it, or it was damaged since.
        """
        try:
            return _parsed(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise PlanError(
                f"assert_cardinality: count is a number or a file of counts; cannot read the counts in {os.fspath(path)!r} ({error}); "
                f"write them with {_CALL}"
            ) from None


def _parsed(data: bytes) -> RowCounts:
    """Returns the counts in a file, or raises `ValueError` that says what is wrong with it."""
    start = len(_MAGIC) + _DIGEST_BYTES
    body = data[start:]
    if not data.startswith(_MAGIC):
        raise ValueError("it is no file of counts of this release")
    if data[len(_MAGIC) : start] != _digest(body):
        raise ValueError("it was changed or cut after it was written")
    head, _, bits = body.partition(b"\n")
    try:
        kept = json.loads(head)
        splits = checked(kept["splits"], tuple[tuple[int, int, int, int], ...], "splits")
        of = checked(kept["of"], str, "of")
        operators = checked(kept.get("operators"), str | None, "operators")
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError("its head does not tell of splits") from None
    ends = list(accumulate(size for _, _, _, size in splits))
    parts = [bits[end - size : end] for (_, _, _, size), end in zip(splits, ends, strict=True)]
    found = tuple((*split[:3], part) for split, part in zip(splits, parts, strict=True))
    if len(bits) != sum(map(len, parts)) or any(kept != int(_bits(part).sum()) for _, _, kept, part in found):
        raise ValueError("its splits have other numbers of rows than bits")
    return RowCounts(of, found, operators)


def _bits(packed: bytes) -> npt.NDArray[np.uint8]:
    return np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


def counts_of(plan: Node, left: Mapping[tuple[int, int], Sequence[npt.NDArray[np.int64]]]) -> RowCounts:
    """Returns the counts of a bound plan, given the numbers of the rows that are left of each split of each file."""
    made: list[Counted] = []
    for (file, split), parts in sorted(left.items()):
        rows = np.concatenate(parts)
        bits = np.zeros(int(rows.max()) + 1, np.uint8)
        bits[rows] = 1
        if int(bits.sum()) < len(rows):
            raise PlanError("count_rows: rows are repeated; count them before the operator that repeats them")
        made.append((file, split, len(rows), np.packbits(bits, bitorder="little").tobytes()))
    return RowCounts(known_as(plan), tuple(made), known_as(plan, with_files=False))


def known_as(plan: Node, *, with_files: bool = True) -> str:
    """Returns a text that identifies a bound plan by its operators, their arguments and, unless left out, its files."""
    left_out = () if with_files else ("files", "sources")
    told = [
        [node.name, {key: value for key, value in node.arguments().items() if key not in left_out}]
        for node in post_order(plan)
    ]
    return hashlib.blake2b(json.dumps(told, default=str).encode(), digest_size=16).hexdigest()
