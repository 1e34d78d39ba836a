"""States that somebody changed, with digests that fit: each part is checked where the state is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.plan.position import Mark
from arrowflow.plan.shape import MAX_NUMBER, Shape, checked
from arrowflow.state import digest
from arrowflow.testing.forgery import Path, forged
from tests.ops.tables import refused

Make = Callable[[], af.Dataset]


def mixed() -> af.Dataset:
    return af.sample_from_datasets([af.range(50), af.range(50, 90)], [3, 1], seed=1).batch(4)


def state_of(make: Make) -> dict[str, Any]:
    with iter(make()) as iterator:
        next(iterator)
        return dict(json.loads(json.dumps(iterator.state_dict())))


def loads(make: Make, path: Path, value: object) -> Callable[[], None]:
    def load() -> None:
        with iter(make()) as iterator:
            iterator.load_state_dict(forged(state_of(make), path, value))

    return load


def test_the_message_names_operator_part_and_limit() -> None:
    before, after = ("position", 0), ("position", 2)
    refused(
        af.StateError,
        loads(mixed, after, "x"),
        "batch: its position",
        "number is 'x', expected a whole number",
    )
    refused(af.StateError, loads(mixed, (*before, 4), 0), "sample_from_datasets", "most is 0", "altered")
    refused(af.StateError, loads(mixed, (*before, 0), []), "marks has 0 parts, expected 2")
    refused(af.StateError, loads(mixed, (*before, 1, 0, 0), [0.0, 0.0]), "expected weights")
    refused(
        af.StateError,
        loads(mixed, (*before, 0, 1), [[0, 0, 0], 0]),
        "range: its position",
        "expected 1 parts",
    )
    refused(af.StateError, loads(mixed, ("epoch",), -1), "epoch is -1, expected a whole number from 0 on")
    refused(af.StateError, loads(mixed, ("functions",), []), "functions is [], expected names with values")


def test_an_endless_input_does_not_skip_rows_for_ever() -> None:
    """Its end would be no limit."""

    def chosen() -> af.Dataset:
        numbers = af.from_numpy({"choice": [0, 1, 1]}).repeat()
        return af.choose_from_datasets([af.range(500), af.range(500)], numbers).batch(7)

    def cut() -> af.Dataset:
        return af.range(3).repeat().batch(7)

    for make, path in ((chosen, ("position", 0, 1, 1)), (cut, ("position", 1))):
        refused(
            af.StateError,
            loads(make, path, 1 << 40),
            "offset is 1099511627776",
            "to 4,294,967,296",
            "altered",
        )


def test_no_more_rows_are_gone_than_were_cut() -> None:
    """An endless input would skip the others for an hour."""

    def documents() -> af.Dataset:
        return af.from_arrow(pa.table({"tokens": [[1, 2, 3]] * 9})).repeat()

    makes: dict[str, Make] = {
        "batch": lambda: af.range(3).repeat().batch(7),
        "shuffle": lambda: af.range(3).repeat().shuffle(7),
        "first_fit": lambda: documents().pack_sequences("tokens", 8, window_rows=4),
        "concat_then_split": lambda: documents().pack_sequences(
            "tokens", 8, window_rows=4, strategy="concat_then_split"
        ),
    }
    for make in makes.values():
        refused(af.StateError, loads(make, ("position", 1), 1 << 31), " is 21474836", "expected at most")
    left = loads(makes["concat_then_split"], ("position", 3), 1 << 40)
    refused(af.StateError, left, "offset + left is ", "expected at most")


def test_rows_between_windows_that_do_not_touch_are_no_forgery() -> None:
    """There may be more of them than any chunk has rows."""

    def windows() -> af.Dataset:
        return af.range(1 << 40).window(2, shift=1 << 33)

    state = state_of(windows)
    assert state["position"][1] > 1 << 32
    with iter(windows()) as iterator:
        iterator.load_state_dict(state)
    refused(af.StateError, loads(windows, ("position", 1), 1 << 40), "offset is 1099511627776")


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"lanes": 3, "step": 0},
        {"lanes": {"x": [None, 0, False]}, "step": 0},
        {"lanes": {"0": [None, 0, False]}, "step": "x"},
        {"lanes": {"0": [None, 0, False]}, "step": [1]},
        {"lanes": {"0": [None, 0, False]}, "step": True},
        {"lanes": {"0": [None, 0, False]}, "step": -1},
        7,
        "lanes",
    ],
)
def test_places_of_lanes_that_are_none(value: object) -> None:
    refused(
        af.StateError,
        loads(lambda: af.range(64).batch(8).split_by_rank(0, 2), ("position", 0), value),
        "altered",
    )


def test_a_state_without_a_position() -> None:
    state = forged(state_of(mixed), ("epoch",), 0)
    without = {key: value for key, value in state.items() if key not in {"position", "digest"}}
    moving = {"epoch": 0, "position": None, "batches": state["batches"]}
    without["digest"] = digest([state["plan"], moving])  # as somebody makes it who has read this library
    with iter(mixed()) as iterator:
        refused(af.StateError, lambda: iterator.load_state_dict(without), "altered or cut")


def test_rows_that_came_in_any_order_are_some_rows() -> None:
    def make() -> af.Dataset:
        return (
            af.range(300_000)
            .map(lambda chunk: chunk, keeps_rows=True)
            .with_options(af.Options(deterministic=False))
        )

    refused(af.StateError, loads(make, ("position", "again"), [[0, 0]]), "a whole number from 1 on")


def test_positions_of_datasets_that_functions_return_are_checked_when_these_are_opened() -> None:
    def make() -> af.Dataset:
        return (
            af.range(3)
            .interleave(lambda row: af.range(4 * row["id"] + 9), cycle_length=2, block_length=2)
            .batch(4)
        )

    path = ("position", 0, 1, 0, 2)
    state = forged(state_of(make), path, ["x"])
    with iter(make()) as iterator:
        iterator.load_state_dict(state)
        refused(af.StateError, lambda: next(iterator), "range: its position", "'x'")


def test_a_shape_gives_the_positions_of_inputs() -> None:
    shape = Shape(tuple[Mark, ...])
    assert shape.inputs_of(((None, 3), ((1,), 4)), "zip") == [(0, None), (1, (1,))]
    assert checked([1.5, MAX_NUMBER], tuple[float, int], "pair") == (1.5, MAX_NUMBER)
    for value in (MAX_NUMBER + 1, True, 1.0, None):
        refused(af.StateError, lambda value=value: checked(value, int, "number"), "number is", "expected")  # type: ignore[misc]
