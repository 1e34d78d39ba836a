"""From bound nodes to chains of stages. Asks each node for its kernels; has no branch per operator."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Final, cast

import polars as pl

from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.options import ResolvedOptions
from arrowflow.physical.stage import Chain, StagePlan
from arrowflow.physical.tuning import (
    MAX_REORDER_SLOTS,
    MAX_WAITING_CALLS,
    MAX_WAITING_SLOTS,
    POOLED_CORES,
    StageLimits,
    untold_calls,
)
from arrowflow.plan.lane import InLanes
from arrowflow.plan.node import Node

MAX_WAITING_THREADS = 2 * MAX_WAITING_CALLS
"""Threads beyond the CPU budget, for calls that wait: two stages of them with all the calls that they may have."""

SERIAL_READY_ITEMS = 16
"""Serial kernels put out slices, which hold no memory of their own. So many slices wake the next stage rarely."""

READY_BESIDE: Final = 8
"""Finished chunks that streams beside each other, such as lanes, may have together, if there are few cores. A call makes several
chunks, and a lane that holds some of them begins no call. With 4 in place of 8, four lanes on two cores take 1.1 to 1.2 x as
long (`benchmarks.lanes`); with 16, eight lanes of `wide` need 1.4 x the memory."""

WAITING_PORTION: Final = 4
"""How much of the byte budget a stage that waits gets, where another that allocates gets 1. A network with a delay delivers more,
the more bytes are on their way: 1.1 x by 4 in place of 1 (`benchmarks.remote`)."""


def plan_chain(node: Node, options: ResolvedOptions) -> Chain:
    """Returns the physical plan of a bound, optimised plan."""
    return _fixed(_chain(node, options, Counter()))


def _chain(node: Node, options: ResolvedOptions, titles: Counter[str]) -> Chain:
    plans = node.planned_inputs if isinstance(node, InLanes) else node.inputs
    if plans is node.inputs or not plans:
        children = [_chain(plan, options, titles) for plan in plans]
    else:  # one plan on parts of the rows: all have the same titles
        names = [titles.copy() for _ in plans]
        children = [_chain(plan, options, own) for plan, own in zip(plans, names, strict=True)]
        children = [_beside(child, len(plans)) for child in children]
        titles |= names[0]
    chain = children[0] if children else Chain(stages=())
    for spec in _titled(cast(Operator, node), options, titles):
        if spec.sees_borders or not options.deterministic:  # then a state counts the rows of splits
            chain = _fixed(chain)
        chain = _append(chain, spec, (chain, *children[1:]) if children else ())
    return chain


def _beside(chain: Chain, streams: int) -> Chain:
    """Returns a chain that runs beside others of its kind: its stages share what one such stage may have."""
    stages = tuple(dataclasses.replace(stage, streams=stage.streams * streams) for stage in chain.stages)
    children = tuple(_beside(child, streams) for child in chain.children)
    return dataclasses.replace(chain, stages=stages, children=children)


def _fixed(chain: Chain) -> Chain:
    """Returns the chain with borders that do not depend on timing, but for those before its last splits of its own."""
    stages = list(chain.stages)
    for index, stage in reversed(list(enumerate(stages))):
        if any(spec.splits for spec in stage.specs):
            return dataclasses.replace(chain, stages=tuple(stages))
        kernels = tuple(
            dataclasses.replace(spec, make=spec.fixed, fixed=None) if spec.fixed else spec
            for spec in stage.kernels
        )
        stages[index] = dataclasses.replace(stage, kernels=kernels)
    return dataclasses.replace(chain, stages=tuple(stages), children=tuple(map(_fixed, chain.children)))


def _titled(operator: Operator, options: ResolvedOptions, titles: Counter[str]) -> tuple[KernelSpec, ...]:
    """Returns the kernels of an operator with its name; from the second one of its title on, that has a number."""
    made, title = operator.lower(options), operator.title
    titles[title] += 1
    if title and titles[title] > 1:
        title += f" #{titles[title]}"
    specs = made if isinstance(made, tuple) else (made,)
    return tuple(
        dataclasses.replace(spec, operator=spec.operator or operator.name, title=title) for spec in specs
    )


def _append(chain: Chain, spec: KernelSpec, children: Sequence[Chain]) -> Chain:
    """Returns the chain with one more kernel: a stage of its own, or fused onto the last one."""
    stages = chain.stages
    last = stages[-1] if stages else None
    match spec.kind:
        case "boundary":
            return Chain(
                stages=(StagePlan(kind="boundary", buffer_items=spec.buffer_items, kernels=(spec,)),),
                children=tuple(children),
            )
        case "buffer":
            assert last is not None
            stages = (
                *stages[:-1],
                dataclasses.replace(last, buffer_items=spec.buffer_items, prefetches=True),
            )
        case "source" | "reader":
            stages = (*stages, StagePlan(kind="parallel", head=spec, buffer_items=spec.buffer_items))
        case "serial":
            stages = (*stages, StagePlan(kind="serial", kernels=(spec,), buffer_items=spec.buffer_items))
        case "stateless":
            if last is not None and _fuses(last, spec):
                stages = (*stages[:-1], dataclasses.replace(last, kernels=(*last.kernels, spec)))
            else:
                stages = (*stages, StagePlan(kind="parallel", kernels=(spec,)))
    return dataclasses.replace(chain, stages=stages)


def _fuses(stage: StagePlan, spec: KernelSpec) -> bool:
    """Whether a stateless kernel runs in the same call as the stage before it.

    The kernel does unless the two have limits of their own, only one of them runs in worker processes, the one before says
    no, or a `prefetch` asked for a buffer in between. Where chunks are kept, only kernels that repeat run in the call.
    """
    return (
        stage.kind == "parallel"
        and stage.buffer_items is None
        and (stage.keeps is None or spec.repeats)
        and all(before.fuses for before in stage.specs)
        and stage.max_calls == spec.max_calls
        and stage.cost == spec.cost
        and stage.process == spec.process
    )


def default_limits(chain: Chain, index: int, options: ResolvedOptions, share: float = 1.0) -> StageLimits:
    """Returns the limits of stage `index` of a chain as the plan alone suggests them, before anything is measured.

    A stage may fill the byte budget up to the portions of all stages up to it, divided by the sum of all portions. So
    where one stage fetches and one decodes, the first may fill 4/5 of it and the second 5/5: whatever a fast source has
    read ahead, what is downstream still finds room to work. `share` is what all of the chain may use: less than 1 for the
    inputs of a boundary that stages follow.

    Stages before the first one that allocates only say what that one is to do, so they may go on as long as it may. Where
    its calls wait, the serial ones among them take no token. Those calls begin while all cores decode, and not when the
    last chunk is decoded. Without the two rules, reads come in bursts, and nothing is on its way between them
    (`benchmarks.remote`, 50 ms: 0.8 x the rate).
    """
    stage = chain.stages[index]
    before = _inputs_portion(chain)
    filled = before + _portion(chain.stages[: index + 1])
    first = next((each for each in chain.stages if _portion((each,))), stage)
    share *= max(1, filled or _portion((first,))) / max(1, before + _portion(chain.stages))
    if stage.kind != "parallel":
        ready = stage.buffer_items or SERIAL_READY_ITEMS
        leads = not filled and first.cost == "waits"
        return StageLimits(
            max_calls=1, max_ready_items=ready, ledger_share=share, weight=0.0 if leads else 1.0
        )
    weight = _weight(stage, options)
    computing = round(options.cpu_budget / (weight or 1))
    untold = {"computes": computing, "waits": MAX_WAITING_CALLS, "unknown": untold_calls(options.cpu_budget)}
    beside = 1 if stage.shares_calls else stage.streams
    calls = stage.max_calls or (untold[stage.cost] if options.autotune else stage.streams)
    ready = (
        max(4 if stage.streams == 1 else READY_BESIDE, 2 * options.cpu_budget) if options.autotune else calls
    )
    return StageLimits(
        streams=beside,
        max_calls=-(-calls // beside),
        max_ready_items=stage.buffer_items or -(-ready // stage.streams),
        ledger_share=share,
        weight=weight,
        max_slots=MAX_REORDER_SLOTS if stage.cost == "computes" else MAX_WAITING_SLOTS,
    )


def inputs_share(chain: Chain) -> float:
    """Returns what of a chain's share of the byte budget is for the inputs of its boundary."""
    before = _inputs_portion(chain)
    return before / (before + _portion(chain.stages))


