"""How physical plans are shown: one block per stage, and one line per fact about its kernels."""

from __future__ import annotations

from arrowflow.physical.stage import Chain, StagePlan

_WHAT = {"parallel": "parallel, in order", "serial": "one at a time", "boundary": "opens streams"}


def render_chain(chain: Chain, number: int = 1) -> list[str]:
    """Returns one block of lines per stage, the source's first."""
    lines = [line for child in chain.different_children for line in render_chain(child, number)]
    first = number + sum(len(child.stages) for child in chain.different_children)
    for index, stage in enumerate(chain.stages):
        lines += _render_stage(stage, first + index)
    return lines


def _render_stage(stage: StagePlan, number: int) -> list[str]:
    fused = "fused, " if len(stage.specs) > 1 else ""
    calls = f", at most {stage.max_calls} calls" if stage.max_calls is not None else ""
    buffer = f", {stage.buffer_items} chunks ahead" if stage.buffer_items is not None else ""
    title = f"{number}. {' + '.join(stage.titles)} [{fused}{_WHAT[stage.kind]}{calls}{buffer}; runs in {stage.engine}]"
    return [title, *(f"   {spec.operator}: {fact}" for spec in stage.specs for fact in spec.facts())]
