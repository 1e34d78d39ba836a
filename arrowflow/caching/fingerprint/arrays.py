"""Arrow arrays by their values. Memory under nulls, before a slice or after its end does not count."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.workarounds.slices import rebased

Put = Callable[[Any], None]
Mask = npt.NDArray[np.bool_]

_known: dict[int, tuple[weakref.ref[Any], bytes]] = {}
"""Digests of record batches that are alive, by `id`: plans are made again and again from the same data in memory."""


def batch_digest(batch: pa.RecordBatch, once: bool = True) -> bytes:
    """Returns 16 bytes that identify schema and values of a record batch.

    Args:
        batch: The batch.
        once: Whether the batch is read the first time only; not for a batch whose memory somebody may write to.

    Examples:
        >>> one = pa.record_batch({"x": [1, None, 3]})
        >>> batch_digest(one.slice(1)) == batch_digest(pa.record_batch({"x": [None, 3]}))
        True
    """
    known = _known.get(id(batch)) if once else None
    if known is not None and known[0]() is batch:
        return known[1]
    digest, key = _digest(bytes(batch.schema.serialize()), batch.columns), id(batch)
    if once:
        _known[key] = (weakref.ref(batch, lambda _: _known.pop(key, None)), digest)
    return digest


def array_digest(array: pa.Array) -> bytes:
    """Returns 16 bytes that identify type and values of an array."""
    return _digest(type_bytes(array.type), [array])


def type_bytes(type: pa.DataType) -> bytes:
    """Returns the bytes that identify a type, with the parts that its text leaves out."""
    return bytes(pa.schema([pa.field("", type)]).serialize())


def _digest(about: bytes, arrays: Sequence[pa.Array]) -> bytes:
    hasher = hashlib.blake2b(digest_size=16)

    def put(data: Any) -> None:
        view = memoryview(data)
        hasher.update(view.nbytes.to_bytes(8, "little"))
        hasher.update(view)

    put(about)
    for array in arrays:
        write_values(put, array)
    return hasher.digest()


def write_values(put: Put, array: pa.Array) -> None:
    """Hands out the bytes that, together with its type, identify an array's values."""
    type = array.type
    put(len(array).to_bytes(8, "little"))
    if isinstance(type, pa.BaseExtensionType):
        return write_values(put, array.storage)
    if pa.types.is_null(type) or not len(array):
        return None
    if pa.types.is_dictionary(type):
        write_values(put, array.indices)
        return write_values(put, array.dictionary)
    if pa.types.is_string_view(type) or pa.types.is_binary_view(type):
        plain = pa.large_string() if pa.types.is_string_view(type) else pa.large_binary()
        return write_values(put, array.cast(plain))
    validity = array.buffers()[0] if array.null_count else None
    valid = None if validity is None else _bits(validity, array)
    put(b"" if valid is None else np.packbits(valid))
    writer = next((write for fits, write in _WRITERS if fits(type)), _write_whole)
    return writer(put, array, valid)


def _bits(buffer: pa.Buffer, array: pa.Array) -> Mask:
    start = array.offset // 8
    data = np.frombuffer(buffer, np.uint8)[start : (array.offset + len(array) + 7) // 8]
    bits = np.unpackbits(data, bitorder="little").view(np.bool_)
    return bits[array.offset - 8 * start :][: len(array)]


def _write_bits(put: Put, array: pa.Array, valid: Mask | None) -> None:
    values = _bits(array.buffers()[1], array)
    put(np.packbits(values if valid is None else values & valid))


def _write_numbers(put: Put, array: pa.Array, valid: Mask | None) -> None:
    width = array.type.bit_width // 8
    if not width:
        return
    first = array.offset * width
    values = np.frombuffer(array.buffers()[1], np.uint8)[first : first + len(array) * width]
    put(values if valid is None else values.reshape(-1, width)[valid].ravel())


def _offsets(array: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns the start of each value, and its length."""
    checks = (pa.types.is_large_string, pa.types.is_large_binary, pa.types.is_large_list)
    is_large = any(check(array.type) for check in checks)
    raw = np.frombuffer(array.buffers()[1], np.int64 if is_large else np.int32)
    offsets = raw[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return offsets, np.diff(offsets)


def _write_texts(put: Put, array: pa.Array, valid: Mask | None) -> None:
    offsets, lengths = _offsets(array)
    held = array.buffers()[2]
    data = np.frombuffer(held, np.uint8)[offsets[0] : offsets[-1]] if held is not None else np.empty(0, "u1")
    if valid is not None and lengths[~valid].any():
        data, lengths = data[np.repeat(valid, lengths)], np.where(valid, lengths, 0)
    put(lengths)
    put(data)


def _write_lists(put: Put, array: pa.Array, valid: Mask | None) -> None:
    offsets, lengths = _offsets(array)
    parts = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    inner = [part.slice(offsets[0], offsets[-1] - offsets[0]) for part in parts]
    if valid is not None and lengths[~valid].any():
        inner = [_kept(part, np.repeat(valid, lengths)) for part in inner]
        lengths = np.where(valid, lengths, 0)
    put(lengths)
    for part in inner:
        write_values(put, part)


def _write_fixed_lists(put: Put, array: pa.Array, valid: Mask | None) -> None:
    size = array.type.list_size
    inner = array.values.slice(array.offset * size, len(array) * size)
    write_values(put, inner if valid is None else _kept(inner, np.repeat(valid, size)))


def _write_structs(put: Put, array: pa.Array, valid: Mask | None) -> None:
    for index in range(array.type.num_fields):
        inner = array.field(index)
        write_values(put, inner if valid is None else _kept(inner, valid))


def _write_whole(put: Put, array: pa.Array, valid: Mask | None) -> None:
    """Writes a rare type in Arrow's own message format."""
    put(pa.RecordBatch.from_arrays([array], names=[""]).serialize())


def _kept(array: pa.Array, mask: Mask) -> pa.Array:
    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
    return rebased(array).filter(pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits]))


_WRITERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Put, pa.Array, Mask | None], None]], ...] = (
    (pa.types.is_boolean, _write_bits),
    (pa.types.is_primitive, _write_numbers),
    (pa.types.is_decimal, _write_numbers),
    (pa.types.is_fixed_size_binary, _write_numbers),
    (lambda type: pa.types.is_string(type) or pa.types.is_binary(type), _write_texts),
    (lambda type: pa.types.is_large_string(type) or pa.types.is_large_binary(type), _write_texts),
    (lambda type: pa.types.is_list(type) or pa.types.is_large_list(type), _write_lists),
    (pa.types.is_map, _write_lists),
    (pa.types.is_fixed_size_list, _write_fixed_lists),
    (pa.types.is_struct, _write_structs),
)
"""The writers of types: the first that fits writes."""
