"""Record batches in arenas: one process writes them, the other one reads them where they lie."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from arrowflow.arenas import Inbox, Outbox, Parcel


def write_batch(outbox: Outbox, batch: pa.RecordBatch) -> tuple[Parcel, int | None]:
    """Copies the rows of a batch, and no others, into an arena.

    Returns:
        Where they lie, and the arena's descriptor where it is new; the caller sends and closes it.
    """
    counted = pa.MockOutputStream()
    _stream(batch, counted)
    arena, parcel, descriptor = outbox.lend(counted.size())
    try:
        _stream(batch, pa.FixedSizeBufferWriter(pa.py_buffer(arena.bytes)))
    except BaseException:
        if descriptor is not None:
            os.close(descriptor)
        raise
    return parcel, descriptor


def read_batch(inbox: Inbox, parcel: Parcel, descriptor: int | None) -> pa.RecordBatch:
    """Returns the batch that lies there, without a copy; it cannot be written. Closes the descriptor."""
    memory = inbox.lease(parcel, descriptor)
    buffer = pa.foreign_buffer(memory.ctypes.data, parcel.num_bytes, base=memory)
    return pa.ipc.open_stream(buffer).read_next_batch()


def _stream(batch: pa.RecordBatch, sink: Any) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
