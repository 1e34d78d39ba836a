"""The connection to a cluster, and what it lacks where workers do not start."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from arrowflow.cluster.engine import RayEngine
from arrowflow.errors import PlanError, WorkerError
from arrowflow.executor import lasting
from arrowflow.kernels.context import Context

SOON_SECONDS: Final = 1.0
"""On an idle node a worker starts in about as long."""
TELL_SECONDS: Final = 10.0
START_SECONDS: Final = 120.0
"""Time for a worker to start until a line in the log says what it may lack, and until that is an error: the cluster may grow."""
DEFAULT_CORES: Final = 4
GIB: Final = 2**30

logger: Final = logging.getLogger("arrowflow")


def connect(ray: Any, engine: RayEngine) -> None:
    """Connects this process to a cluster, or starts a local one. Any thread.

    Ray's processes end with the thread that starts them. On another thread than the main one Ray also leaves the handler of
    SIGTERM alone, and warns of it.
    """
    lasting(
        lambda: ray.init(
            engine.address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
        )
    )


def cores_of(engine: RayEngine, nodes: Iterable[Mapping[str, Any]]) -> int:
    """Returns the cores of a worker; raises `PlanError` if no node has so many. `nodes` are as `ray.nodes()` tells of them."""
    most = int(max((node["Resources"].get("CPU", 0) for node in nodes), default=0))
    cores = engine.cpus_per_worker or max(1, min(DEFAULT_CORES, most))
    if cores > most:
        raise PlanError(
            f"RayEngine: cpus_per_worker={cores}, but the largest node of the cluster has {most} CPUs; use fewer, or larger nodes"
        )
    return cores


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


class Patience:
    """The wait for workers of one session.

    Args:
        engine: What the user asked for.
    """

    def __init__(self, engine: RayEngine) -> None:
        self._engine = engine
        self._acts: dict[str, object] = {}

    def starts(self, ray: Any, cores: int, arrives: Callable[[float], bool], context: Context) -> bool:
        """Waits until a worker has started; False if the run is over before. Lanes of any worker wait at the same time.

        Args:
            ray: The connected module.
            cores: Cores of a worker.
            arrives: Waits so many seconds for it at most, and says whether it has started.
            context: Of the lane that waits.

        Raises:
            WorkerError: It does not start.
        """
        if arrives(SOON_SECONDS):
            return True
        if self._is_first_to("collect"):
            gc.collect()  # runs have reference cycles: loaders that are gone may still hold their workers
        if arrives(TELL_SECONDS):
            return True
        if context.wait(0.0) and self._is_first_to("tell"):
            logger.warning("RayEngine waits for workers: %s", self._lack(ray, cores))
        if arrives(START_SECONDS):
            return True
        if context.wait(0.0):
            lack = self._lack(ray, cores)
            waited = SOON_SECONDS + TELL_SECONDS + START_SECONDS
            raise WorkerError(f"not all workers started within {waited:.0f} s: {lack}")
        return False

    def _is_first_to(self, act: str) -> bool:
        mine = object()
        return self._acts.setdefault(act, mine) is mine

    def _lack(self, ray: Any, cores: int) -> str:
        """Returns what workers ask for, and what there is."""
        total, free = ray.cluster_resources(), ray.available_resources()
        memory = self._engine.memory_per_worker
        asked, has = f"{cores} CPUs", f"{free.get('CPU', 0):.0f} of {total.get('CPU', 0):.0f} CPUs"
        if isinstance(memory, int):
            asked += f" and {memory / GIB:.1f} GiB"
            has += f" and {free.get('memory', 0) / GIB:.1f} of {total.get('memory', 0) / GIB:.1f} GiB"
        return (
            f"each asks one node for {asked}, and all nodes together have {has} free; use fewer or smaller workers, or end "
            "what else runs there, such as other loaders"
        )
