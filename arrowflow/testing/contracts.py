"""The contracts of every operator and every dataset, as checks that raise `AssertionError`.

A check takes `make`, which builds a fresh equal dataset on each call, or `apply`, which puts an operator on top of a
dataset. `check_operator` runs all checks that make sense for one operator. `ranks.py` has those of `split_by_rank`.

Each operator is checked in full once. Its other arguments are checked with `in_full=False`, which takes fewer cuts
of the input and fewer places to resume from, at a third of the time. Where the environment has
`ARROWFLOW_CONTRACTS=brief`, all checks do so, for a look before a commit; ranks are still checked where `in_full` is given.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from arrowflow.dataset import Dataset
from arrowflow.iterator import Iterator
from arrowflow.kernels.kept import sizes_of
from arrowflow.plan.node import Columns, Node
from arrowflow.plan.walk import post_order
from arrowflow.sources.in_memory import from_arrow
from arrowflow.testing.chunks import chunked, chunkings, cut
from arrowflow.testing.equality import assert_same_batches, assert_same_rows, assert_same_values, joined
from arrowflow.testing.forgery import check_forged
from arrowflow.testing.ranks import check_ranks

Make = Callable[[], Dataset]
Apply = Callable[[Dataset], Dataset]

IN_FULL: Final = os.environ.get("ARROWFLOW_CONTRACTS") != "brief"
"""Whether checks are in full at all."""

MAX_STATE_BYTES: Final = 64 << 10
MAX_BATCHES: Final = 200
"""More batches would make the checks slow, since they resume from each batch: use smaller data."""


def batches_of(dataset: Dataset, *, epoch: int = 0) -> list[pa.RecordBatch]:
    """Returns the batches of one epoch.

    Examples:
        >>> import arrowflow as af
        >>> [batch.num_rows for batch in batches_of(af.range(5).batch(3))]
        [3, 2]
    """
    with iter(dataset) as iterator:
        iterator.set_epoch(epoch)
        return _rest(iterator)


def check_operator(
    apply: Apply,
    table: pa.Table,
    *,
    splits_matter: bool = False,
    epochs_differ: bool = False,
    parts_differ: bool = False,
    ordered_by: str | None = None,
    in_full: bool = IN_FULL,
) -> None:
    """Checks all contracts of one operator.

    Args:
        apply: Puts the operator on top of a dataset.
        table: Some ten rows for the operator, with nulls if the operator takes nulls.
        splits_matter: Whether its result may depend on the borders of splits, as the result of an opaque function
            may.
        epochs_differ: Whether each epoch has other rows or another order.
        parts_differ: Whether a part of the input, run for itself, may give other rows, as where rows are drawn or packed.
        ordered_by: A column of distinct values, in the table and in the result, that shows the row order.
        in_full: Whether to try every cut of the input, to resume from every batch, and to split by rank.
    """
    check_any_chunks(apply, table, splits_matter=splits_matter, in_full=in_full)
    check_empty(apply, table.schema, in_full=in_full)
    check_columns_needed(apply, table)
    check_owned(apply, table)
    if ordered_by is not None:
        check_row_order(apply, table, ordered_by)
    uneven = [cut(table.combine_chunks().to_batches()[0], [5, 1, 2])]
    check_dataset(lambda: apply(chunked(uneven, table.schema)), epochs_differ=epochs_differ, in_full=in_full)
    if in_full:
        check_ranks(apply, table, parts_differ=parts_differ or splits_matter)


def check_dataset(make: Make, *, epochs_differ: bool = False, in_full: bool = IN_FULL) -> None:
    """Checks all contracts of a dataset: resume, some forged states, pickling, declared schema and counts, and epochs."""
    check_declared(make())
    check_resume(make, in_full=in_full)
    with iter(make()) as iterator:
        list(itertools.islice(iterator, 2))
        middle = _stored(iterator)
    check_forged(make, middle, stride=3 if in_full and IN_FULL else 13)
    check_pickles(make)
    check_epochs(make, differ=epochs_differ)


# ---------------------------------------------------------------------------------------------- input


def check_any_chunks(
    apply: Apply, table: pa.Table, *, splits_matter: bool = False, in_full: bool = IN_FULL
) -> None:
    """Checks that the same rows come out for any cut of the input into chunks, and into splits.

    Where splits matter, the input's splits stay as they are and even the borders of the output have to be the same.
    """
    in_full, half = in_full and IN_FULL, table.num_rows // 2
    first, second = chunkings(table.slice(0, half)), chunkings(table.slice(half))
    expected = batches_of(apply(chunked(first["one chunk"] + second["one chunk"], table.schema)))
    mirrored = list(zip(first, reversed(second), strict=True))
    # Half of them have each cut once, in one of the halves.
    for one, other in itertools.product(first, second) if in_full else mirrored[: len(mirrored) // 2]:
        found = batches_of(apply(chunked(first[one] + second[other], table.schema)))
        assert_same_rows(found, expected, f"first half {one}, second half {other}")
        if splits_matter or apply(chunked(first[one], table.schema))._ready().bound.batched:
            assert_same_batches(found, expected, f"first half {one}, second half {other}")
    if not splits_matter:
        for name, (chunks,) in chunkings(table).items():
            if not in_full and name != "uneven":
                continue
            found = batches_of(apply(chunked([[chunk] for chunk in chunks], table.schema)))
            assert_same_rows(found, expected, f"splits: {name}")


def check_empty(apply: Apply, schema: pa.Schema, *, in_full: bool = IN_FULL) -> None:
    """Checks that no input gives no output: no chunks, and chunks without rows; the schema stays declared."""
    none = pa.RecordBatch.from_pylist([], schema=schema)
    for splits in ([], [[none] * 3, [none]], *([[[none]]] if in_full and IN_FULL else [])):
        dataset = apply(chunked(splits, schema))
        found = batches_of(dataset)
        assert not found, f"{len(found)} batches from {len(splits)} splits without rows"
        assert dataset.num_rows in {0, None}, f"declares {dataset.num_rows} rows on an input without rows"
        declared = dataset._ready().bound.schema
        if declared is not None:
            _check_schema(dataset.to_table().schema, declared)


def check_row_order(apply: Apply, table: pa.Table, key: str) -> None:
    """Checks the promises of the traits: one row for each row in the same order, or some rows in the same order."""
    dataset = apply(chunked([table.to_batches()], table.schema))
    traits = [node.traits for node in post_order(dataset._plan) if node.inputs]
    found = joined(batches_of(dataset))
    keys = [] if found is None else found.column(key).to_pylist()
    given = table.column(key).to_pylist()
    if all(each.one_to_one for each in traits):
        assert keys == given, f"a one-to-one operator made {keys} of {given}"
    elif all(each.one_to_one or each.drops_rows for each in traits):
        left = set(keys)
        kept = [value for value in given if value in left]
        assert keys == kept, f"an operator that drops rows made {keys} of {given}"


def check_columns_needed(apply: Apply, table: pa.Table) -> None:
    """Checks that no output depends on a column that the operator declares as not needed: rules drop such columns."""
    batch = table.combine_chunks().to_batches()[0]
    plain = apply(chunked([[batch]], table.schema))
    expected = joined(batches_of(plain))
    if expected is None:
        return
    names_by_need: dict[Columns, list[str]] = {}
    for name in expected.schema.names:
        needed = _needed_at_source(plain._ready().bound, frozenset([name]))
        names_by_need.setdefault(needed, []).append(name)
    for needed, names in names_by_need.items():
        found = joined(batches_of(apply(chunked([[_scrambled(batch, needed)]], table.schema))))
        assert found is not None, f"columns {names} need {needed}, without others there are no rows"
        for name in names:
            what = f"column {name!r}, with others changed"
            assert_same_values(found.column(name), expected.column(name), what)


def _needed_at_source(node: Node, wanted: Columns) -> Columns:
    """Returns the columns needed of all sources together: any of several inputs may be the table."""
    if not node.inputs:
        return wanted
    asked = zip(node.inputs, node.columns_needed(wanted), strict=True)
    found = [_needed_at_source(child, needed) for child, needed in asked]
    named = [columns for columns in found if columns is not None]
    return frozenset[str]().union(*named) if len(named) == len(found) else None


def _scrambled(batch: pa.RecordBatch, kept: Columns) -> pa.RecordBatch:
    """Returns the batch with the rows of all other columns in reverse."""
    columns = [
        column if kept is None or name in kept else column[::-1]
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


# -------------------------------------------------------------------------------------------- resume


def check_resume(make: Make, *, epoch: int = 0, in_full: bool = IN_FULL) -> None:
    """Checks that a state after any batch goes on with exactly the next batch, and so does a state taken after that.

    One iterator, which reads ahead all the while, gives the states. For each state a fresh iterator of a fresh equal
    dataset reads the rest of the epoch. On its way it takes another state after a step or two, from which the rest is
    read to the end, too. A state taken after the end goes on with the next epoch.
    """
    with iter(make()) as iterator:
        iterator.set_epoch(epoch)
        whole, states = [], [_stored(iterator)]
        for batch in iterator:
            whole.append(batch)
            states.append(_stored(iterator))
            assert len(whole) <= MAX_BATCHES, f"more than {MAX_BATCHES} batches"

    count = len(states)
    for step in range(count) if in_full and IN_FULL else sorted({0, count // 2}):
        resumed = _resumed(make(), states[step])
        ahead = list(itertools.islice(resumed, min((step + 1) % 3, len(whole) - step)))
        again = _resumed(make(), _stored(resumed))
        assert_same_batches(ahead + _rest(resumed), whole[step:], f"resumed after batch {step}")
        assert_same_batches(
            _rest(again), whole[step + len(ahead) :], f"resumed after batch {step} and {len(ahead)} more"
        )

    with iter(make()) as iterator:
        iterator.load_state_dict(states[-1])
        assert not _rest(iterator), "batches after the last one"
        following = _resumed(make(), _stored(iterator))
        assert_same_batches(_rest(following), batches_of(make(), epoch=epoch + 1), "after the end")


def _stored(iterator: Iterator[Any]) -> dict[str, Any]:
    """Returns an iterator's state as it is after a trip through a file."""
    text = json.dumps(iterator.state_dict(), allow_nan=False)
    assert len(text) < MAX_STATE_BYTES, f"a state of {len(text)} bytes"
    return dict(json.loads(text))


