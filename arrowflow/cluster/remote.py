"""Workers and requests as the consumer sees them, and how workers start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from arrowflow.cluster.engine import RayEngine
from arrowflow.cluster.worker import LaneWorker, Ready


@dataclass(slots=True, eq=False)
class Remote:
    """A worker as the consumer sees it.

    Attributes:
        number: Its place among the workers.
        handle: The actor.
        starting: The promise of its `Ready`.
        ready: What it said, once it has started.
        cpu_seconds: CPU time of its process, as it told last.
        rows: Rows that came from it.
        ahead_seconds: By how much its clock is ahead of the consumer's, at least: less the time that the quickest piece took.
    """

    number: int
    handle: Any
    starting: Any
    ready: Ready | None = None
    cpu_seconds: float = 0.0
    rows: int = 0
    ahead_seconds: float = -math.inf


@dataclass(slots=True, eq=False)
class Asked:
    """A request on its way: of which lane and which run of it, to which worker, with which part of its byte budget.

    `is_first` says whether it is the first one of that run.
    """

    lane: int
    remote: Remote
    name: str
    ram_budget: int
    promise: Any
    is_first: bool = True


def started(
    ray: Any,
    engine: RayEngine,
    packed: Any,
    *,
    asks: dict[str, int],
    calls: int,
    name: str | None,
    careful: bool,
) -> Any:
    """Begins to start a worker; returns its actor.

    Args:
        ray: The connected module.
        engine: What the user asked for.
        packed: The promise of the `Work`.
        asks: What it asks its node for.
        calls: The most calls of it at the same time.
        name: By which other consumers find it, and this one finds the one that is there; None for a worker of its own.
        careful: Whether it calls functions in other processes.
    """
    places = {"spread": "SPREAD", "pack": "DEFAULT"}
    options: dict[str, Any] = {
        "num_cpus": asks["CPU"],
        "memory": asks.get("memory"),
        "max_concurrency": calls,
        "max_restarts": 0,
        "scheduling_strategy": places.get(engine.placement)
        or ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        ),
    }
    if name is not None:
        options |= {"name": name, "namespace": "arrowflow", "get_if_exists": True}
    return ray.remote(LaneWorker).options(**options).remote(packed, asks["CPU"], careful)


def place_of(remote: Remote) -> str:
    """Returns where a worker is, for messages."""
    ready = remote.ready
    return "" if ready is None else f" on {ready.host} (process {ready.process})"
