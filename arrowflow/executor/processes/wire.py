"""Messages between the processes of one program, over a socket that a child inherited and nobody else can reach.

No other place of the library pickles or unpickles anything. This module pickles functions on their way to our own
worker processes, and their exceptions on the way back. Nothing that comes from a file, a state or a network gets here.
"""

from __future__ import annotations

import io
import itertools
import os
import pickle
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.arenas import Inbox, Outbox, Parcel
from arrowflow.bad_rows import BadRow
from arrowflow.errors import PlanError, said
from arrowflow.executor.limits import MAX_CAUSES
from arrowflow.kernels.items import Origin, Outcome
from arrowflow.workarounds.file_names import with_file_names
from arrowflow.workarounds.streams import stream_bytes, write_stream

Key = tuple[int, int]
"""Numbers of a run and of an operator in it."""

_LENGTH = struct.Struct("=Q")
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Surroundings(NamedTuple):
    """The surroundings of a function: `sys.path`, the working directory and the environment."""

    path: tuple[str, ...]
    folder: str
    environment: dict[str, str]


class Packed(NamedTuple):
    """An operator of a run: the function that makes its kernels, as bytes of `pack`, and where that runs."""

    make: bytes
    around: Surroundings


class Started(NamedTuple):
    """Says that a process has started, before its first call: until then it cost time that is no function's."""


class Call(NamedTuple):
    """The request to a worker process.

    Attributes:
        key: Of the operator.
        packed: The operator, for a process that does not know it yet.
        epoch: The epoch of the stream that the chunk belongs to.
        origin: As in `StatelessKernel.apply`.
        parcel: Where the chunk lies.
        returned: Arenas of earlier results that nobody reads any more.
    """

    key: Key
    packed: Packed | None
    epoch: int
    origin: Origin
    parcel: Parcel
    returned: tuple[int, ...]


class Forget(NamedTuple):
    """Says that runs are over: their functions and all shared memory are let go of, and their instances are closed."""

    runs: tuple[int, ...]


class Forgotten(NamedTuple):
    """The answer to `Forget`: what is wrong with instances that could not be closed, since the last answer."""

    failed: tuple[str, ...]


class Made(NamedTuple):
    """The answer to a call: where the result lies, and the arenas of requests that nobody reads any more.

    Of an `Outcome` all but the result comes as bytes of `pack_outcome`.
    """

    parcel: Parcel
    returned: tuple[int, ...]
    outcome: bytes | None = None


class Failed(NamedTuple):
    """The other answer: the exception that was raised, as bytes of `pack_error`."""

    error: tuple[bytes, ...]
    returned: tuple[int, ...]


def send(channel: socket.socket, message: NamedTuple, descriptor: int | None = None) -> None:
    """Sends a message, and a descriptor, which it closes in any case."""
    try:
        body = pickle.dumps(message, protocol=5)
        data = _LENGTH.pack(len(body)) + body
        if descriptor is None:
            channel.sendall(data)
        else:
            sent = socket.send_fds(channel, [data], [descriptor])
            channel.sendall(memoryview(data)[sent:])
    finally:
        if descriptor is not None:
            os.close(descriptor)


def receive(channel: socket.socket) -> tuple[Any, int | None]:
    """Waits for a message; returns it and the descriptor that came with it.

    Raises:
        EOFError: The other side is gone.
    """
    head, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, 1, _CLOSE_ON_EXEC)
    try:
        head += _exactly(channel, _LENGTH.size - len(head)) if head else b""
        if not head:
            raise EOFError
        (length,) = _LENGTH.unpack(head)
        message = pickle.loads(_exactly(channel, length))
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return message, descriptors[0] if descriptors else None


def _exactly(channel: socket.socket, num_bytes: int) -> bytearray:
    data = bytearray(num_bytes)
    at = 0
    while at < num_bytes:
        received = channel.recv_into(memoryview(data)[at:])
        if not received:
            raise EOFError
        at += received
    return data


# ---------------------------------------------------------------------------------- record batches in arenas


def write_batch(outbox: Outbox, batch: pa.RecordBatch) -> tuple[Parcel, int | None]:
    """Copies the rows of a batch, and no others, into an arena.

    Returns:
        Where they lie, and the arena's descriptor where it is new; the caller sends and closes it.
    """
    arena, parcel, descriptor = outbox.lend(stream_bytes(batch))
    try:
        write_stream(batch, pa.FixedSizeBufferWriter(pa.py_buffer(arena.bytes)))
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


