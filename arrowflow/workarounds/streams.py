"""Single record batches as Arrow IPC streams, whose size pyarrow does not tell before they are written.

Only the rows of a batch are written, and no others of its buffers.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def write_stream(batch: pa.RecordBatch, sink: Any) -> None:
    """Writes a batch, with its schema, into a file or buffer of Arrow."""
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def stream_bytes(batch: pa.RecordBatch) -> int:
    """Returns how many bytes `write_stream` will write.

    Examples:
        >>> batch = pa.record_batch({"x": [1, 2, 3]})
        >>> sink = pa.BufferOutputStream()
        >>> write_stream(batch, sink)
        >>> sink.getvalue().size == stream_bytes(batch)
        True
    """
    counting = pa.MockOutputStream()
    write_stream(batch, counting)
    return int(counting.size())
