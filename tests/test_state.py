"""States: what they hold, which of them are refused and why, and that a fresh process goes on from one."""

from __future__ import annotations

import copy
import functools
import json
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.ops.functions.function import code_digest
from arrowflow.ops.rows import take
from arrowflow.testing import assert_same_batches, batches_of
from tests import warm
from tests.ops.tables import Apply, identity, ids, numbers, refused, two_thirds, write_shards

State = dict[str, Any]


def state_after(ds: Any, batches: int) -> State:
    with iter(ds) as iterator:
        for _ in range(batches):
            next(iterator)
        return dict(json.loads(json.dumps(iterator.state_dict())))


def rest_of(ds: af.Dataset, state: State) -> list[Any]:
    with iter(ds) as iterator:
        iterator.load_state_dict(state)
        return [value for batch in iterator for value in batch.column(0).to_pylist()]


def base() -> af.Dataset:
    return af.range(100).filter(pl.col("id") % 2 == 0).shuffle(10, seed=1).batch(4)


def test_a_state_is_small_json_whatever_the_window() -> None:
    sizes = {
        size: len(json.dumps(state_after(af.range(300_000).shuffle(size, seed=1).batch(4), 1)))
        for size in (2, 2_000, 200_000)
    }
    assert max(sizes.values()) - min(sizes.values()) < 20
    wide = base()
    for number in range(60):
        wide = wide.with_columns(**{f"column_{number}": pl.col("id") + number})
    assert len(json.dumps(state_after(wide, 1))) < 64 << 10


@pytest.mark.parametrize("value", [math.nan, math.inf, np.int64(3), b"x"])
def test_a_position_that_json_would_change_is_refused(monkeypatch: pytest.MonkeyPatch, value: object) -> None:
    """A mistake in an operator, which would else come out only on the way back."""
    monkeypatch.setattr(take.TakeKernel, "position", staticmethod(lambda before, rows: (before, value)))
    with iter(af.range(9).take(5)) as iterator:
        next(iterator)
        refused(af.StateError, iterator.state_dict, "take", repr(value), "finite numbers")


def test_taking_a_state_changes_nothing() -> None:
    with iter(base()) as iterator:
        found = []
        for batch in iterator:
            assert iterator.state_dict() == iterator.state_dict()
            found.append(batch)
    assert_same_batches(found, batches_of(base()))


def test_a_state_before_the_first_batch_is_the_start_of_the_epoch() -> None:
    ds = base()
    list(ds)
    assert rest_of(base(), state_after(ds, 0)) == ids(base(), epoch=1)


def test_a_state_restores_the_epoch_counter() -> None:
    """Whoever iterates on after a resume gets the epoch behind the resumed one."""
    donor = base()
    with iter(donor) as iterator:
        iterator.set_epoch(4)
        next(iterator)
        state = iterator.state_dict()
    ds = base()
    with iter(ds) as iterator:
        iterator.load_state_dict(state)
        list(iterator)
    assert_same_batches(list(ds), batches_of(base(), epoch=5))


def test_loaders_share_states_with_iterators() -> None:
    state = state_after(base(), 3)
    loader = base().to_numpy()
    loader.load_state_dict(state)
    assert [value for batch in loader for value in batch["id"].tolist()] == rest_of(base(), state)


def test_a_running_iterator_may_go_back() -> None:
    with iter(base()) as iterator:
        first = next(iterator)
        state = iterator.state_dict()
        second = next(iterator)
        next(iterator)
        iterator.load_state_dict(state)
        assert_same_batches([next(iterator)], [second])
        iterator.set_epoch(0)
        assert_same_batches([next(iterator)], [first])


# -------------------------------------------------------------------------- states of other pipelines

