"""The kernels of `read.py`, as the planner learns of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from arrowflow.formats.capabilities import InPlaceFormat, PooledFormat, SiftingFormat
from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Origin
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.sources.files.file_scan import FileScan, files_wanted, left_out, match_test, pruned
from arrowflow.ops.sources.files.partitions import without
from arrowflow.ops.sources.files.runs import CallBytes
from arrowflow.ops.sources.files.split_fetcher import SplitFetcher
from arrowflow.ops.sources.files.split_readers import SiftingReader, SplitFinder, SplitReader
from arrowflow.ops.sources.files.split_sizes import SplitSizes, largest_decoded, largest_fetched
from arrowflow.ops.sources.files.split_tasks import OPEN_FILES, ReadPosition, of_split_key
from arrowflow.ops.sources.files.splits import FooterSource, SplitPlanner
from arrowflow.ops.sources.files.survivors import Survivors
from arrowflow.options import ResolvedOptions
from arrowflow.plan.shape import Shape
from arrowflow.storage import CONNECTIONS


def kernels_of(node: FileScan, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
    """Returns the source of footers, the planner, the fetcher if there is anything to fetch, and the reader."""
    assert node.schema is not None and node.store is not None
    names = without(node.schema, node.partitions).names
    may_match = match_test(node)
    is_wanted = files_wanted(node, may_match)
    calls = CallBytes.of(node, names, options)
    return (
        KernelSpec(
            "source",
            lambda context: FooterSource(node, context, is_wanted),
            engine="arrow",
            cost="computes" if node.store.is_local else "waits",
            connections=node.store.connections,
            phase="open",
            buffer_items=OPEN_FILES,
            facts=lambda: (
                "footers, one call a large file or several small ones",
                *left_out(node, is_wanted),
            ),
            operator=node.operator,
        ),
        KernelSpec(
            "serial",
            lambda context: SplitPlanner(node, may_match, calls),
            position=Shape(ReadPosition),
            pins_order=True,
            facts=lambda: ("order of splits", *pruned(node, may_match)),
            holds_lock=True,
            operator=node.operator,
        ),
        *(() if node.store.is_local else (_fetch_spec(node, names),)),
        _find_spec(node, names) if node.in_place else _decode_spec(node, names, options, calls),
    )


def _find_spec(node: FileScan, names: Sequence[str]) -> KernelSpec:
    return KernelSpec(
        "reader",
        lambda context: SplitFinder(node),
        phase="map",
        where=partial(_where, node),
        engine="arrow",
        max_calls=node.num_parallel_calls,
        facts=f"mapping of {len(names)} columns, one call a split, no copy",
        operator=node.operator,
    )


def _decode_spec(
    node: FileScan, names: Sequence[str], options: ResolvedOptions, calls: CallBytes
) -> KernelSpec:
    assert node.store is not None and node.first is not None
    sizes = SplitSizes(node.operator, node.format, options.ram_budget)
    format, leaves_out = node.decoder(options.cpu_budget), node.policy.leaves_out
    is_local = node.store.is_local
    # The set of bad row groups must not depend on what a look at others has saved.
    survivors = None if leaves_out else Survivors.of(node, options.cpu_budget)

    def make(context: Context) -> SplitReader:
        if leaves_out:
            return SiftingReader(node, options.cpu_budget, sizes)
        fetcher = None if node.keeps is None or is_local else SplitFetcher(node, context)
        return SplitReader(node, options.cpu_budget, sizes, survivors, node.keeps, fetcher)

    return KernelSpec(
        "reader",
        make,
        phase="decode",
        where=partial(_where, node),
        engine=format.engine(node.store) if isinstance(format, PooledFormat) else "arrow",
        max_calls=node.num_parallel_calls,
        floor_bytes=largest_decoded(format, node.first, names, calls),
        facts=lambda: (
            f"decode of {len(names)} columns, one call a run, or a piece of a large split",
            *(() if survivors is None else survivors.facts()),
            *(() if node.keeps is None else node.keeps.facts()),
            *_left_out(node),
        ),
        holds_lock=_only_maps(node, names),
        keeps=node.keeps,
        operator=node.operator,
    )


def _left_out(node: FileScan) -> tuple[str, ...]:
    policy = node.policy
    if not policy.leaves_out:
        return ()
    by_row = isinstance(node.format, SiftingFormat)
    bad = "bad rows" if by_row else f"each {node.format.part} that cannot be decoded"
    kept = "" if policy.folder is None else f", which are kept in {policy.folder}"
    return (f"without {bad}{kept}",)


def _only_maps(node: FileScan, names: Sequence[str]) -> bool:
    """Whether reading makes views and nothing else; columns of other types are cast, and absent ones made."""
    format = node.format
    if any(node.leniency.values()) or not isinstance(format, InPlaceFormat):
        return False
    assert node.store is not None and node.first is not None
    return format.only_maps(node.store, node.first, names)


def _fetch_spec(node: FileScan, names: Sequence[str]) -> KernelSpec:
    assert node.store is not None and node.first is not None
    allowed = node.store.connections
    is_few = allowed is not None and allowed < CONNECTIONS
    few = f"; your client opens at most {allowed} connections" if is_few else ""
    return KernelSpec(
        "reader",
        lambda context: SplitFetcher(node, context),
        phase="read",
        where=partial(_where, node),
        engine="python" if node.store.is_python else "arrow",
        cost="waits",
        connections=allowed,
        max_calls=node.num_parallel_calls,
        floor_bytes=largest_fetched(node.format, node.first, names),
        facts=f"fetch of {len(names)} columns, one call a split{few}",
        operator=node.operator,
    )


def _where(node: FileScan, origin: Origin) -> tuple[str, int, str]:
    """Returns the file of a split, its number there, and what the number counts."""
    number, index = of_split_key(origin.split)
    return node.files[number].path, index, node.format.part
