"""A run in five steps: bind → optimise → plan → execute → tune, in that order.

`prepare` does everything that needs no thread, once per dataset until its files change. The only I/O in it is
`Node.bind` of sources: a listing and one footer each. `start` makes an engine of a prepared plan, with a tuner that
knows the results of earlier epochs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any

import pyarrow as pa

from arrowflow import state
from arrowflow.autotune import Policy
from arrowflow.clock import WallClock
from arrowflow.errors import BudgetError
from arrowflow.executor import Engine, Planning
from arrowflow.executor.limits import MAX_CALLS_BESIDE
from arrowflow.expr import forget_compiled
from arrowflow.kernels.kept import Kept
from arrowflow.observe.timeline import Timeline
from arrowflow.ops.columns.column_program import ColumnOperator
from arrowflow.ops.ranks.agreed_steps import AgreedSteps
from arrowflow.optimizer import optimise
from arrowflow.options import ResolvedOptions, check_flag
from arrowflow.physical.planner import all_stages, plan_chain
from arrowflow.physical.stage import Chain, check_position
from arrowflow.physical.tuning import MAX_WAITING_CALLS, StageKey, StageLimits
from arrowflow.plan.bind import bind, options_of
from arrowflow.plan.file_source import FileSource, with_kept_chunks
from arrowflow.plan.lane import InLanes
from arrowflow.plan.node import Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.traits import SharedByEpochs
from arrowflow.plan.walk import count, fold, post_order


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A plan, ready to run any number of times.

    Attributes:
        bound: The plan as written, with schemas.
        optimised: The plan after the rules.
        applied: Names of the rules that changed something.
        chain: The physical plan.
        options: Options of the whole pipeline.
        found: The tuner's results of earlier epochs.
        seconds: The time that it took to prepare it.
        counted: The rows and batches of the last whole epoch that ran, where only that tells.
        learnt_schema: The columns of the batches of a run, where only that tells.
    """

    bound: Node
    optimised: Node
    applied: tuple[str, ...]
    chain: Chain
    options: ResolvedOptions
    seconds: float = field(default=0.0, compare=False)
    found: dict[StageKey, StageLimits] = field(default_factory=dict, compare=False)
    counted: tuple[Count, Count] | None = field(default=None, compare=False)
    learnt_schema: pa.Schema | None = field(default=None, compare=False)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The part of a state that identifies this pipeline."""
        return state.identify(self.bound, self.chain, deterministic=self.options.deterministic)

    @property
    def is_current(self) -> bool:
        """Whether binding the plan anew would find the same files. Lists files on local disks."""
        return all(source.is_current for source in self._sources)

    @cached_property
    def _sources(self) -> list[FileSource]:
        return [node for node in post_order(self.bound) if isinstance(node, FileSource)]

    @property
    def num_rows(self) -> Count:
        """The rows of an epoch. Reads the footers of all files, once."""
        return self._count[0]

    @property
    def num_batches(self) -> Count:
        """The batches of an epoch of a plan that ends in batches. Reads the footers of all files, once."""
        return self._count[1]

    @property
    def known_count(self) -> tuple[Count, Count]:
        """The rows and batches of an epoch, as far as they are known without reading."""
        is_known = self.bound.in_memory or "_planned_count" in vars(self)
        return self._count if is_known else self.counted or (None, None)

    @property
    def _count(self) -> tuple[Count, Count]:
        rows, batches = self._planned_count
        learnt_rows, learnt_batches = self.counted or (None, None)
        return learnt_rows if rows is None else rows, learnt_batches if batches is None else batches

    @cached_property
    def _planned_count(self) -> tuple[Count, Count]:
        return count(self.bound)

    @cached_property
    def repeats_counts(self) -> bool:
        """Whether all epochs have as many rows and batches as the first one.

        They may differ where a plan makes random draws, where other rows meet after a shuffle, and where a function opens
        a source that the plan does not show. A generator is called without arguments, so it should yield as many.
        """
        source = SharedByEpochs.ORDER if self.options.deterministic else SharedByEpochs.NUMBER
        share = fold(self.bound, lambda node, inputs: node.shared_by_epochs(max(inputs, default=source)))
        return share is not SharedByEpochs.NOTHING

    def let_go(self) -> None:
        """Ends what all runs share beyond their end; the next run makes it anew."""
        _let_go(_split(self.optimised))

    def learn_count(self, rows: int, batches: int) -> None:
        """Takes note of the last whole epoch, if others have as many rows and batches. Any thread."""
        if self.repeats_counts:
            object.__setattr__(self, "counted", (rows, batches if self.bound.batched else None))

    def learn_schema(self, schema: pa.Schema) -> None:
        """Takes note of the columns of a batch."""
        object.__setattr__(self, "learnt_schema", schema)

    @property
    def batch_schema(self) -> pa.Schema | None:
        """The columns of batches: those of the plan, or of a run where only that tells; None before."""
        planned = self.optimised.schema
        return self.learnt_schema if planned is None else planned

    @cached_property
    def owns_buffers(self) -> bool:
        """Whether the memory of batches belongs to the batches alone."""
        return fold(self.optimised, lambda node, inputs: node.owns_buffers(inputs))


def prepare(plan: Node, *, without_last_select: bool = False) -> Prepared:
    """Binds, optimises and plans.

    Args:
        plan: The plan as written.
        without_last_select: Whether the caller picks columns by name, as loaders do, and the plan ends in a `select` of these
            names. Then only these columns are read. The step itself is left out, since it would stand between the
            last batch and its conversion.
    """
    clock = WallClock()
    began = clock.now()
    options = options_of(plan)
    bound = bind(plan, options, services=Planning(2 * MAX_WAITING_CALLS))
    optimised, applied = optimise(bound, options.disabled_rules)
    if (
        without_last_select
        and isinstance(optimised, ColumnOperator)
        and optimised.operators_merged() == ("select",)
    ):
        (optimised,) = optimised.inputs
    optimised = reduce(lambda plan, node: node.at_end(plan), _split(optimised), optimised)
    if options.keep is not False:
        optimised = with_kept_chunks(optimised, None if options.keep == "auto" else options.keep)
    chain = plan_chain(optimised, options)
    forget_compiled()
    seconds = clock.now() - began
    prepared = Prepared(
        bound=bound, optimised=optimised, applied=applied, chain=chain, options=options, seconds=seconds
    )
    for kept in _kept(chain):
        # The same holds for chunks.
        weakref.finalize(prepared, kept.clear).atexit = False
    lasting = [node for node in _split(optimised) if type(node).let_go is not InLanes.let_go]
    if lasting:
        # An engine that has ended refers to its nodes until garbage is collected, which may be never.
        weakref.finalize(prepared, _let_go, lasting).atexit = False
    return prepared


def _kept(chain: Chain) -> list[Kept]:
    found = (stage.keeps for stage in all_stages(chain))
    return list(dict.fromkeys(kept for kept in found if kept is not None))  # lanes share theirs


def _split(plan: Node) -> list[InLanes]:
    return [node for node in post_order(plan) if isinstance(node, InLanes)]


def _let_go(nodes: Iterable[InLanes]) -> None:
    for node in nodes:
        node.let_go()


def alone(prepared: Prepared) -> Prepared:
    """Returns the pipeline for a look at its batches, in which no other rank takes part."""
    last = prepared.optimised
    if not isinstance(last, AgreedSteps):
        return prepared
    (plan,) = last.inputs
    return replace(prepared, optimised=plan, chain=plan_chain(plan, prepared.options))


def plan_element(options: ResolvedOptions) -> Callable[[Node, int], Chain]:
    """Returns the function that plans datasets which user functions return to operators during a run."""

    def plan(node: Node, first_place: int) -> Chain:
        optimised, _ = optimise(
            bind(node, options, first_place, services=Planning(MAX_CALLS_BESIDE)), options.disabled_rules
        )
        return plan_chain(optimised, options)

    return plan


def check_budget(chain: Chain, budget_bytes: int) -> None:
    """Raises `BudgetError` if the stages cannot make progress within the budget, one after the other."""
    needs = [(spec.operator, spec.floor_bytes) for spec in _specs(chain) if spec.floor_bytes]
    floor = sum(num_bytes for _, num_bytes in needs)
    if floor > budget_bytes:
        parts = ", ".join(f"{operator} {num_bytes:,}" for operator, num_bytes in needs)
        raise BudgetError(
            f"ram_budget={budget_bytes:,} bytes is under the least that this pipeline needs, {floor:,} bytes "
            f"({parts}); raise the budget, or use a smaller shuffle window, max_lag_rows or row groups"
        )


def _specs(chain: Chain) -> list[Any]:
    own = [spec for stage in chain.stages for spec in stage.specs]
    return own + [spec for child in chain.children for spec in _specs(child)]


def start(
    prepared: Prepared,
    epoch: int,
    position: Position,
    clock: WallClock,
    timeline: Timeline | None,
    *,
    keeps: bool = False,
) -> Engine:
    """Starts a run, which may keep what sources make for later epochs.

    Raises:
        BudgetError: The byte budget is under the sum of the bytes that stages need to make progress one after the
            other.
    """
    options = prepared.options
    check_budget(prepared.chain, options.ram_budget)
    return Engine(
        prepared.chain,
        epoch,
        position,
        options,
        clock,
        tuner=Policy(prepared.found) if options.autotune else None,
        plan=plan_element(options),
        timeline=timeline,
        keeps=keeps,
    )


def length(prepared: Prepared, epoch: int, *, of_rows: bool = False) -> int:
    """Returns the batches of an epoch, without those that `skip_steps` leaves out, or its rows.

    Raises:
        TypeError: There is no such number: Python asks for this error.
    """
    count = prepared.num_rows if of_rows else prepared.num_batches
    if isinstance(count, int):
        left_out = () if of_rows else dict(prepared.options.skip_steps).get(epoch, ())
        return count - sum(step < count for step in left_out)
    if not of_rows and not prepared.bound.batched:
        raise TypeError("this pipeline does not end in batches, so it has no length: put batch(n) at its end")
    if count is None and not prepared.repeats_counts:
        raise TypeError(
            "the epochs of this pipeline may differ in length: count the batches of each, or declare the number of rows "
            "with assert_cardinality(n) or map(…, keeps_rows=True)"
        )
    if count is None:
        raise TypeError(
            "only a run tells the length of this pipeline: run a whole epoch first, or declare its rows with "
            "assert_cardinality(n), or with map(…, keeps_rows=True)"
        )
    raise TypeError("this pipeline is endless, so it has no length: put take(n) before batch")


def state_of(prepared: Prepared, epoch: int, position: Position, batches: int) -> dict[str, Any]:
    """Returns the state at a place: the position of the last delivered batch, and how many were delivered in its epoch."""
    state.check_resumable(prepared.bound, prepared.chain, deterministic=prepared.options.deterministic)
    return state.pack(prepared.identity, epoch, position, batches)


def place_of(
    prepared: Prepared, state_dict: Mapping[str, Any], *, strict: bool = True
) -> tuple[int, Position, int]:
    """Returns (epoch, position, batches): the place where a run goes on from a state."""
    state.check_resumable(prepared.bound, prepared.chain, deterministic=prepared.options.deterministic)
    strict = check_flag("load_state_dict", "strict", strict)
    place = state.unpack(state_dict, prepared.identity, prepared.bound, strict=strict)
    check_position(prepared.chain, place[1], ordered=prepared.options.deterministic)
    return place