OTHERS: dict[str, tuple[Apply, tuple[str, ...]]] = {
    "another window": (lambda ds: ds.shuffle(11, seed=1).batch(4), ("shuffle", "size=11", "size=10")),
    "another seed": (lambda ds: ds.shuffle(10, seed=2).batch(4), ("shuffle", "seed=2", "seed=1")),
    "another batch": (lambda ds: ds.shuffle(10, seed=1).batch(5), ("batch", "size=5", "size=4")),
    "remainder": (
        lambda ds: ds.shuffle(10, seed=1).batch(4, drop_remainder=True),
        ("batch", "drop_remainder"),
    ),
    "one more": (
        lambda ds: ds.shuffle(10, seed=1).batch(4).repeat(),
        ("operator 4 of this pipeline is repeat(", "the pipeline of the state has no operator 4"),
    ),
    "one less": (
        lambda ds: ds.shuffle(10, seed=1),
        ("this pipeline has no operator 3", "operator 3 of the pipeline of the state is batch("),
    ),
    "another operator": (lambda ds: ds.take(10).batch(4), ("take", "shuffle")),
    "frozen": (lambda ds: ds.shuffle(10, seed=1, reshuffle_each_iteration=False).batch(4), ("reshuffle",)),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_plan_is_refused_with_what_differs(case: str) -> None:
    apply, texts = OTHERS[case]
    state = state_after(numbers(20, 20).shuffle(10, seed=1).batch(4), 1)
    refused(af.StateError, lambda: rest_of(apply(numbers(20, 20)), state), "another pipeline", *texts)


def test_another_predicate_is_refused() -> None:
    state = state_after(af.range(9).filter(pl.col("id") > 3).batch(1), 1)
    refused(af.StateError, lambda: rest_of(af.range(9).filter(pl.col("id") > 4).batch(1), state), "filter")


def test_other_data_are_refused() -> None:
    state = state_after(af.range(9).batch(2), 1)
    refused(af.StateError, lambda: rest_of(af.range(10).batch(2), state), "range", "stop=10", "stop=9")
    table = pa.table({"x": [1, 2, 3]})
    state = state_after(af.from_arrow(table).batch(1), 1)
    refused(
        af.StateError, lambda: rest_of(af.from_arrow(table.slice(1)).batch(1), state), "from_arrow", "rows"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return write_shards(tmp_path / "data", [[3, 4], [5]])


def test_other_files_are_refused_and_moved_ones_are_not(folder: Path) -> None:
    """Files are told apart by relative path and size: data may move, but not change."""
    ds = af.read_parquet(folder).batch(2)
    state, expected = state_after(ds, 2), ids(ds.select(id="row"))[4:]
    moved = folder.rename(folder.parent / "elsewhere")
    assert rest_of(af.read_parquet(moved).batch(2), state) == expected
    (moved / "00.parquet").rename(moved / "07.parquet")
    refused(af.StateError, lambda: rest_of(af.read_parquet(moved).batch(2), state), "read")
    (moved / "07.parquet").rename(moved / "00.parquet")
    pq.write_table(pa.table({"row": [1], "file": pa.array([1], pa.int32())}), moved / "01.parquet")
    refused(af.StateError, lambda: rest_of(af.read_parquet(moved).batch(2), state), "read")


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Files that are too many for a state to hold their names."""
    (tmp_path / "many").mkdir()
    return write_shards(tmp_path / "many", [[3 + number] for number in range(20)])


def test_a_changed_file_of_many_is_named(many: Path) -> None:
    ds = af.read_parquet(many).batch(2)
    state = state_after(ds, 2)

    def told() -> str:
        with pytest.raises(af.StateError) as caught:
            rest_of(af.read_parquet(many).batch(2), state)
        assert "digest " not in str(caught.value)
        return str(caught.value)

    (many / "07.parquet").rename(many.parent / "kept")
    assert told().endswith(
        "operator 1 (read) reads 19 files here and 20 in the state, so at least 1 file was removed since then; by their "
        f"contents those that are gone came after '{many / '06.parquet'}'; put the files back as they were, or start the epoch "
        "anew"
    )
    pq.write_table(pa.table({"row": [1], "file": pa.array([1], pa.int32())}), many / "07.parquet")
    text = told()
    assert (
        "reads 20 files, as many as in the state, but since then one or more were renamed, replaced or changed in"
        in text
    )
    assert f"other contents than then have '{many / '07.parquet'}'; put the files back" in text
    (many / "07.parquet").rename(many / "06a.parquet")
    (many.parent / "kept").rename(many / "07.parquet")
    assert (
        f"1 file was added since then; by their contents the new ones are '{many / '06a.parquet'}'" in told()
    )
    (many / "06a.parquet").unlink()
    (many / "07.parquet").rename(many / "06b.parquet")
    assert "holds their names and sizes as one digest, so it cannot name them; put the files back" in told()


def test_new_files_after_many_are_told_with_the_way_to_go_on(many: Path) -> None:
    state = state_after(af.read_parquet(many).batch(2), 2)
    (many / "90.parquet").write_bytes((many / "00.parquet").read_bytes())
    refused(
        af.StateError,
        lambda: rest_of(af.read_parquet(many).batch(2), state),
        "is read(format='parquet', files=21) here and read(format='parquet', files=20) in the state; load_state_dict(…, ",
        "strict=False) goes on: read has 1 new files",
    )


def test_another_expression_is_shown() -> None:
    def plan(factor: int, *more: pl.Expr) -> af.Dataset:
        return af.range(9).with_columns(pl.col("id") + 1, *more, y=pl.col("id") * factor).batch(2)

    state = state_after(plan(2), 1)
    with pytest.raises(af.StateError) as caught:
        rest_of(plan(3), state)
    assert str(caught.value) == (
        "the state belongs to another pipeline: operator 2 (with_columns) has other expressions in the state: the expression of "
        "the column 'y' is pl: [(col(\"id\")) * (dyn int: 3)] here; a state holds the digest of an expression and not its text; "
        "write the expression as it was, or start the epoch anew"
    )
    many = [pl.col("id").alias(f"c{number}") for number in range(5)]
    refused(
        af.StateError,
        lambda: rest_of(plan(2, *many), state),
        "is with_columns(pl: [(col(",
        "…",
        "in the state",
    )
    refused(
        af.StateError,
        lambda: rest_of(plan(3, *many), state_after(plan(2, *many), 1)),
        "has other expressions in the state, which holds a digest of them alone",
    )


def test_arguments_are_called_as_methods_call_them() -> None:
    state = state_after(af.range(9).shuffle(4, seed=1).batch(2), 1)
    refused(
        af.StateError,
        lambda: rest_of(af.range(9).shuffle(5, seed=1).batch(2), state),
        "shuffle(buffer_size=5, seed=1",
        "shuffle(buffer_size=4, seed=1",
    )


def test_a_dict_that_is_no_state_is_told_by_its_keys() -> None:
    state = state_after(base(), 1)
    refused(
        af.StateError,
        lambda: rest_of(base(), {"a": 1}),
        "expected what state_dict() returned, got a dict without 'version', with the keys ['a']",
    )
    refused(
        af.StateError,
        lambda: rest_of(base(), {"model": 1, "data": state}),
        "['model', 'data']; a state may be what it has as 'data'",
    )


def test_other_rules_are_refused_where_they_change_the_way_of_a_position(folder: Path) -> None:
    ds = af.read_parquet(folder).skip(2).take(9).batch(2)
    other = ds.with_options(af.Options(disabled_rules=("limit_reads",)))
    with_rules = ds.with_options(af.Options())
    state = state_after(with_rules, 1)
    refused(af.StateError, lambda: rest_of(other, state), "disabled_rules")


# --------------------------------------------------------------------------------- altered states


def altered(change: Callable[[State], Any]) -> State:
    state = copy.deepcopy(state_after(base(), 2))
    change(state)
    return state


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.update(epoch=3),
        lambda state: state.update(position=None),
        lambda state: state["position"].__setitem__(-1, 5),
        lambda state: state.update(batches=1),
        lambda state: state.pop("position"),
        lambda state: state.pop("digest"),
        lambda state: state.update(digest="0" * 16),
        lambda state: state["operators"].pop(),
        lambda state: state["operators"][0][1].update(stop=99),
        lambda state: state.update(functions={"1:map": "x"}),
        lambda state: state.pop("shape"),
        lambda state: state.update(plan=None),
    ],
)
def test_an_altered_state_is_refused(change: Callable[[State], Any]) -> None:
    refused(af.StateError, lambda: rest_of(base(), altered(change)), "altered")


@pytest.mark.parametrize("state", [None, 3, "state", [], {}, {"epoch": 1}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    refused(af.StateError, lambda: rest_of(base(), state), "state_dict()")


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version_is_refused(version: Any) -> None:
    refused(
        af.StateError,
        lambda: rest_of(base(), altered(lambda state: state.update(version=version))),
        "version",
    )


def test_a_refused_state_leaves_the_iterator_as_it_was() -> None:
    with iter(base()) as iterator:
        first = next(iterator)
        refused(af.StateError, lambda: iterator.load_state_dict({}), "state_dict()")
        assert_same_batches([first, *iterator], batches_of(base()))


# ------------------------------------------------------------------------------- what has no state


def test_a_one_shot_stream_has_no_state() -> None:
    reader = pa.RecordBatchReader.from_batches(pa.schema([("x", pa.int64())]), [])
    refused(af.StateError, lambda: state_after(af.from_arrow(reader).repeat(2), 0), "from_arrow", "one-shot")


# --------------------------------------------------------------------------------- user functions


def test_changed_code_warns() -> None:
    state = state_after(af.range(9).batch(2).map(identity), 1)
    other = af.range(9).batch(2).map(lambda batch: batch)
    refused(af.StateError, lambda: rest_of(other, state), "map", "fn=")

    def changed(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, 1)

    changed.__qualname__ = "identity"
    with pytest.warns(UserWarning, match=r"code of a user function has changed.*map"):
        found = rest_of(af.range(9).batch(2).map(changed), state)
    assert found == [2, 4, 6, 8]


LIMIT = 3
SEEN = 0


def by_closure(value: Any) -> Any:
    def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if value is None else batch.slice(0, 1)

    return keep


def by_default(value: Any) -> Any:
    def keep(batch: pa.RecordBatch, limit: Any = value) -> pa.RecordBatch:
        return batch.slice(0, limit)

    return keep


def by_keyword(value: Any) -> Any:
    def keep(batch: pa.RecordBatch, *, limit: Any = value) -> pa.RecordBatch:
        return batch.slice(0, limit)

    return keep


def by_partial(value: Any) -> Any:
    def keep(limit: Any, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, limit)

    return functools.partial(keep, value)


def by_inner(value: Any) -> Any:
    def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
        return [batch for _ in [value] if value][0]  # noqa: RUF015

    return keep


@pytest.mark.parametrize("make", [by_default, by_keyword, by_partial, by_inner])
def test_a_changed_value_warns_wherever_it_is(make: Any) -> None:
    assert code_digest(make(3)) == code_digest(make(3)) != code_digest(make(2))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (3, 2),
        (0.5, 0.25),
        (True, 1),
        ("a", "b"),
        (b"a", b"b"),
        ((1, ("x", 2)), (1, ("x", 3))),
        (np.arange(3), np.arange(1, 4)),
        (np.arange(4_000_000), np.arange(4_000_000)[::-1]),
        (np.float32(1), np.float64(1)),
        (pa.array([1, None]), pa.array([1, 0])),
        (pl.Series([1]), pl.Series([2])),
    ],
    ids=str,
)
def test_a_changed_value_warns(one: Any, other: Any) -> None:
    assert code_digest(by_closure(one)) == code_digest(by_closure(copy.deepcopy(one)))
    assert code_digest(by_closure(one)) != code_digest(by_closure(other))


def test_a_changed_value_of_a_closure_warns() -> None:
    def plan(keep: int) -> af.Dataset:
        return af.range(40).filter(lambda arrays: arrays["id"] % keep > 0, format="numpy").batch(3)

    state = state_after(plan(3), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rest_of(plan(3), state)
    with pytest.warns(UserWarning, match=r"or a number, text, tuple or array that it refers to \(filter\)"):
        rest_of(plan(2), state)


def test_a_changed_global_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, LIMIT)

    before = code_digest(keep)
    monkeypatch.setitem(globals(), "LIMIT", 4)
    assert code_digest(keep) != before


def test_values_that_change_while_a_run_goes_on_do_not_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, found, held = 0, [1], {"x": 1}

    class Counter:
        calls = 0

        def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            self.calls += 1
            return batch

    def counts(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal calls
        global SEEN
        calls, SEEN = calls + 1, SEEN + 1
        found.append(held["x"])
        return batch

    counter = Counter()
    before = code_digest(counts), code_digest(counter), code_digest(counter.__call__)
    counts(pa.record_batch({"x": [1]}))
    counter(pa.record_batch({"x": [1]}))
    held["x"] = 2
    assert (code_digest(counts), code_digest(counter), code_digest(counter.__call__)) == before


def test_the_same_code_does_not_warn() -> None:
    state = state_after(af.range(9).map(two_rows, schema=af.range(1).schema).batch(2), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rest_of(af.range(9).map(two_rows, schema=af.range(1).schema).batch(2), state)


def two_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(0, 2)


def test_a_changed_generator_warns() -> None:
    def make(stop: int) -> af.Dataset:
        if stop == 3:

            def rows() -> Iterator[dict[str, int]]:
                yield from ({"x": number} for number in range(3))
        else:

            def rows() -> Iterator[dict[str, int]]:
                for number in range(stop):
                    yield {"x": number}

        return af.from_generator(rows).batch(1)

    state = state_after(make(3), 1)
    with pytest.warns(UserWarning, match="from_generator"):
        assert rest_of(make(4), state) == [1, 2, 3]


# ---------------------------------------------------------------------------- in another process

PIPELINE = """
import json, sys
import arrowflow as af, polars as pl, pyarrow as pa
ds = (
    af.read_parquet(sys.argv[1]).filter(pl.col("row") % 5 != 0).shuffle(6, seed=3)
    .map(lambda batch, rng: batch.append_column("noise", pa.array(rng.random(batch.num_rows))), seed=1).repeat(2).batch(4)
)
iterator = iter(ds)
if len(sys.argv) > 2:
    iterator.load_state_dict(json.loads(sys.argv[2]))
delivered, states = [], [iterator.state_dict()]
for batch in iterator:
    delivered.append(batch.to_pydict())
    states.append(iterator.state_dict())
print(json.dumps([delivered, states]))
"""


def run_process(*arguments: str) -> Any:
    status, out, errors = warm.plain().run(PIPELINE, *arguments)
    assert status == 0, errors
    return json.loads(out)


def test_a_fresh_process_goes_on_from_a_state(folder: Path) -> None:
    delivered, states = run_process(str(folder))
    assert len(delivered) == 5
    again, _ = run_process(str(folder), json.dumps(states[3]))
    assert again == delivered[3:]


def test_functions_of_the_tests_are_what_they_say() -> None:
    """The contracts above would pass with functions that do nothing."""
    assert ids(af.range(9).rename({"id": "row"}).map(two_thirds).select(id="row")) == [1, 2, 4, 5, 7, 8]
