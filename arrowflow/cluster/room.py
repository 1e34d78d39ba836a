"""What a cluster lacks where workers do not start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from arrowflow.cluster.engine import RayEngine
from arrowflow.errors import PlanError

GIB = 2**30


def check_memory(engine: RayEngine, nodes: Iterable[Mapping[str, Any]]) -> None:
    """Raises `PlanError` if no node has the memory of a worker.

    Args:
        engine: What the user asked for.
        nodes: As `ray.nodes()` tells of them.
    """
    most = max((node["Resources"].get("memory", 0) for node in nodes if node["Alive"]), default=0)
    if isinstance(engine.memory_per_worker, int) and engine.memory_per_worker > most:
        raise PlanError(
            f"RayEngine: memory_per_worker={engine.memory_per_worker:,}, but the largest node of the cluster has {most:,.0f} "
            "bytes for workers, besides its object store; use less, or larger nodes"
        )


def lack(engine: RayEngine, cores: int, total: Mapping[str, float], free: Mapping[str, float]) -> str:
    """Returns what workers ask for, and what there is.

    Args:
        engine: What the user asked for.
        cores: Cores of a worker.
        total: As `ray.cluster_resources()` tells of them.
        free: As `ray.available_resources()` does.

    Example:
        >>> lack(RayEngine(workers=4), 2, {"CPU": 8.0}, {"CPU": 1.0})[:84]
        'each asks one node for 2 CPUs, and all nodes together have 1 of 8 CPUs free; use few'
    """
    asked, has = f"{cores} CPUs", f"{free.get('CPU', 0):.0f} of {total.get('CPU', 0):.0f} CPUs"
    if isinstance(engine.memory_per_worker, int):
        asked += f" and {engine.memory_per_worker / GIB:.1f} GiB"
        has += f" and {free.get('memory', 0) / GIB:.1f} of {total.get('memory', 0) / GIB:.1f} GiB"
    return (
        f"each asks one node for {asked}, and all nodes together have {has} free; use fewer or smaller workers, or end what "
        "else runs there, such as other loaders"
    )
