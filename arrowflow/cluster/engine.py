"""`RayEngine`: where and in how many workers a plan's lanes run."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from arrowflow.errors import PlanError
from arrowflow.options import AUTOTUNE, Settings, check_choice, check_size, parse_bytes

Placement = Literal["spread", "pack", "near_consumer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RayEngine(Settings):
    """Runs a pipeline on a Ray cluster: the lanes of `split_by_rank` in worker processes, the rest where the loop is.

    A plan that cannot run in parts, see `Dataset.split_by_rank`, is run by one worker, which the log says.

    The batches are those of `.split_by_rank(0, 1, lanes=lanes)` on one machine, bit for bit, for any number of workers,
    and also if workers die. A state that is taken with an engine can be loaded without one, and the other way round.

    Workers start with the first batch. They stay for later epochs, until the loader is closed or the dataset and its loaders
    are gone. Ranks of one plan that belong to one job of Ray, as those of a Ray Train run do, share `workers`; with `AUTOTUNE`
    each rank has workers of its own.

    Attributes:
        workers: How many worker processes there are. `AUTOTUNE` begins with one, adds one while the loop waits for workers
            that compute, and gives one up while it does not.
        cpus_per_worker: Cores of a worker. Default: 4, or fewer where not all `workers`, or `max_workers`, would fit into the
            cluster. Workers that never fit are an error; those that wait for others to end have two minutes.
        memory_per_worker: Bytes that the runs of a worker may hold, as `Options(ram_budget=)`; the node has to have them
            to give, too. Default: as much as the pipeline's own budget.
        lanes: How many lanes there are; it decides the order of rows, as in `split_by_rank`. Left out where the plan has a
            `split_by_rank` of its own. Default: 16, or the largest divisor of the batch size below.
        placement: `"spread"` over nodes, `"pack"` on few nodes, or `"near_consumer"`: on its node as long as that has room.
        max_workers: The most workers with `AUTOTUNE`, of each rank. Default: as many as fit into the cluster, busy or not.
        address: The cluster to connect to, as in `ray.init`, unless this process is connected already. Default: a local
            one is started.

    Examples:
        >>> import arrowflow as af
        >>> engine = af.RayEngine(workers=2, cpus_per_worker=1)
        >>> loader = af.range(1_000).batch(100).to_numpy(engine=engine)
        >>> sum(len(batch["id"]) for batch in loader)  # doctest: +SKIP
        1000
    """

    workers: int = AUTOTUNE
    cpus_per_worker: int | None = None
    memory_per_worker: int | str | None = None
    lanes: int | None = None
    placement: Placement = "spread"
    max_workers: int | None = None
    address: str | None = None

    def __str__(self) -> str:
        given = (each for each in fields(self) if getattr(self, each.name) != each.default)
        return f"RayEngine({', '.join(f'{each.name}={getattr(self, each.name)!r}' for each in given)})"

    def __post_init__(self) -> None:
        if self.workers != AUTOTUNE:
            check_size("RayEngine", "workers", self.workers)
        for name in ("cpus_per_worker", "lanes", "max_workers"):
            if (value := getattr(self, name)) is not None:
                check_size("RayEngine", name, value)
        if (memory := self.memory_per_worker) is not None:
            object.__setattr__(self, "memory_per_worker", parse_bytes("memory_per_worker", memory))
        check_choice("RayEngine", "placement", self.placement, get_args(Placement))
        if self.workers != AUTOTUNE and self.max_workers is not None:
            raise PlanError("RayEngine: max_workers is for workers=AUTOTUNE; leave one of the two out")