# ---------------------------------------------------------------------------------- functions


def pack(value: object) -> bytes:
    """Returns a function, with all that it refers to, as bytes.

    Definitions of a program's main file or a notebook go by value, so that no worker has to run the file again.
    Definitions of modules go by name.
    """
    import cloudpickle

    # The main file has this name in a process that `multiprocessing` has spawned, such as a DataLoader's worker.
    main = sys.modules.get("__mp_main__")
    if main is not None:
        cloudpickle.register_pickle_by_value(main)
    with io.BytesIO() as file:
        with_file_names(cloudpickle.Pickler)(file).dump(value)
        return file.getvalue()


def unpack(packed: bytes) -> Any:
    """Returns what `pack` was given."""
    return pickle.loads(packed)


def pack_apart(value: Any) -> tuple[bytes, list[npt.NDArray[np.uint8]]]:
    """Returns a value as bytes, and its buffers, which are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    packed = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return packed, [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]


def unpack_apart(packed: bytes, buffers: Sequence[npt.NDArray[np.uint8]]) -> Any:
    """Returns the value of `pack_apart`, which lies in these buffers."""
    return pickle.loads(packed, buffers=buffers)


def check_portable(operator: str, fn: Callable[..., Any], name: str) -> None:
    """Raises `PlanError` for a function that cannot be sent to a worker process."""
    try:
        pack(fn)
    except Exception as error:
        sent = f"{operator}: executor='process' sends {name} to worker processes"
        raise unportable(sent, "it", error) from error


def unportable(sent: str, owner: str, error: Exception) -> PlanError:
    """Returns the error of something that does not pickle: that it is `sent`, and the `owner` of what does not pickle."""
    return PlanError(
        f"{sent}, and it cannot be pickled: {said(error)}; what {owner} refers to (a lock, an open file, a connection) has "
        "to be made where it is used, such as in the __init__ of a class, of which each worker makes an instance"
    )


# ---------------------------------------------------------------------------------- errors


def pack_error(error: BaseException) -> tuple[bytes, ...]:
    """Returns an exception and its causes as bytes, with a note of where they were raised.

    An exception that cannot be pickled becomes a `RuntimeError` with its type and text.
    """
    links: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and len(links) < MAX_CAUSES:
        links.append(following)
        following = following.__cause__
    of_user = links[min(1, len(links) - 1)]
    note = "In a worker process:\n" + "".join(traceback.format_exception(of_user)).rstrip()
    return tuple(_packed_link(link, note if link is of_user else None) for link in links)


def _packed_link(error: BaseException, note: str | None) -> bytes:
    try:
        if note is not None:
            error.add_note(note)
        packed = pack(error)
        if isinstance(unpack(packed), BaseException):  # some pickle and cannot be unpickled
            return packed
    except Exception:
        pass
    replaced = RuntimeError(said(error))
    if note is not None:
        replaced.add_note(note)
    return pack(replaced)


def pack_outcome(outcome: Outcome) -> bytes:
    """Returns an outcome without its chunk as bytes."""
    error = None if outcome.error is None else pack_error(outcome.error)
    return pickle.dumps((tuple(map(tuple, outcome.bad)), outcome.given, error, outcome.is_whole), protocol=5)


def unpack_outcome(packed: bytes, chunk: pa.RecordBatch) -> Outcome:
    """Returns what `pack_outcome` was given, with its chunk."""
    bad, given, error, is_whole = pickle.loads(packed)
    raised = None if error is None else unpack_error(error)
    return Outcome(chunk, tuple(map(BadRow._make, bad)), given, raised, is_whole)


def unpack_error(links: tuple[bytes, ...]) -> BaseException:
    """Returns what `pack_error` was given, with its causes."""
    errors = [_unpacked_link(link) for link in links]
    for error, cause in itertools.pairwise(errors):
        error.__cause__ = cause
    return errors[0]


def _unpacked_link(link: bytes) -> BaseException:
    try:
        return unpack(link)
    except Exception as error:
        return RuntimeError(f"an exception of a worker process cannot be had here: {said(error)}")
