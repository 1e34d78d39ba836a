"""The fingerprint of a plan: the name of a cache's entry on disk, which no other plan and no other data share.

The fingerprint covers the plan as written and bound. It covers all that decides the rows, their order, their borders
and the positions that travel with them:

* of each operator, in post order: its name, its `identity()`, and its number in the plan if random values follow from
  this number. Operators without an identity (`prefetch`, `with_options`) are left out;
* of sources, the data that they read: files by path, size and time or etag; data in memory by their values;
* of user functions, their behaviour: see `functions.py`;
* of the options, `seed`, `max_chunk_rows`, `max_chunk_bytes` and the rules that are off, since positions follow the optimised plan;
* the versions of arrowflow, pyarrow, Polars, NumPy and Python.

A **key** stands for user functions, for streams and for all else without an identity. It does not stand for the rest:
with a key, too, other arguments, another order of operators, other files or data in memory make another fingerprint.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.caching.fingerprint.data import write_data
from arrowflow.caching.fingerprint.encoder import HINT, Encoder
from arrowflow.caching.fingerprint.functions import write_code
from arrowflow.caching.fingerprint.installed import version_of
from arrowflow.caching.fingerprint.values import write_container, write_object, write_plain
from arrowflow.errors import ArrowflowError, FingerprintError
from arrowflow.options import ResolvedOptions
from arrowflow.plan.bind import bind, options_of
from arrowflow.plan.node import Code, Node, Unknown

VERSION: Final = 3
"""The version of the content and of the encoding."""


def _write_dataset(encoder: Encoder, value: Any) -> bool:
    """Writes a dataset that a function refers to: bound, so that the files which it would read now count."""
    plan = getattr(value, "_plan", None) if type(value).__module__ == "arrowflow.dataset" else None
    if not isinstance(plan, Node):
        return False
    if encoder.is_known(value):
        return True
    try:
        nodes = [*_nodes(bind(plan, options_of(plan)))]
        encoder.put("dataset", str(len(nodes)))
        for node in nodes:
            _write_node(encoder, node)
    except FingerprintError:
        raise
    except ArrowflowError as error:
        raise encoder.refusal(value, f"its plan cannot be bound ({error})") from error
    return True


def _write_node(encoder: Encoder, node: Node) -> None:
    known = _known_as(node)
    identity = node.identity() if known is None else {"known as": known}
    if identity:
        encoder.put("operator", node.name, str(len(node.inputs)), str(len(identity)))
        for name in sorted(identity):
            value = identity[name]
            encoder.put("argument", name)
            encoder.write(value.value if isinstance(value, Code) else value, repr(name))


WRITERS: Final = (write_plain, write_container, _write_dataset, write_data, write_code, write_object)


def fingerprint(plan: Node, options: ResolvedOptions, key: str | None = None) -> str:
    """Returns 32 hexadecimal digits that two plans share only if they yield the same rows.

    Args:
        plan: The part of the plan before the cache: bound and as written, not optimised.
        options: The options of the whole pipeline.
        key: A text that stands for user functions, for streams, and for sources that have no identity. Plans share digits
            only if their keys are equal, and all else that decides their rows is, too.

    Raises:
        FingerprintError: A source, or something that a function refers to, has no identity, and no key stands for it.
    """
    encoder = Encoder(WRITERS)
    encoder.write(("arrowflow fingerprint", VERSION, key, _versions()))
    limits = options.max_chunk_rows, options.max_chunk_bytes
    encoder.write((options.seed, *limits, sorted(options.disabled_rules)))
    for node in _nodes(plan):
        if (known := _known_as(node)) is not None:
            encoder.put("known as", known)
            continue
        try:
            identity = node.identity()
            if identity:
                encoder.put("operator", node.name, str(len(node.inputs)), _of_node(key is None, identity))
        except ArrowflowError as error:
            error.locate(operator=node.name)
            raise
        except RecursionError:
            text = f"what it refers to is nested too deeply, or a set refers to itself; {HINT}"
            raise FingerprintError(text).locate(operator=node.name) from None
    return encoder.digest().hex()


def _known_as(node: Node) -> str | None:
    """Returns the text that identifies a node with all of its inputs, if it has one."""
    return getattr(node, node.traits.known_by) if node.traits.known_by else None


def _nodes(node: Node) -> Iterator[Node]:
    """Yields the nodes in post order, except for inputs of a node that stands for its inputs."""
    if _known_as(node) is None:
        for child in node.inputs:
            yield from _nodes(child)
    yield node


def _versions() -> tuple[Any, ...]:
    packages = (version_of("arrowflow"), pa.__version__, pl.__version__, np.__version__)
    return (*packages, *sys.version_info[:2])


def _of_node(with_code: bool, identity: Mapping[str, Any]) -> bytes:
    """Returns the digest of one operator. Operators are digested apart: objects that two of them share do not matter."""
    encoder = Encoder(WRITERS)
    for name in sorted(identity):
        value = identity[name]
        encoder.put("argument", name)
        if isinstance(value, Code | Unknown) and not with_code:
            encoder.put("key")
        elif isinstance(value, Unknown):
            instead = f"{value.instead}, or " if value.instead else ""
            raise FingerprintError(f"{value.what} {value.reason}; {instead}{HINT}")
        else:
            told = value.value if isinstance(value, Code) else value
            encoder.is_data = not isinstance(value, Code)
            encoder.write(told, _step(name, told))
    encoder.is_data = False
    return encoder.digest()


def _step(name: str, value: Any) -> str | None:
    """Returns the name of an argument in errors; None if the argument names itself."""
    if isinstance(value, type | types.FunctionType | types.MethodType | functools.partial):
        return None
    return f"`{type(value).__qualname__}`" if callable(value) else repr(name)
