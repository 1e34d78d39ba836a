"""`interleave`: the rows of many datasets in turn, one dataset for each row of the input.

Three kernels in a row make elements ready ahead of their turn:

1. a serial **cutter**, which makes one item from each row and numbers the rows;
2. a stateless **opener**, which calls the function and plans the returned dataset, several at a time; here listings and
   footers are read;
3. a boundary, which opens the planned elements as streams of their own and takes blocks from them in rotation. When the
   element of a place has ended, the place gets the next element when its turn comes again, as in tf.data.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self, cast

import pyarrow as pa

from arrowflow.errors import FunctionError, PlanError, said, shown
from arrowflow.kernels.context import Context, StreamHandle
from arrowflow.kernels.cutting import CutPosition
from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item, Origin, Ticket
from arrowflow.kernels.kinds import BoundaryKernel, StatelessKernel
from arrowflow.kernels.operator import KernelSpec, Operator, RowOperator
from arrowflow.kernels.pieces import PieceOperator, Pieces
from arrowflow.kernels.recut import recut_specs
from arrowflow.ops.combine.elements import (
    ELEMENT_BITS,
    PLACE_BITS,
    Element,
    ElementFunction,
    InterleavePosition,
    OpenElement,
    Row,
    RowKernel,
    RowsWanted,
)
from arrowflow.ops.combine.same_columns import FirstSchema
from arrowflow.ops.functions.function import code_digest, function_name
from arrowflow.options import ResolvedOptions, check_flag, check_size, parallel_calls
from arrowflow.plan.lane import InLanes, Lane, Obstacle
from arrowflow.plan.node import BindContext, Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape, below
from arrowflow.plan.traits import Borders, Resume, SharedByEpochs, Traits
from arrowflow.plan.walk import rewritten, rows_in_lanes

MAX_CYCLE_LENGTH = 512
"""The largest number of open inputs: each is some 100 bytes of a state, and a state has to stay under 64 KiB."""

MIN_LANE_ELEMENTS = 8
"""The least elements of a lane. Equal steps end with the shortest lane, and of 20 files in 16 lanes four would be left out."""

_IN_ORDER: Final = Traits(opaque=True, borders=Borders.FREE, needs_rows=True, local=True, repeatable=False)
_IN_ANY_ORDER: Final = dataclasses.replace(_IN_ORDER, resume=Resume.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interleave(PieceOperator, InLanes):
    """The rows of the datasets that `fn` returns for the rows of its input, `cycle_length` of them in rotation.

    A turn takes `block_length` rows of one dataset, or one chunk of it: the dataset's splits, cut every
    `max_chunk_rows` rows or `max_chunk_bytes`. Row order: the rotation's, whatever is ready first; with `deterministic=False` an element
    that is not ready is skipped for now. Memory: the chunks of `cycle_length` inputs, and of one input opened ahead.
    Deterministic if `fn` is. Resume: (input's position before the oldest open element; place, number and position of
    each open element; place, rows left and number of the turn; next element). `fn` is called again for the open
    elements, and for no other element that came before. With `deterministic=False` there is no resume.

    Attributes:
        fn: Returns a dataset for a row, which is a dict of Python values.
        plan_of: Returns the plan of the dataset that `fn` returned, or None for anything else.
        cycle_length: Elements that are open at the same time.
        block_length: Rows of a turn, or None for one chunk.
        num_parallel_calls: How many of the open elements are begun, or None for all.
        deterministic: Whether the rotation is strict, or None to follow `Options.deterministic`.
        place: Bound: the operator's place in the plan as written.
        lane: The lane that it runs in, which gives its elements random numbers of their own; None without lanes.
    """

    name: ClassVar[str] = "interleave"
    fn: ElementFunction = field(hash=False)
    plan_of: Callable[[object], Node | None] = field(compare=False, repr=False)
    cycle_length: int
    block_length: int | None = None
    num_parallel_calls: int | None = None
    deterministic: bool | None = None
    place: int = field(default=0, compare=False)
    lane: Lane | None = None

    @classmethod
    def of(
        cls,
        below: Node,
        fn: ElementFunction,
        plan_of: Callable[[object], Node | None],
        *,
        cycle_length: int = 1,
        block_length: int | None = None,
        num_parallel_calls: int,
        deterministic: bool | None = None,
    ) -> Self:
        if not callable(fn):
            raise PlanError(f"{cls.name}: expected a function that returns a dataset, got {shown(fn)}")
        if deterministic is not None:
            deterministic = check_flag(cls.name, "deterministic", deterministic)
        if block_length is not None:
            block_length = check_size(cls.name, "block_length", block_length)
        return cls(
            inputs=(below,),
            fn=fn,
            plan_of=plan_of,
            cycle_length=check_size(cls.name, "cycle_length", cycle_length, most=MAX_CYCLE_LENGTH),
            block_length=block_length,
            num_parallel_calls=parallel_calls(cls.name, num_parallel_calls),
            deterministic=deterministic,
        )

    @property
    def traits(self) -> Traits:  # type: ignore[override]  # resumes by its order
        """Without an order there is no place to come back to; the function may open anything, which no plan shows."""
        return _IN_ANY_ORDER if self.deterministic is False else _IN_ORDER

    def arguments(self) -> Mapping[str, Any]:
        return {
            "fn": function_name(self.fn),
            "cycle_length": self.cycle_length,
            "block_length": self.block_length,
        }

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """A lane opens its part of the elements. Of few elements, lanes would have very different numbers of rows."""
        rows = rows_in_lanes(self.inputs[0])
        if rows is not None and rows < MIN_LANE_ELEMENTS * lanes:
            return Obstacle(self.name, f"opens {rows:,} datasets, few for each of {lanes} lanes")
        return InLanes.obstacle(self, lanes, times)

    def in_lane(self, lane: Lane) -> Node:
        return InLanes.in_lane(dataclasses.replace(self, lane=lane), lane)

    def functions(self) -> Mapping[str, str]:
        return {self.name: code_digest(self.fn)}

    def identity(self) -> dict[str, Any]:
        """Returns the arguments that decide its turns, and its place, which gives the places of its elements."""
        return {**Operator.identity(self), "place": self.place}

    def asked_for(self, again: int | None, rows: int | None, options: ResolvedOptions) -> Node:
        """Notes the limits that hold in its elements, whose turns and functions see borders."""
        return dataclasses.replace(self, pieces=Pieces.of(options))

    def borders(self) -> Mapping[str, Any]:
        """Returns these limits; turns with a length depend on them only where elements have functions of their own."""
        own = PieceOperator.borders(self)
        return own if self.block_length is None and self.cycle_length > 1 else {"elements": own["pieces"]}

    def shared_by_epochs(self, share: SharedByEpochs) -> SharedByEpochs:
        """The datasets that the function opens may draw at random."""
        return SharedByEpochs.NOTHING

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        return dataclasses.replace(self, place=context.place).on(*inputs)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        return None

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        ordered = options.deterministic if self.deterministic is None else self.deterministic

        def change(plan: Node) -> Node:
            plan = in_order(plan) if ordered else plan
            return Turns(inputs=(plan,)) if self.block_length is None else plan

        at_once = self.num_parallel_calls or (None if options.autotune else 1)
        block = f"{self.block_length:,} rows" if self.block_length else "one chunk"
        return (
            KernelSpec("serial", lambda context: RowKernel(), position=Shape(RowsWanted), facts="cut rows"),
            KernelSpec(
                "stateless",
                lambda context: OpenKernel(self, context, change),
                phase="open",
                cost="unknown",
                max_calls=self.num_parallel_calls,
                facts=f"{function_name(self.fn)}(row), and plan what it returns",
            ),
            KernelSpec(
                "boundary",
                lambda context: InterleaveKernel(self, context, at_once=at_once, ordered=ordered),
                position=Shape(InterleavePosition, self._wrong, lambda at: [(0, _input_of(at))]),
                pins_order=self.deterministic is True,
                facts=f"rotate over {self.cycle_length} inputs, {block} of each in turn",
            ),
        )

    def _wrong(self, at: InterleavePosition) -> str | None:
        places = [each.place for each in at.open]
        if (self.block_length is None) is not (at.left is None):
            return (
                f"left is {at.left}, expected {'null' if self.block_length is None else 'a number of rows'}"
            )
        if at.left is not None and not 0 < at.left <= (self.block_length or 0):
            return f"left is {at.left}, expected 1 to {self.block_length}"
        if len(set(places)) < len(places) or len({each.number for each in at.open}) < len(places):
            return "open names a place or a row twice"
        return below("place", max([at.place, *places]), self.cycle_length) or below(
            "number", max((each.number for each in at.open), default=0), max(at.next, 1)
        )


def in_order(plan: Node) -> Node:
    """Returns a plan with its rows in one exact order, where an operator was asked for less."""

    def change(node: Node) -> Node:
        return dataclasses.replace(node, deterministic=True) if isinstance(node, Interleave) else node

    return rewritten(plan, change)


def _input_of(at: InterleavePosition) -> RowsWanted:
    """Returns the position at which the cutter of rows opens."""
    return RowsWanted(at.start, tuple(sorted(each.number for each in at.open)), at.next)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns(RowOperator, PieceOperator):
    """An element's splits, cut every `max_chunk_rows` rows or `max_chunk_bytes`: the pieces for turns without a length.

    Row order: as its input. Memory: one piece. Deterministic. Resume: (position before the piece, rows, split, piece).
    """

    name: ClassVar[str] = Interleave.name
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, local=True)

    def arguments(self) -> Mapping[str, Any]:
        return {}

    def asked_for(self, again: int | None, rows: int | None, options: ResolvedOptions) -> Node:
        """Notes where splits are cut; no turn is short since it is the first one."""
        return dataclasses.replace(self, pieces=dataclasses.replace(Pieces.of(options), first_rows=None))

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        return recut_specs(self)


class OpenKernel(StatelessKernel):
    """Calls the function, and plans the dataset that it returns.

    Args:
        node: The operator.
        context: Plans the datasets.
        change: Returns the plan that is run in place of a dataset's.
    """

    def __init__(self, node: Interleave, context: Context, change: Callable[[Node], Node]) -> None:
        self._node = node
        self._context = context
        self._change = change

    def apply(self, chunk: Row, origin: Origin) -> Element:
        node, row = self._node, chunk.chunk.to_pylist()[0]
        try:
            result = node.fn(row)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise FunctionError(
                f"{function_name(node.fn)} raised {said(error)} (it was given the row {shown(row)})"
            ) from error
        plan = self._change(self._checked(result, row))
        # This place differs from every other place, whatever was opened before: random values follow from the numbers.
        lane = node.lane
        number = chunk.number if lane is None else chunk.number * lane.count + lane.number
        first_place = ((node.place + 1) << ELEMENT_BITS | number) << PLACE_BITS
        return Element(number=chunk.number, before=chunk.before, plan=self._context.plan(plan, first_place))

    def _checked(self, result: object, row: dict[str, Any]) -> Node:
        node, plan = self._node, self._node.plan_of(result)
        what = f"{function_name(node.fn)} returned a {type(result).__name__} for the row {shown(row)}"
        if plan is None:
            raise FunctionError(f"{what}, expected an arrowflow.Dataset")
        if plan.batched:
            raise FunctionError(
                f"{what} that comes in batches, which would not stay whole; put `batch` after `{node.name}`"
            )
        return plan


class InterleaveKernel(BoundaryKernel):
    """Takes blocks of the open elements in rotation.

    When `next_input` is called, the element whose turn it is holds no rows: `_turns` has emitted them.
    """

    any_ready = True
    chunks_held = 1

    def __init__(self, node: Interleave, context: Context, *, at_once: int | None, ordered: bool) -> None:
        self._context = context
        self._function = function_name(node.fn)
        self._block = node.block_length
        self._at_once = at_once
        self._ordered = ordered
        self._epoch = 0
        self._input: StreamHandle | None = None
        self._input_ended = False
        self._input_position: Position = None
        self._cycle: list[Element | None] = [None] * node.cycle_length
        # By place, the part of a position for an element; also for elements to open again that did not come yet.
        self._marks: list[OpenElement | None] = [None] * node.cycle_length
        self._start: CutPosition | None = None  # of the cutter, before the oldest of these elements
        self._saved: dict[int, int] = {}  # number -> place of the elements that did not come yet
        self._seats = 0  # elements that have a place
        self._coming: deque[Element] = deque()  # the next elements, without a place
        self._unopened: list[Element] = []
        self._place = 0
        self._left = self._block
        self._turn = 0
        self._next = 0  # number of the next element that gets a place
        self._first = FirstSchema()

    def open(self, position: Position, epoch: int) -> Position:
        """Restores whose turn it is, and which elements to open again; `next_input` opens these elements."""
        self._epoch = epoch
        if position is not None:
            at = InterleavePosition._make(position)
            self._start, _, self._place, self._left, self._turn, self._next = at
            at = at._replace(open=tuple(map(OpenElement._make, at.open)))
            for mark in at.open:
                self._marks[mark.place] = mark
                self._saved[mark.number] = mark.place
            self._input_position = _input_of(at)
        return None

    # ------------------------------------------------------------------ inputs to pull from

    def next_input(self) -> StreamHandle | None:
        """Returns the stream of the element whose turn it is; the input's, if there is no element or room for more."""
        if self._input is None and not self._input_ended:
            self._input = self._context.open(0, self._epoch, self._input_position)
        element = self._seated()
        if self._unopened:
            self._open_near()
        more = self._input
        room = len(self._cycle) + (self._at_once is None) - self._seats - len(self._coming)
        if element is None or (more is not None and room > 0 and more.ready_without_error):
            return more
        return element.stream

    def _open_near(self) -> None:
        """Opens the elements that should be at work now."""
        near: Sequence[Element | None] = self._unopened
        if self._at_once is not None:
            coming = iter(self._coming)
            turns = range(self._place, self._place + min(self._at_once, len(self._cycle)))
            near = [self._cycle[place % len(self._cycle)] or next(coming, None) for place in turns]
        for element in near:
            if element is not None and element.plan is not None:
                element.stream = self._context.open(element.plan, self._epoch, element.start)
                element.plan = None
        self._unopened = [element for element in self._unopened if element.stream is None]

    @property
    def exhausted(self) -> bool:
        return self._input_ended and not self._unopened

    # ------------------------------------------------------------------ chunks that come

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        """Takes an element, or a chunk of an element; yields the blocks that are complete now."""
        if stream is self._input:
            self._arrived(item.chunk)
        else:
            element = self._cycle[self._place_of(stream)]
            assert element is not None
            what = f"what {self._function} returned for row {element.number:,}"
            advice = f"`select` columns in one order and `cast` types in {self._function}"
            element.held.add(item._replace(chunk=self._first.checked(item.chunk, what, advice)))
        return self._turns()

    def ended(self, stream: StreamHandle) -> Iterator[Item]:
        """Frees the place of an element that has ended, and drops the rest of its block."""
        if stream is self._input:
            self._input, self._input_ended = None, True
        else:
            self._place = place = self._place_of(stream)
            self._cycle[place] = self._marks[place] = None
            self._seats -= 1
            self._find_start()
            self._advance()
        return self._turns()

    def held(self) -> list[Held]:
        return [element.held for element in self._cycle if element is not None]

    def _arrived(self, element: Element) -> None:
        self._unopened.append(element)
        place = self._saved.pop(element.number, None)
        if place is None:
            self._coming.append(element)
            return
        mark = self._marks[place]
        assert mark is not None
        element.start = mark.before
        element.held = Held(mark.before, mark.offset)
        self._cycle[place] = element
        self._seats += 1
        self._find_start()

    def _find_start(self) -> None:
        if not self._saved:
            oldest = min(filter(None, self._cycle), key=lambda element: element.number, default=None)
            self._start = None if oldest is None else oldest.before

    def _place_of(self, stream: StreamHandle) -> int:
        cycle = self._cycle
        places = itertools.chain((self._place,), range(len(cycle)))
        return next(p for p in places if (element := cycle[p]) is not None and element.stream is stream)

    # ------------------------------------------------------------------ turns

    def _turns(self) -> Iterator[Item]:
        """Yields blocks for as long as the element whose turn it is holds rows."""
        while (element := self._seated()) is not None and element.held.rows:
            rows = element.held.rows if self._left is None else min(element.held.rows, self._left)
            # One chunk: an element is pulled from only when it holds no rows.
            (chunk,), (ticket,) = element.held.pop(rows)
            self._marks[self._place] = OpenElement(self._place, element.number, *element.held.mark())
            yield self._put(chunk, ticket, rows)

    def _put(self, chunk: pa.RecordBatch, ticket: Ticket, rows: int) -> Item:
        turn = self._turn
        if self._left is not None:
            self._left -= rows
        if last := not self._left:
            self._advance()
        full = self._seats == len(self._cycle)  # to look for free places would cost most of a turn
        marks = cast(tuple[OpenElement, ...], tuple(self._marks if full else filter(None, self._marks)))
        position = InterleavePosition(self._start, marks, self._place, self._left, self._turn, self._next)
        return Item(chunk, position, ticket, Origin(turn, 0, last))

    def _advance(self) -> None:
        self._place = (self._place + 1) % len(self._cycle)
        self._left = self._block
        self._turn += 1

    def _seated(self) -> Element | None:
        """Returns the element whose turn it is; None if it is still to come from the input, or if all have ended."""
        if not self._ordered:
            return self._first_ready()
        for _ in self._cycle:
            element = self._filled(self._place)
            if element is not None or not self._input_ended:
                return element
            self._advance()
        return None

    def _filled(self, place: int) -> Element | None:
        """Returns the element at a place; a free place gets the next element that comes."""
        element = self._cycle[place]
        if element is None and self._coming:
            element = self._cycle[place] = self._coming.popleft()
            self._marks[place] = OpenElement(place, element.number, None, 0)
            self._seats += 1
            self._next = element.number + 1
            if self._seats == 1:
                self._find_start()
        return element

    def _first_ready(self) -> Element | None:
        """Returns the next element in rotation that is ready; if none is, the next element, or None for the input."""
        length = len(self._cycle)
        places = [place % length for place in range(self._place, self._place + length)]
        seated = [(place, element) for place in places if (element := self._filled(place)) is not None]
        ready = [(place, element) for place, element in seated if element.ready][:1]
        waits_for_input = not seated or (self._input is not None and self._input.ready)
        if not ready and waits_for_input:
            return None
        ((place, element),) = ready or seated[:1]
        if place != self._place:
            self._advance()
            self._place = place
        return element
