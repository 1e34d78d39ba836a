"""Runs a plan on ranks, in parts or whole, and compares what they deliver with the plan without the split."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

import arrowflow as af
from tests.fuzz.drafts import Draft, made
from tests.ops.ranks.test_coordinator import Meeting

Way = Literal["parts", "whole"]
Rows = tuple[tuple[Any, ...], ...]
"""The rows of a batch."""
States = list[dict[str, Any]]

MOST_STEPS: Final = 12
"""Of plans without an end."""
UNCOUNTED: Final = "equal_steps"
"""The word in the error for plans of which only a run tells how many rows they have."""

REFUSED_LATE: Final = ("equal steps leave all of them out", "has no row in this repetition")
"""What errors say that only a run finds: an epoch has rows and no step, or a part cannot tell whether others have rows."""


class Refused(Exception):
    """The library refuses to split the plan by a typed error that says what to do."""


class Unrunnable(Exception):
    """The plan cannot run without a split either."""


@dataclass(frozen=True)
class Case:
    """A plan, and how many ranks run it.

    Attributes:
        draft: The plan.
        how: As in `split_by_rank`.
        most_lanes: In how many lanes it runs, if so many divide a batch, and if ranks are not more.
        before: How many ranks begin.
        after: How many ranks go on.
        step: The step after which they change.
        epoch: The epoch.
        merged: Whether the ranks go on from all states, or from that of one rank.
    """

    draft: Draft
    how: Way | None
    most_lanes: int
    before: int
    after: int
    step: int
    epoch: int
    merged: bool

    def __repr__(self) -> str:
        split = f"how={self.how!r}, lanes={self.lanes}, {self.before} ranks and {self.after} after step {self.step}"
        return f"\n  {self.draft.text}\n  {split}, epoch {self.epoch}, merged={self.merged}\n"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis prints, which else takes dataclasses apart."""
        printer.text(repr(self))

    @property
    def lanes(self) -> int:
        return min(self.draft.size or self.most_lanes, max(self.most_lanes, self.before, self.after))

    @property
    def resumes(self) -> bool:
        """Whether the plan has states: streams that are read once have none."""
        return "stream(" not in self.draft.text

    @property
    def most_steps(self) -> int | None:
        """How many steps of the plain plan are compared."""
        return MOST_STEPS if self.draft.endless else None

    @property
    def turns(self) -> int:
        """How many batches all parts make of a step of their own: one, or one of each lane."""
        return 1 if self.draft.one_batch else self.lanes

    def steps(self, rounds: int, size: int) -> int:
        """Returns how many batches a rank of so many gets in so many rounds of all parts."""
        return rounds if self.draft.one_batch else rounds * self.lanes // size


# -------------------------------------------------------------------------------------------------- runs


def run_of(dataset: af.Dataset, epoch: int, state: dict[str, Any] | None = None) -> Any:
    """Opens a run at the start of an epoch, or at a state."""
    run = iter(dataset)
    run.set_epoch(epoch)
    if state is not None:
        run.load_state_dict(state)
    return run


def plain_batches(text: Callable[[], af.Dataset], epoch: int, most: int | None) -> list[pa.RecordBatch]:
    """Returns the batches of the plan without the split.

    Raises:
        Unrunnable: The library refuses the plan without a split.
    """
    try:
        with run_of(text(), epoch) as run:
            return list(itertools.islice(run, most))
    except af.ArrowflowError as error:
        raise Unrunnable(str(error)) from error


