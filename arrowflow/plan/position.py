"""`Position`: the state from which a producer makes its next chunk, and how it is kept as JSON.

The parts of a position are texts, whole numbers, booleans, None and finite floats of Python, no values of NumPy. JSON has
no NaN and no infinity: a float that may be one of them is kept as a text (`float.hex`) or as its bits.

A kernel with a position of several parts names the parts in a `NamedTuple`, which equals the plain tuple. A state holds
lists, so `open` gets a plain tuple and makes the `NamedTuple` of it by `_make`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple, cast

from arrowflow.errors import StateError

Position = tuple[Any, ...] | None
"""State from which the next chunk is made: nested tuples of what JSON gives back unchanged, None for the start.

Two classes stand for objects of JSON: `LanesPosition` and `Arrived`."""


MAX_GONE: Final = 1 << 32

Gone = Annotated[int, 0, MAX_GONE]
"""Rows of a chunk, or of some chunks, that are gone. A state with more was altered: an endless input would skip them for ever."""


class Mark(NamedTuple):
    """The place of the oldest row that an operator holds.

    Attributes:
        before: Position of the input before it, or before rows that lie before it.
        offset: Rows from there on that are gone.
    """

    before: Position
    offset: Gone


class Counted(NamedTuple):
    """Position of a kernel that passes chunks on and counts rows: the input's position, and the rows."""

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


@dataclass(slots=True, unsafe_hash=True, repr=False)
class LanesPosition:
    """The places of lanes that run side by side: in JSON an object, which the states of several ranks are merged by.

    A state is taken in microseconds, and the positions of 16 lanes may be long. So what does not change from batch to
    batch is made JSON once, and shared by the places that follow from each other.

    Attributes:
        step: Steps that were delivered.
        lanes: Lanes, by number.
    """

    step: int
    lanes: tuple[LaneMark, ...]
    _befores: list[tuple[Any, str]] | None = field(default=None, init=False, compare=False)

    def __repr__(self) -> str:
        return f"LanesPosition({self.step}, {self.lanes})"

    def position(self) -> Position:
        """Returns itself: the one position that is no tuple."""
        return cast(Position, self)

    def after(self, rows: int, step: int) -> LanesPosition:
        """Returns the places after so many more rows in all, equally many of each lane."""
        more = rows // len(self.lanes)
        moved = (LaneMark(lane, before, offset + more, spent) for lane, before, offset, spent in self.lanes)
        later = LanesPosition(step, tuple(moved))
        later._befores = self._known()
        return later

    def _known(self) -> list[tuple[Any, str]]:
        """Returns the position of each lane as JSON has it, and as text."""
        if self._befores is None:
            values = [listed(mark.before) for mark in self.lanes]
            self._befores = [(value, _text(value)) for value in values]
        return self._befores

    def listed(self) -> dict[str, Any]:
        """Returns the object that JSON has."""
        pairs = zip(self.lanes, self._known(), strict=True)
        lanes = {str(mark.lane): [value, mark.offset, mark.spent] for mark, (value, _) in pairs}
        return {_LANES: lanes, _STEP: self.step}

    def text(self) -> str:
        """Returns the text of that object, with sorted keys."""
        pairs = zip(self.lanes, self._known(), strict=True)
        lanes = sorted(
            f'"{mark.lane}": [{text}, {mark.offset}, {"true" if mark.spent else "false"}]'
            for mark, (_, text) in pairs
        )
        return f'{{"{_LANES}": {{{", ".join(lanes)}}}, "{_STEP}": {self.step}}}'


Rows = Sequence[tuple[int, int]]
"""Numbers of splits, each with some of its rows."""


