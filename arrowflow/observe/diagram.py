"""`diagram`: a plan as a picture, the sources on top. SVG in the colour of the text around it, light or dark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from arrowflow.errors import cut
from arrowflow.observe.charts import safe
from arrowflow.plan.node import Node

MAX_LETTERS: Final = 56
"""Letters of a box; the whole line is its tooltip."""
_LETTER, _HEIGHT, _ROOM, _GAP = 7.3, 26.0, 22.0, 18.0


class _Box(NamedTuple):
    """An operator with its inputs: where its box is, and how much room all of them take."""

    text: str
    above: tuple[_Box, ...]
    left: float
    width: float
    level: int

    @property
    def middle(self) -> float:
        return self.left + self.width / 2

    @property
    def top(self) -> float:
        return self.level * (_HEIGHT + _ROOM) + 1


def diagram(plan: Node) -> str:
    """Returns the SVG text of a plan: a box an operator, and lines from the boxes before it."""
    last, width = _placed(plan, 1.0)
    height = last.top + _HEIGHT + 1
    boxes = list(_all(last))
    label = f"plan: {', then '.join(safe(cut(box.text, MAX_LETTERS)) for box in boxes)}"
    parts = [part for box in boxes for part in _drawn(box)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 1:.0f} {height:.0f}" width="{width + 1:.0f}" '
        f'style="max-width:100%;height:auto" role="img" aria-label="{label}" fill="none" stroke="currentColor" '
        f'font-family="ui-monospace,monospace" font-size="12">{"".join(parts)}</svg>'
    )


def _placed(plan: Node, left: float) -> tuple[_Box, float]:
    """Returns a box at `left` or right of it, and where the room for it and its inputs ends."""
    text = plan.describe()
    width = min(len(text), MAX_LETTERS) * _LETTER + 20
    above: list[_Box] = []
    end = left
    for child in plan.inputs:
        box, end = _placed(child, end + _GAP if above else end)
        above.append(box)
    middle = (above[0].middle + above[-1].middle) / 2 if above else left + width / 2
    # A box that is wider than its inputs moves them, so that it does not reach out on the left.
    lack = max(0.0, left - (middle - width / 2))
    moved = tuple(_moved(box, lack) if lack else box for box in above)
    level = max((box.level for box in above), default=-1) + 1
    made = _Box(text, moved, middle + lack - width / 2, width, level)
    return made, max(end + lack, made.left + width)


def _moved(box: _Box, by: float) -> _Box:
    return box._replace(left=box.left + by, above=tuple(_moved(each, by) for each in box.above))


def _all(box: _Box) -> Iterator[_Box]:
    for each in box.above:
        yield from _all(each)
    yield box


def _drawn(box: _Box) -> Iterator[str]:
    for each in box.above:
        bottom, half = each.top + _HEIGHT, box.top - _ROOM / 2
        yield f'<path d="M{each.middle:.1f} {bottom:.1f}V{half:.1f}H{box.middle:.1f}V{box.top:.1f}" stroke-opacity=".5"/>'
    yield f"<g><title>{safe(box.text)}</title>"
    yield f'<rect x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" height="{_HEIGHT:g}" rx="5" '
    yield 'fill="currentColor" fill-opacity=".06"/>'
    yield f'<text x="{box.middle:.1f}" y="{box.top + 17:.1f}" text-anchor="middle" fill="currentColor" stroke="none">'
    yield f"{safe(cut(box.text, MAX_LETTERS))}</text></g>"