@dataclass(frozen=True)
class Split:
    """How a plan is split.

    Attributes:
        case: The plan.
        way: How it runs; None where the library chooses.
        equal_steps: As in `split_by_rank`.
    """

    case: Case
    way: Way | None
    equal_steps: Literal["drop"] | None = None

    def dataset(self, rank: int, size: int, meeting: Meeting | None) -> af.Dataset:
        options: dict[str, Any] = {"how": self.way}
        if self.way != "whole":
            options |= {"lanes": self.case.lanes, "equal_steps": self.equal_steps, "coordinator": meeting}
        return self.case.draft.plain().split_by_rank(rank, size, **options)

    def run(
        self, size: int, steps: int | None, states: States | None = None
    ) -> tuple[list[list[pa.RecordBatch]], States]:
        """Returns the batches of each rank, at most so many, and the ranks' states after them.

        Raises:
            Refused: So many ranks cannot run the plan.
        """
        meeting = Meeting(size) if self.equal_steps == "drop" and size > 1 else None

        def one(rank: int) -> tuple[list[pa.RecordBatch], dict[str, Any]] | af.ArrowflowError:
            try:
                dataset = self.dataset(rank, size, meeting)
                state = None if states is None else states[rank % len(states)]
                with run_of(dataset, self.case.epoch, state) as run:
                    batches = list(itertools.islice(run, steps))
                    has_state = steps is not None and self.case.resumes
                    return batches, json.loads(json.dumps(run.state_dict())) if has_state else {}
            except BaseException as error:
                if meeting is not None:
                    meeting.abort()
                if isinstance(error, af.ArrowflowError):
                    return error
                raise

        with ThreadPoolExecutor(size if meeting else 1) as pool:
            told = list(pool.map(one, range(size)))
        errors = [each for each in told if isinstance(each, af.ArrowflowError)]
        for error in sorted(errors, key=lambda error: isinstance(error, af.RankError)):
            if self.refuses(error):
                raise Refused(str(error)) from error
            raise error
        found = [each for each in told if not isinstance(each, af.ArrowflowError)]
        counts = {len(batches) for batches, _ in found}
        assert len(counts) == 1, f"ranks made different numbers of steps: {sorted(counts)}"
        return [batches for batches, _ in found], [state for _, state in found]

    def refuses(self, error: af.ArrowflowError) -> bool:
        """Whether an error says that so many ranks cannot run the plan, or cannot go on from the state of one of them."""
        if isinstance(error, af.DataError):
            return any(words in str(error) for words in REFUSED_LATE)
        if isinstance(error, af.StateError):
            return not self.case.merged and self.way != "whole"
        return isinstance(error, af.PlanError)

    def merged(self, states: States) -> States:
        """Returns the state that all ranks load."""
        return [af.merge_states(states)] if self.case.merged else states[-1:]


# -------------------------------------------------------------------------------------------------- rows


def rows_of(batch: pa.RecordBatch) -> Rows:
    """Returns the rows of a batch, lists without their padding."""
    return tuple(zip(*(map(_value, column.to_pylist()) for column in batch.columns), strict=True))