class Arrived:
    """The place of a stage whose calls deliver as they are ready (`deterministic=False`): in JSON an object.

    Attributes:
        before: Position of the input before the first call that is not over.
        came: Rows that came from there on before this place.
        below: The place of the next such stage upstream, where `before` is the start and cannot tell it.
    """

    def __init__(self, before: Position, came: Rows, again: Rows, below: Arrived | None = None) -> None:
        self.before, self.came, self.below = before, came, below
        self._again = again
        self._since: Callable[[], Rows] | None = None

    @property
    def again(self) -> Rows:
        """Rows that came after this place and before the state was taken, chunk by chunk, in order."""
        return self._again if self._since is None else self._since()

    def follow(self, since: Callable[[], Rows]) -> None:
        """Lets a running stage tell what came after this place: it was opened here."""
        self._since = since

    def position(self) -> Position:
        """Returns itself: a position that is no tuple."""
        return cast(Position, self)

    def listed(self) -> dict[str, Any]:
        """Returns the object that JSON has.

        While a run goes on, what it tells grows. So the stages before this one, which made that, tell theirs after it.
        """
        told = {"again": [list(pair) for pair in self.again], "came": [list(pair) for pair in self.came]}
        below = self.below if self.before is None else None
        return {**told, _BEFORE: listed(self.before), "below": None if below is None else below.listed()}


_LANES, _STEP, _BEFORE = "lanes", "step", "before"
_PLACE = "<lanes>"  # where the text of lanes goes


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def listed(position: Any) -> Any:
    """Returns a position as JSON has it.

    Examples:
        >>> listed((0, (None, "a")))
        [0, [None, 'a']]
        >>> listed(LanesPosition(3, (LaneMark(0, None, 5),)))
        {'lanes': {'0': [None, 5, False]}, 'step': 3}
    """
    if isinstance(position, LanesPosition | Arrived):
        return position.listed()
    return [listed(part) for part in position] if isinstance(position, tuple) else position


def lanes_of(position: Position) -> LanesPosition:
    """Returns a position that is one of lanes."""
    return cast(LanesPosition, position)


def arrived_at(position: Position) -> Arrived | None:
    """Returns a position that is the place of a stage without an order; None if it is the start of its input."""
    return cast(Arrived | None, position)


def settled(position: Any) -> Any:
    """Returns a position that does not tell in which parts a rank merges its lanes: states of ranks have different ones.

    A batch within such a part has the position (part, rows of it, batches).
    """
    if isinstance(position, tuple) and position:
        if isinstance(position[0], LanesPosition):
            part, rows, step = position
            return (part.after(rows, step), 0, step)
        if (found := settled(position[-1])) is not position[-1]:
            return (*position[:-1], found)
    return position


def text_of(position: Any, found: Any, around: Callable[[Any], str]) -> str:
    """Returns what `around` makes of `found`, a settled position as JSON has it; the text of lanes is not made anew."""
    lanes = lanes_in(position)
    if lanes is None:
        return around(found)
    return around(listed(_replaced(position))).replace(_text(_PLACE), lanes.text())


def lanes_in(position: Any) -> LanesPosition | None:
    """Returns the lanes of a position: they are its first part, or in its last one."""
    while isinstance(position, tuple) and position:
        if isinstance(position[0], LanesPosition):
            return position[0]
        position = position[-1]
    return position if isinstance(position, LanesPosition) else None


def _replaced(position: Any) -> Any:
    if isinstance(position, LanesPosition):
        return _PLACE
    if isinstance(position[0], LanesPosition):
        return (_PLACE, *position[1:])
    return (*position[:-1], _replaced(position[-1]))


def tupled(position: Any) -> Any:
    """Returns a position that was kept as JSON.

    Examples:
        >>> tupled([0, [None, "a"]])
        (0, (None, 'a'))

    Raises:
        StateError: An object in it is no position.
    """
    if isinstance(position, dict):
        try:
            return _of_object(position)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise StateError(
                f"the position has the object {str(position)[:80]}, expected the places of lanes or of a stage; the state was "
                "altered after state_dict() returned it: take it from the original"
            ) from None
    return tuple(tupled(part) for part in position) if isinstance(position, list) else position


def _of_object(kept: dict[str, Any]) -> Position:
    if _BEFORE in kept:
        before, came, again, below = (tupled(kept[key]) for key in (_BEFORE, "came", "again", "below"))
        return Arrived(before, came, again, below).position()
    lanes = sorted((int(number), *tupled(rest)) for number, rest in kept[_LANES].items())
    step = kept[_STEP]
    if type(step) is not int or step < 0:
        raise ValueError(step)
    return LanesPosition(step, tuple(map(LaneMark._make, lanes))).position()
