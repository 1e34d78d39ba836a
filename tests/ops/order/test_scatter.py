"""Windows in a new order: the same as joining and taking, whatever the widths, offsets and nulls of columns."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.kernels.gather import gathered
from arrowflow.ops.order.scatter import MIN_WIDTH, reordered
from arrowflow.recycler import MIN_BYTES, Recycler

pytestmark = pytest.mark.any_version

ROWS = 1000


def lists(kind: pa.DataType, size: int, rows: int, *, null: bool = False) -> pa.Array:
    values = pa.array(np.arange(rows * size)).cast(kind)
    mask = pa.array(np.arange(rows) % 7 == 3) if null else None
    return pa.FixedSizeListArray.from_arrays(values, size, mask=mask)


def tensors(rows: int) -> pa.Array:
    kind = pa.fixed_shape_tensor(pa.float32(), (3, 4))
    return pa.ExtensionArray.from_storage(kind, lists(pa.float32(), 12, rows))


COLUMNS: dict[str, pa.Array] = {
    "wide": lists(pa.float32(), 26, ROWS),
    "odd": pa.array([bytes([row % 251]) * MIN_WIDTH for row in range(ROWS)], pa.binary(MIN_WIDTH)),
    "not wide": pa.array(
        [bytes([row % 251]) * (MIN_WIDTH - 1) for row in range(ROWS)], pa.binary(MIN_WIDTH - 1)
    ),
    "tensor": tensors(ROWS),
    "null rows": lists(pa.int64(), 5, ROWS, null=True),
    "null values": pa.FixedSizeListArray.from_arrays(
        pa.array([None if row % 5 == 0 else row for row in range(8 * ROWS)]), 8
    ),
    "bits": lists(pa.bool_(), 40, ROWS),
    "nested": pa.FixedSizeListArray.from_arrays(lists(pa.int16(), 4, 6 * ROWS), 6),
    "number": pa.array(range(ROWS)),
    "text": pa.array([None if row % 11 == 0 else f"row {row}" for row in range(ROWS)]),
    "long texts": pa.array([chr(97 + row % 26) * (500 + row % 9) for row in range(ROWS)]),
    "long bytes": pa.array([bytes([row % 251]) * (13 + row) for row in range(ROWS)], pa.large_binary()),
    "some short": pa.array([b"x" * (row % 1000 + 12) for row in range(ROWS)]),
    "long or null": pa.array(
        [None if row % 11 == 0 else "y" * 600 for row in range(ROWS)], pa.large_string()
    ),
    "lists": pa.array([list(range(row % 4)) for row in range(ROWS)]),
}


def chunks_of(batch: pa.RecordBatch, *borders: int) -> list[pa.RecordBatch]:
    edges = [0, *borders, batch.num_rows]
    return [batch.slice(low, high - low) for low, high in pairwise(edges)]


@pytest.mark.parametrize("names", [[name] for name in COLUMNS] + [list(COLUMNS), []], ids="+".join)
def test_it_is_what_joining_and_taking_give(names: list[str]) -> None:
    whole = pa.record_batch([COLUMNS[name] for name in names], names=names)
    if not names:
        whole = pa.RecordBatch.from_struct_array(pa.nulls(ROWS, pa.struct([])))
    cut = whole.slice(3, 900)  # whose buffers begin earlier
    order = np.random.default_rng(5).permutation(900)
    expected = gathered(cut, order)
    for borders, dtype in (((), np.uint32), ((1,), np.int64), ((300, 300, 811), np.uint32)):
        found = reordered(chunks_of(cut, *borders), order.astype(dtype), Recycler(1 << 30))
        found.validate(full=True)
        assert found.equals(expected, check_metadata=True)


def test_chunks_of_several_sources_with_nulls_in_one_of_them() -> None:
    one = pa.record_batch({"x": lists(pa.float64(), 5, 100)})
    other = pa.record_batch({"x": lists(pa.float64(), 5, 100, null=True)})
    order = np.random.default_rng(5).permutation(200)
    found = reordered([one, other], order, Recycler(1 << 30))
    assert found.equals(gathered(pa.concat_batches([one, other]), order))


def test_windows_that_a_consumer_keeps_are_not_used_again() -> None:
    """What was kept from all windows and epochs is what it was when it came, whatever is written into the others."""
    rows, width = 1 << 14, 64
    assert rows // 4 * width * 4 >= MIN_BYTES
    names = [f"x{number}" for number in range(width)]
    table = pa.table({name: np.arange(rows, dtype=np.float32) + 7 * at for at, name in enumerate(names)})
    loader = af.from_arrow(table).stack(x=names).shuffle(rows // 4, seed=3).batch(rows // 8).to_numpy()
    kept, sums = [], []
    for epoch in range(3):
        for number, batch in enumerate(loader):
            if (number + epoch) % 3:
                kept.append(batch["x"])
                sums.append(batch["x"].copy())
            else:
                batch["x"][:] = -1  # it is the consumer's
    assert len(kept) == 16
    assert all((array == copy).all() for array, copy in zip(kept, sums, strict=True))
    again = np.concatenate(sums)
    assert (again[:, 0] >= 0).all()
    assert (again[:, -1] - again[:, 0] == 7 * (width - 1)).all()


def test_long_texts_are_copied_once() -> None:
    chunks = [
        pa.record_batch({"x": pa.array([bytes([low + row]) * 60_000 for row in range(100)])})
        for low in (0, 100)
    ]
    empty = chunks[0].slice(0, 0)
    before = pa.default_memory_pool().max_memory()
    blocker = pa.allocate_buffer(
        before - pa.total_allocated_bytes()
    )  # so that the pool's peak tells what follows
    found = reordered([empty, *chunks], np.arange(200)[::-1], Recycler(1 << 30))
    assert found["x"].to_pylist() == [bytes([row]) * 60_000 for row in reversed(range(200))]
    assert pa.default_memory_pool().max_memory() - before < 1.2 * 200 * 60_000
    del blocker
