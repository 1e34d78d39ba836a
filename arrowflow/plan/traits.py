"""`Traits`: what rules and checks may know about an operator without knowing the operator."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Borders(enum.Enum):
    """The effect of an operator on the borders between the chunks that it passes on."""

    FREE = enum.auto()
    """Borders carry no meaning, neither before nor after."""
    KEEP = enum.auto()
    """Borders that have a meaning before the operator (batches) keep it after the operator."""
    CUT = enum.auto()
    """Makes borders that the consumer sees: the output is in batches."""


class Resume(enum.Enum):
    """How an operator goes on from a position."""

    SEEK = enum.auto()
    """Goes to the position directly."""
    REPLAY = enum.auto()
    """Runs the epoch again from its start and discards what was delivered."""
    NONE = enum.auto()
    """Cannot: `state_dict` raises `StateError`."""


class SharedByEpochs(enum.IntEnum):
    """The part of an operator's rows that all epochs have in common."""

    ORDER = 0
    """The same rows in the same order."""
    NUMBER = 1
    """The same rows in another order."""
    NOTHING = 2
    """Perhaps not even the number of rows or batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The promises of an operator.

    An operator with a state promises neither `one_to_one` nor `drops_rows`, since a rule may then leave rows before it
    out. `Node.count_rows` and `Node.owns_buffers` follow from the promises; an operator that knows better overrides them.

    Attributes:
        one_to_one: Each row in gives exactly one row out, in the same order, from that row alone.
        drops_rows: Each row in gives itself or nothing, decided by that row alone.
        counts_alone: Puts out as many rows and batches whatever rows it gets: their number alone decides.
        opaque: Runs a user function: nothing may be moved across it.
        cuts_input: Cuts the rows of its input for its calls, so that its position is not its input's even if it is
            `one_to_one` and not `opaque`: nobody begins in the middle of its input for it.
        borders: Its effect on the borders between chunks.
        new_memory: Yields memory that nobody else holds. Otherwise that of its inputs passes, or the function's, if it is
            `opaque`; a source's is not its own.
        keeps_number: Gives as many rows as it gets, though not each from one; and as many batches, if it keeps borders. So
            does every operator that is `one_to_one`.
        gathers: Copies whole rows, so that its cost grows with the number of columns.
        needs_rows: Counts or chooses single rows, so it is refused after `batch`: there `take(3)` could mean rows or
            batches, and so could the numbers of `enumerate`. An operator that takes and gives whole batches, such as
            `map` and `scan`, is allowed.
        local: Treats a row by that row alone, or by neighbours that are free by its definition, as in a `shuffle`. So does
            every operator that is `one_to_one` or `drops_rows`. Only local operators run in lanes, see `arrowflow.plan.lane`.
        collects: Sees all rows of its input before it puts out the first one.
        in_turn: Makes rows of each split of its input after the other, keeps none back for later splits, and its position is
            never earlier than the start of the split. So does every operator that is `one_to_one`, `drops_rows` or `counts_alone`. See `Node.rows_again`.
        row_sizes: Its fields that count the rows of a buffer or a batch; each lane has its part of them.
        names_files: Its rows are the paths of files, so that a function of them opens one for each row.
        once: Runs its inputs once for all epochs, as a cache does.
        resume: How it goes on from a position.
        repeatable: Whether running it again yields the same, from any position on, as long as its identity is the same.
        known_by: Its field with a text that identifies it with all of its inputs, such as a key; empty if their identities
            do.
    """

    one_to_one: bool = False
    drops_rows: bool = False
    counts_alone: bool = False
    opaque: bool = False
    cuts_input: bool = False
    borders: Borders = Borders.KEEP
    new_memory: bool = False
    keeps_number: bool = False
    gathers: bool = False
    needs_rows: bool = False
    local: bool = False
    collects: bool = False
    in_turn: bool = False
    row_sizes: tuple[str, ...] = ()
    names_files: bool = False
    once: bool = False
    resume: Resume = Resume.SEEK
    repeatable: bool = True
    known_by: str = ""
