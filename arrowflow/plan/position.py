"""`Position`: the state from which a producer makes its next chunk, and how it is kept as JSON.

The parts of a position are texts, whole numbers, booleans, None and finite floats of Python, no values of NumPy. JSON has
no NaN and no infinity: a float that may be one of them is kept as a text (`float.hex`) or as its bits.

A kernel with a position of several parts names the parts in a `NamedTuple`, which equals the plain tuple. A state holds
lists, so `open` gets a plain tuple and makes the `NamedTuple` of it by `_make`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Position = tuple[Any, ...] | None
"""State from which the next chunk is made: nested tuples of what JSON gives back unchanged, None for the start."""


class Mark(NamedTuple):
    """The place of the oldest row that an operator holds.

    Attributes:
        before: Position of the input before it, or before rows that lie before it.
        offset: Rows from there on that are gone.
    """

    before: Position
    offset: int


class Counted(NamedTuple):
    """Position of a kernel that passes chunks on and counts rows.

    Attributes:
        input: The input's position.
        rows: The rows.
    """

    input: Position
    rows: int


class LaneMark(NamedTuple):
    """The place of one lane, see `arrowflow.plan.lane`.

    Attributes:
        lane: Its number.
        before: Its position before its oldest row that was not delivered.
        offset: Rows from there on that were delivered.
        spent: Whether it has ended; then its last row, which follows, was delivered too.
    """

    lane: int
    before: Position
    offset: int
    spent: bool = False


class LanesPosition(NamedTuple):
    """The places of lanes that run side by side: in JSON an object, which the states of several ranks are merged by.

    Attributes:
        step: Steps that were delivered.
        lanes: Lanes, by number.
    """

    step: int
    lanes: tuple[LaneMark, ...]

    def after(self, rows: int, step: int) -> LanesPosition:
        """Returns the places after so many more rows in all, equally many of each lane."""
        more = rows // len(self.lanes)
        return LanesPosition(step, tuple(mark._replace(offset=mark.offset + more) for mark in self.lanes))


_LANES = "lanes"


def listed(position: Any) -> Any:
    """Returns a position as JSON has it.

    Example:
        >>> listed((0, (None, "a")))
        [0, [None, 'a']]
        >>> listed(LanesPosition(3, (LaneMark(0, None, 5),)))
        {'step': 3, 'lanes': {'0': [None, 5, False]}}
    """
    if isinstance(position, LanesPosition):
        return {"step": position.step, _LANES: {str(mark.lane): listed(mark[1:]) for mark in position.lanes}}
    if not isinstance(position, tuple):
        return position
    if position and isinstance(position[0], LanesPosition):
        # A batch within a part that lanes made, (part, rows, batches): states of ranks have other parts.
        part, rows, step = position
        position = (part.after(rows, step), 0, step)
    return [listed(part) for part in position]


def tupled(position: Any) -> Any:
    """Returns a position that was kept as JSON.

    Example:
        >>> tupled([0, [None, "a"]])
        (0, (None, 'a'))
    """
    if isinstance(position, dict):
        lanes = sorted((int(number), *tupled(rest)) for number, rest in position[_LANES].items())
        return LanesPosition(position["step"], tuple(map(LaneMark._make, lanes)))
    return tuple(tupled(part) for part in position) if isinstance(position, list) else position