def _resumed(dataset: Dataset, state: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    iterator = iter(dataset)
    iterator.load_state_dict(state)
    return iterator


def _rest(iterator: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Returns the batches up to the end of the epoch."""
    batches = list(itertools.islice(iterator, MAX_BATCHES + 1))
    assert len(batches) <= MAX_BATCHES, f"more than {MAX_BATCHES} batches"
    return batches


# ---------------------------------------------------------------------------------- everything else


def check_owned(apply: Apply, table: pa.Table) -> None:
    """Checks that a loop may write its batches where the plan says so: none of them is memory of the source."""
    with pa.BufferOutputStream() as out, pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    memory = out.getvalue()
    dataset = apply(from_arrow(pa.ipc.open_stream(memory).read_all()))
    if dataset._ready().owns_buffers:
        found = (address for batch in batches_of(dataset) for address in sizes_of(batch))
        assert not any(memory.address <= address < memory.address + memory.size for address in found), (
            "says that it owns its buffers, and gives those of its input"
        )


def check_declared(dataset: Dataset) -> None:
    """Checks that schema, number of rows and number of batches are as declared, if they are declared."""
    batches = batches_of(dataset)
    declared = dataset._ready().bound.schema
    for batch in batches:
        _check_schema(batch.schema, declared or batches[0].schema)
    assert all(batch.num_rows for batch in batches), "a batch without rows reached the consumer"
    rows = sum(batch.num_rows for batch in batches)
    assert dataset.num_rows in {None, rows}, f"declares {dataset.num_rows} rows, yields {rows}"
    try:
        length = len(dataset.to_polars())
    except TypeError:
        return
    assert length == len(batches), f"declares {length} batches, yields {len(batches)}"


def check_pickles(make: Make) -> None:
    """Checks that a pickled dataset equals the original, with its epochs at 0, and yields the same."""
    dataset = make()
    expected = list(dataset)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy == dataset, "the unpickled dataset is not equal"
    assert dataset == make(), "two datasets of the same plan are not equal"
    assert_same_batches(list(copy), expected, "unpickled")


def check_epochs(make: Make, *, differ: bool) -> None:
    """Checks that a second iteration runs the next epoch, which differs or is the same, as documented."""
    dataset = make()
    epochs = [list(dataset), list(dataset)]
    for epoch, found in enumerate(epochs):
        assert_same_batches(batches_of(make(), epoch=epoch), found, f"epoch {epoch}")
    try:
        assert_same_batches(epochs[1], epochs[0], "epoch 1")
    except AssertionError:
        if not differ:
            raise
    else:
        assert not differ, "epoch 1 is the same as epoch 0"


def _check_schema(found: pa.Schema, expected: pa.Schema) -> None:
    assert found.names == expected.names and found.types == expected.types, (
        f"found {found}, declared {expected}"
    )
