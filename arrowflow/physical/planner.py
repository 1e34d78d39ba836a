"""From bound nodes to chains of stages. Asks each node for its kernels; has no branch per operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from arrowflow.ops.base import KernelSpec, Operator
from arrowflow.options import ResolvedOptions
from arrowflow.physical.stage import Chain, StagePlan
from arrowflow.physical.tuning import StageLimits
from arrowflow.plan.node import Node
from arrowflow.plan.walk import fold

SERIAL_READY_ITEMS = 16
"""What serial kernels put out are slices, which hold no memory of their own: enough to wake the next stage rarely."""


def plan_chain(node: Node, options: ResolvedOptions) -> Chain:
    """Returns the physical plan of a bound, optimised plan."""

    def combine(current: Node, children: Sequence[Chain]) -> Chain:
        chain = children[0] if children else Chain(stages=())
        for spec in cast(Operator, current).lower(options):
            chain = _append(chain, spec, children)
        return chain

    return fold(node, combine)


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
            stages = (*stages[:-1], dataclasses.replace(last, buffer_items=spec.buffer_items))
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

    It does unless the two have limits of their own, or a `prefetch` asked for a buffer in between.
    """
    return (
        stage.kind == "parallel"
        and stage.buffer_items is None
        and stage.max_calls == spec.max_calls
        and stage.cost == spec.cost
    )


def default_limits(chain: Chain, index: int, options: ResolvedOptions) -> StageLimits:
    """Returns the limits of stage `index` of a chain as the plan alone suggests them.

    A stage may use the byte budget up to its share: of n stages that allocate, the k-th from the source gets
    k/n. So whatever a fast source has read ahead, what is downstream still finds room to work.
    """
    stage = chain.stages[index]
    ready = stage.buffer_items or (
        max(4, 2 * options.cpu_budget) if stage.kind == "parallel" else SERIAL_READY_ITEMS
    )
    if stage.kind != "parallel":
        return StageLimits(max_calls=1, max_ready_items=ready)
    allocating = [i for i, other in enumerate(chain.stages) if other.kind == "parallel" and other.cost == "computes"]
    rank = sum(i <= index for i in allocating)
    calls = stage.max_calls or (options.cpu_budget + 2 if stage.cost != "computes" else options.cpu_budget)
    return StageLimits(
        max_calls=calls,
        max_ready_items=ready,
        ledger_share=max(1, rank) / max(1, len(allocating)),
    )