def _value(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    while value and value[-1] == 0:
        value.pop()
    return tuple(value)


def units_of(draft: Draft, batches: Sequence[pa.RecordBatch]) -> Counter[Any]:
    """Returns how often each row comes, or what stays together; no fillers, and nothing that parts draw anew."""
    found: Counter[Any] = Counter()
    for batch in batches:
        if "mask" in batch.schema.names:
            batch = batch.filter(batch["mask"]).drop_columns("mask")
        if draft.noisy:
            batch = batch.select([name for name in batch.schema.names if name != "x"])
        found.update(rows_of(batch) if draft.unit == "rows" else _tokens(draft, batch))
    return found


def _tokens(draft: Draft, batch: pa.RecordBatch) -> Iterator[Any]:
    for tokens, segments in zip(batch["tokens"].to_pylist(), batch["segment_ids"].to_pylist(), strict=True):
        pairs = itertools.groupby(zip(segments, tokens, strict=True), key=lambda pair: pair[0])
        for segment, values in pairs:
            if segment:
                document = tuple(token for _, token in values)
                yield from (document,) if draft.unit == "documents" else document


# ------------------------------------------------------------------------------------------------- whole


def check_whole(case: Case, way: Way | None) -> None:
    """Raises `AssertionError` where ranks that run the whole plan deliver other rows, or other ones at some step."""
    batches = plain_batches(case.draft.plain, case.epoch, case.most_steps)
    plain = [rows_of(batch) for batch in batches]
    split, draft = Split(case, way), case.draft
    steps, places = dealt(draft, plain, case.before)
    at, merged = 0, None
    if case.resumes:
        at = min(case.step, len(steps))
        found, states = split.run(case.before, at)
        compare(by_step(found), steps[:at], f"{case.before} ranks up to step {at}")
        merged = split.merged(states)
    rest, _ = dealt(draft, plain[places[at - 1] if at else 0 :], case.after)
    found, _ = split.run(case.after, len(rest) if draft.endless else None, merged)
    compare(by_step(found), rest, f"{case.after} ranks after step {at}")


def dealt(draft: Draft, plain: Sequence[Rows], size: int) -> tuple[list[list[Rows]], list[int]]:
    """Returns what each rank gets at each step, and the number of plain batches up to there."""
    if draft.one_batch:
        kept = [number for number, rows in enumerate(plain) if len(rows) >= size]
        return [_cut(plain[number], size) for number in kept], [number + 1 for number in kept]
    starts = range(0, len(plain) - size + 1, size)
    return [list(plain[start : start + size]) for start in starts], [start + size for start in starts]


def _cut(rows: Rows, size: int) -> list[Rows]:
    borders = [rank * len(rows) // size for rank in range(size + 1)]
    return [rows[start:end] for start, end in itertools.pairwise(borders)]


def by_step(found: Sequence[Sequence[pa.RecordBatch]]) -> list[list[Rows]]:
    """Returns the rows of each rank at each step."""
    return [[rows_of(batch) for batch in step] for step in zip(*found, strict=True)]


def compare(found: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    """Names the first step that differs."""
    for step, (one, other) in enumerate(itertools.zip_longest(found, expected)):
        assert one == other, (
            f"{what}: step {step} of {len(found)}, expected {len(expected)}: {one}\nexpected {other}"
        )


# ------------------------------------------------------------------------------------------------- parts


def check_parts(case: Case, way: Way | None) -> None:
    """Raises `AssertionError` where the parts lack rows or have others, or depend on the number of ranks."""
    draft = case.draft
    plain = plain_batches(draft.plain, case.epoch, case.most_steps)
    split, counted = Split(case, way), True
    most = case.steps(MOST_STEPS if draft.one_batch else 2, 1) if draft.endless else None
    try:
        (alone,), _ = split.run(1, most)
    except Refused as error:
        if UNCOUNTED not in str(error):
            raise
        split, counted = Split(case, way, "drop"), False
        (alone,), _ = split.run(1, most)
    check_rows(case, alone, plain, lost=(case.lanes - 1) * draft.remainders if counted else None)
    check_buckets(draft, alone)
    check_sizes(case, split, alone)


def check_rows(
    case: Case, found: Sequence[pa.RecordBatch], plain: Sequence[pa.RecordBatch], lost: int | None
) -> None:
    """Compares rows; at most so many may be missing, any number where it is None."""
    draft = case.draft
    have, want = units_of(draft, found), units_of(draft, plain)
    limit = want if draft.limit == draft.text else None
    if limit is None or draft.endless:
        most = 8 * MOST_STEPS if draft.endless and "sample(" in draft.text else None
        batches = plain_batches(lambda: made(draft.limit), case.epoch, most)
        limit = units_of(draft, batches)
    foreign = have.keys() - limit.keys() if draft.endless_limit else (have - limit).keys()
    assert not foreign, f"{len(foreign)} rows are foreign or come twice, as {sorted(foreign, key=str)[:5]}"
    assert bool(have) or not plain or lost is None, "no rows, where the plain plan has some"
    if lost is None or draft.endless or draft.countless:
        return
    if draft.exact:
        missing = want - have
        assert missing.total() <= lost, (
            f"{missing.total()} rows are missing, as {sorted(missing, key=str)[:5]}"
        )
    else:
        slack = lost + 6 * math.sqrt(want.total()) + 8 * case.lanes + draft.size
        difference = have.total() - want.total()
        assert abs(difference) <= slack, f"{have.total()} rows, the plain plan has {want.total()}"


def check_buckets(draft: Draft, batches: Sequence[pa.RecordBatch]) -> None:
    """Raises `AssertionError` where a batch has rows of two buckets."""
    for batch in batches if draft.buckets else ():
        numbers = batch["id"].to_pylist()
        buckets = {sum(number % 6 >= border for border in draft.buckets) for number in numbers}
        assert len(buckets) == 1, f"rows of the buckets {buckets} are in one batch"


def check_sizes(case: Case, split: Split, alone: Sequence[pa.RecordBatch]) -> None:
    """Compares the global batches of other numbers of ranks, also after a change among them, with those of one process."""
    expected = [rows_of(batch) for batch in alone]
    rounds = len(expected) // case.turns
    at, begun, merged = 0, [], None
    if case.resumes:
        at = min(case.step, rounds)
        found, states = split.run(case.before, case.steps(at, case.before))
        begun, merged = joined(case, found), split.merged(states)
    left = case.steps(rounds - at, case.after) if case.draft.endless else None
    found, _ = split.run(case.after, left, merged)
    what = f"{case.before} ranks, and {case.after} after step {at}"
    if case.draft.one_batch:
        compare(begun + joined(case, found), expected, what)
    else:
        compare_rounds(case, begun + joined(case, found), expected, what)


def joined(case: Case, found: Sequence[Sequence[pa.RecordBatch]]) -> list[Rows]:
    """Returns the global batches, or all batches where ranks get whole ones."""
    if case.draft.one_batch:
        return [tuple(itertools.chain(*parts)) for parts in by_step(found)]
    return [rows_of(batch) for batches in found for batch in batches]


def compare_rounds(case: Case, found: Sequence[Rows], expected: Sequence[Rows], what: str) -> None:
    """Compares batches that lanes make in turn: those of whole rounds are the same, in another order."""
    rounds = len(expected) // case.lanes * case.lanes
    missing = Counter(expected[:rounds]) - Counter(found)
    foreign = Counter(found) - Counter(expected)
    assert not missing, f"{what}: {missing.total()} batches of one process are missing"
    assert foreign.total() < case.lanes, f"{what}: {foreign.total()} batches are not those of one process"
