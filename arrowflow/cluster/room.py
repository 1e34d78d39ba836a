"""How many workers a cluster has room for, and what it lacks where workers do not start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from arrowflow.cluster.engine import RayEngine
from arrowflow.errors import PlanError, counted
from arrowflow.options import AUTOTUNE

DEFAULT_CORES: Final = 4
NODE_GROUP: Final = "ray.io/node-group"
"""Ray's label of nodes that KubeRay, `ray up` and their like start. No other cluster grows by itself."""

Nodes = Sequence[Mapping[str, Any]]
"""The nodes that are alive, as `ray.nodes()` tells of them."""


def asked(engine: RayEngine, nodes: Nodes, lanes: int, sets: int = 1) -> tuple[dict[str, int], int]:
    """Returns what a worker asks its node for, by Ray's names, and how many workers there may be for so many lanes.

    Nodes count with all that they have, busy or not: all ranks have to find the same. With `AUTOTUNE` each rank has a set
    of workers.

    Raises:
        PlanError: The workers can never start.
    """
    needed = sets if engine.workers == AUTOTUNE else min(engine.workers, lanes)
    most = min(engine.max_workers or lanes, lanes)
    memory = {"memory": engine.memory_per_worker} if isinstance(engine.memory_per_worker, int) else {}
    grows = any(NODE_GROUP in node.get("Labels", ()) for node in nodes)
    cores = engine.cpus_per_worker
    if cores is None:
        wanted = max(needed, sets * min(engine.max_workers or 1, lanes))
        usual = min(DEFAULT_CORES, int(_most(nodes, "CPU"))) or 1
        fitting = (each for each in range(usual, 0, -1) if room_for({"CPU": each, **memory}, nodes) >= wanted)
        cores = next(fitting, usual if grows else 1)
    asks = {"CPU": cores, **memory}
    room = room_for(asks, nodes)
    if room < needed and not grows:
        has = told({name: _most(nodes, name) for name in asks})
        ways = [*_smaller(asks, nodes, needed), *([f"workers={room}"] if room else []), "larger nodes"]
        raise PlanError(
            f"RayEngine: the cluster never has room for workers={needed} of {told(asks)} each, only for {room}: its largest node has "
            f"{has} for workers; take {' or '.join(ways)}"
        )
    return asks, most if grows and engine.max_workers else max(1, min(most, room // sets))


def room_for(asks: Mapping[str, int], nodes: Nodes) -> int:
    """Returns how many workers have room on nodes where nothing else runs.

    Examples:
        >>> room_for({"CPU": 2}, [{"Resources": {"CPU": 5.0}}, {"Resources": {"CPU": 3.0}}])
        3
    """
    return sum(
        min(int(node["Resources"].get(name, 0) // size) for name, size in asks.items()) for node in nodes
    )


def _smaller(asks: Mapping[str, int], nodes: Nodes, needed: int) -> Iterator[str]:
    """Yields arguments with which so many workers fit."""
    for cores in range(asks["CPU"] - 1, 0, -1):
        if room_for({**asks, "CPU": cores}, nodes) >= needed:
            yield f"cpus_per_worker={cores}"
            break
    if "memory" in asks:
        shares = {_most([node], "memory") // count >> 20 for node in nodes for count in range(1, needed + 1)}
        for share in sorted(shares - {0}, reverse=True):
            if room_for({**asks, "memory": share << 20}, nodes) >= needed:
                yield f"memory_per_worker='{share}MiB'"
                break


def _most(nodes: Nodes, name: str) -> int:
    return max((int(node["Resources"].get(name, 0)) for node in nodes), default=0)


def told(resources: Mapping[str, float]) -> str:
    """Returns amounts as text.

    Examples:
        >>> told({"CPU": 2, "memory": 3 << 30})
        '2 CPUs and 3,072 MiB'
    """
    cores, memory = round(resources["CPU"]), resources.get("memory")
    return counted(cores, "CPU") + ("" if memory is None else f" and {memory / 2**20:,.0f} MiB")


def lack(ray: Any, asks: Mapping[str, int]) -> str:
    """Returns what workers may lack that do not start."""
    found = ray.available_resources(), ray.cluster_resources()
    free, total = (told({name: has.get(name, 0) for name in asks}) for has in found)
    return (
        f"each asks one node for {told(asks)}, and of {total} of all nodes {free} are free; use fewer or smaller workers, or "
        "end what else runs there, such as other loaders"
    )