def _portion(stages: Sequence[StagePlan]) -> int:
    """Returns how much of the byte budget some stages of a chain get: nothing but for those that allocate."""
    allocating = (stage for stage in stages if stage.kind == "parallel" and stage.phase != "open")
    return sum(WAITING_PORTION if stage.cost == "waits" else 1 for stage in allocating)


def _inputs_portion(chain: Chain) -> int:
    """Returns the portion of the longest input of a chain; 0 only for a chain that begins itself."""
    if chain.stages[0].kind != "boundary":
        return 0
    return max([1, *(_inputs_portion(child) + _portion(child.stages) for child in chain.children)])


def _weight(stage: StagePlan, options: ResolvedOptions) -> float:
    """Returns the cores that a call takes before anything is measured; given numbers hold as given without a tuner."""
    given = stage.max_calls is not None and not options.autotune
    if given or stage.cost == "waits":
        return 0.0
    pooled = "polars" in stage.engine and stage.cost == "computes"
    pool_fits = pooled and pl.thread_pool_size() <= options.cpu_budget > 1
    return POOLED_CORES if pool_fits and options.autotune else 1.0


def runs_on_demand(chain: Chain, options: ResolvedOptions) -> bool:
    """Whether nothing is made before the consumer asks: without a tuner, unless a `prefetch` says otherwise."""
    return not options.autotune and not any(stage.prefetches for stage in all_stages(chain))


def max_workers(chain: Chain, options: ResolvedOptions) -> int:
    """Returns the most threads that a run can use; they start one by one, as there is work for them."""
    if options.autotune:
        return options.cpu_budget + MAX_WAITING_THREADS
    stages = all_stages(chain)
    asked = sum(stage.max_calls or 0 for stage in stages) + sum(stage.prefetches for stage in stages)
    return max(1, asked)


def all_stages(chain: Chain) -> list[StagePlan]:
    """Returns the stages of a chain and of all its inputs."""
    return [*chain.stages, *(stage for child in chain.children for stage in all_stages(child))]
