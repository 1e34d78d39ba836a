"""`scan`: a state that goes from batch to batch."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.ops.rows.scan import MAX_STATE_BYTES
from arrowflow.testing import Fault, batches_of, check_operator, check_resume, raising
from tests.ops.tables import NUMBERS, Apply, numbers, refused, rows_of, sizes, stands_for_all

pytestmark = pytest.mark.any_version

SMALL = af.Options(max_chunk_rows=3)
SUMS = pa.schema([("row", pa.int64()), ("sum", pa.int64())])


def running(total: int, arrays: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    sums = total + arrays["row"].cumsum()
    return int(sums[-1]), {"row": arrays["row"], "sum": sums}


def numbered(state: dict[str, Any], batch: pa.RecordBatch) -> tuple[dict[str, Any], pa.RecordBatch]:
    """Depends on where pieces end, and changes the state that it was given."""
    state["sizes"].append(batch.num_rows)
    state["calls"] += 1
    calls = pa.array([state["calls"]] * batch.num_rows, pa.int64())
    return state, batch.append_column("call", calls)


def dropping(seen: int, batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
    return seen + 1, batch.slice(0, 1 if seen % 2 else 0)


class Summing:
    def __call__(self, total: int, arrays: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return running(total, arrays)


START = {"sizes": [], "calls": 0}
CASES: dict[str, Apply] = {
    "declared": lambda ds: ds.scan(0, Summing, format="numpy", columns=["row"], schema=SUMS),
    "small pieces, batched above": lambda ds: (
        ds.with_options(SMALL).scan(0, running, format="numpy", columns=["row"]).batch(3)
    ),
    "batched below": lambda ds: ds.batch(3).scan(START, numbered),
}
PIECES: dict[str, Apply] = {
    "pieces": lambda ds: ds.scan(START, numbered),
    "repeated": lambda ds: ds.scan(START, numbered).take(9).repeat(2),
    "two, of fewer rows": lambda ds: (
        ds.scan(START, numbered).scan(0, dropping, columns=["row", "call"]).batch(2)
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_contracts(case: str) -> None:
    check_operator(CASES[case], NUMBERS, in_full=stands_for_all(case, CASES))


@pytest.mark.parametrize("case", PIECES)
def test_contracts_where_splits_are_seen(case: str) -> None:
    check_operator(
        lambda ds: PIECES[case](ds.with_options(SMALL)),
        NUMBERS,
        splits_matter=True,
        in_full=stands_for_all(case, PIECES),
    )


def test_it_is_the_running_sum() -> None:
    ds = numbers(4, 0, 5, 1).with_options(SMALL).scan(0, running, format="numpy")
    assert rows_of(ds, "sum") == np.arange(10).cumsum().tolist()
    assert sizes(ds) == [3, 1, 3, 2, 1]


def test_each_epoch_begins_with_the_initial_state() -> None:
    ds = numbers(3).scan(5, running, format="numpy")
    assert rows_of(ds.repeat(2), "sum") == [5, 6, 8] * 2
    assert rows_of(numbers(3).repeat(2).scan(5, running, format="numpy"), "sum") == [5, 6, 8, 8, 9, 11]
    assert [rows_of(ds, "sum", epoch=epoch) for epoch in range(2)] == [[5, 6, 8]] * 2


def test_a_state_holds_what_the_function_returned_then() -> None:
    given = {"sizes": [], "calls": 0}
    with iter(numbers(*[2] * 6).scan(given, numbered)) as iterator:
        positions = [json.loads(iterator.state_dict()["position"][1]) for _ in iterator]
    assert positions == [{"sizes": [2] * calls, "calls": calls} for calls in range(1, 7)]
    assert given == {"sizes": [], "calls": 0}


def test_what_a_function_keeps_of_its_state_changes_nothing() -> None:
    kept: list[dict[str, Any]] = []

    def fn(state: dict[str, Any], batch: pa.RecordBatch) -> tuple[dict[str, Any], pa.RecordBatch]:
        for old in kept:
            old["n"] = -1
        made = {"n": state["n"] + 1}
        kept.extend([state, made])
        return made, pa.record_batch({"row": pa.array([made["n"]])})

    assert rows_of(numbers(*[1] * 5).scan({"n": 0}, fn)) == [1, 2, 3, 4, 5]


def test_calls_come_one_at_a_time_in_order() -> None:
    seen = []

    def fn(state: None, batch: pa.RecordBatch) -> tuple[None, pa.RecordBatch]:
        seen.append(batch["row"][0].as_py())
        return None, batch

    ds = numbers(*[1] * 50).with_options(af.Options(cpu_budget=4)).scan(None, fn)
    assert rows_of(ds) == seen == list(range(50))


def same(state: Any, batch: pa.RecordBatch) -> tuple[Any, pa.RecordBatch]:
    return state, batch


def test_strange_texts_come_back() -> None:
    def fn(state: Any, batch: pa.RecordBatch) -> tuple[Any, pa.RecordBatch]:
        assert state == strange
        return state, batch

    strange = {'"\\ä\0': [1.5, True, None, "x"]}
    check_resume(lambda: numbers(2, 2).scan(strange, fn))


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


NO_JSON: dict[str, tuple[Any, tuple[str, ...]]] = {
    "numpy": ({"x": [np.int64(3)]}, ("state['x'][0]", "numpy.int64", "int(")),
    "array": (np.arange(3), ("numpy.ndarray", "tolist")),
    "tuple": ([(1, 2)], ("state[0]", "tuple", "list")),
    "set": ({"x": {1}}, ("state['x']", "set")),
    "key": ({1: 2}, ("key", "1")),
    "nan": (float("nan"), ("nan",)),
    "infinite": ([float("-inf")], ("state[0]", "-inf")),
    "bytes": (b"x", ("bytes",)),
    "digits": (10**5000, ("digits",)),
    "depth": (nested(3000), ("nested",)),
}


@pytest.mark.parametrize("case", NO_JSON)
def test_a_state_that_is_not_json_is_refused(case: str) -> None:
    state, texts = NO_JSON[case]
    ds = numbers(3).scan(None, lambda old, batch: (state, batch))
    refused(af.FunctionError, lambda: batches_of(ds), "scan", "not JSON", *texts)
    refused(af.PlanError, lambda: numbers(3).scan(state, same), "scan", "initial_state", "not JSON", *texts)


def test_a_state_is_small() -> None:
    ds = numbers(*[1] * 20).scan([], lambda state, batch: ([*state, '"ä' * 1000], batch))
    with iter(ds) as iterator:
        next(iterator)
        assert len(json.dumps(iterator.state_dict())) < 64 << 10
        refused(af.FunctionError, lambda: list(iterator), "scan", f"{MAX_STATE_BYTES:,}", "totals")
    refused(af.PlanError, lambda: numbers(1).scan("x" * MAX_STATE_BYTES, same), "scan", "initial_state")
    with iter(numbers(1, 1).scan("x" * (MAX_STATE_BYTES - 6), same)) as iterator:
        next(iterator)
        assert len(json.dumps(iterator.state_dict())) < 64 << 10


def test_states_of_several_add_up() -> None:
    large = "x" * 30_000
    two = numbers(2, 2).scan(large, same).scan(large, same)
    with iter(two) as iterator:
        next(iterator)
        assert len(json.dumps(iterator.state_dict())) < 64 << 10
    with iter(two.scan(large, same)) as iterator:
        next(iterator)
        refused(af.StateError, iterator.state_dict, "scan", "61,440", "bytes")


@pytest.mark.parametrize("result", [None, 3, [1, 2], (1,), (1, 2, 3), pa.record_batch({"x": [1]})])
def test_something_else_than_state_and_batch_is_refused(result: Any) -> None:
    refused(
        af.FunctionError, lambda: batches_of(numbers(3).scan(0, lambda *given: result)), "scan", "next state"
    )


def test_a_batch_is_what_the_format_says() -> None:
    ds = numbers(3).scan(0, lambda *given: (0, {}))
    refused(af.FunctionError, lambda: batches_of(ds), "scan", "RecordBatch")


def test_schemas_are_kept() -> None:
    def fn(state: int, batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
        return state + 1, batch if state == 0 else pa.record_batch({"other": [1]})

    refused(af.SchemaError, lambda: batches_of(numbers(1, 1).scan(0, fn)), "scan", "other", "later")
    refused(af.SchemaError, lambda: batches_of(numbers(1, 1).scan(1, fn, schema=SUMS)), "scan", "other")
    assert numbers(3).scan(0, running, format="numpy", schema=SUMS).schema == SUMS


def test_an_error_comes_in_order_and_a_state_tries_again() -> None:
    broken = OSError("once")
    fault = Fault(raising(broken), at=2, fn=lambda total: total + 1)

    def fn(total: int, batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
        return fault(total), pa.record_batch({"row": pa.array([total])})

    with iter(numbers(*[1] * 4).scan(0, fn)) as iterator:
        found = [next(iterator)["row"][0].as_py() for _ in range(2)]
        with pytest.raises(af.FunctionError, match=r"scan: .*OSError: once") as caught:
            next(iterator)
        assert caught.value.__cause__ is broken
        iterator.load_state_dict(iterator.state_dict())
        found += [batch["row"][0].as_py() for batch in iterator]
    assert found == [0, 1, 2, 3]


def test_a_state_of_another_initial_state_is_refused() -> None:
    with iter(numbers(1, 1).scan(0, running, format="numpy")) as iterator:
        next(iterator)
        state = iterator.state_dict()
    with iter(numbers(1, 1).scan(1, running, format="numpy")) as iterator:
        refused(af.StateError, lambda: iterator.load_state_dict(state), "scan", "initial_state='1'")


def test_bad_arguments() -> None:
    refused(af.PlanError, lambda: numbers(3).scan(0, 3), "scan", "function")  # type: ignore[arg-type]
    refused(af.PlanError, lambda: numbers(3).scan(0, running, format="x"), "scan", "format")  # type: ignore[arg-type]
    refused(af.PlanError, lambda: numbers(3).scan(0, running, columns=["no"], schema=SUMS).schema, "'no'")


def test_an_exit_is_an_error_of_the_function() -> None:
    for name, ds in (
        ("scan", numbers(3).scan(0, lambda state, batch: sys.exit(3))),
        ("map", numbers(3).map(lambda batch: sys.exit(3))),
    ):
        refused(af.FunctionError, lambda ds=ds: batches_of(ds), name, "SystemExit")  # type: ignore[misc]
