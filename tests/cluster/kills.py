"""Ends what a pipeline on a cluster of two nodes runs on, at random moments, and looks at what that leaves."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from unittest import mock

from tests.cluster.consumer import Log
from tests.ray_cluster import ROOT, SETTINGS

CPUS: Final = 3
STORE_BYTES: Final = 160 << 20
MAX_DELAY_SECONDS: Final = 1.5
"""A worker starts in about as long: so moments fall into that time, too."""
MAX_STEPS: Final = 30
PATIENCE_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.01
HEALTH: Final = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_failure_threshold": "5",
    "RAY_health_check_timeout_ms": "3000",
}
"""Ray notices the death of a node after 1.5 s, in place of about 12."""

Victim = Literal["worker", "node", "consumer"]


def until(holds: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    """Waits until something outside of this process holds; False if it does not in time."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def kill(process: int) -> bool:
    """Ends a process as `kill -9` does; False if there is none."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
        return True
    return False


def children(process: int) -> list[int]:
    """Returns the processes that a process has started."""
    with contextlib.suppress(FileNotFoundError):
        tasks = Path(f"/proc/{process}/task").glob("*/children")
        return [int(child) for task in tasks for child in task.read_text("ascii").split()]
    return []


def title(process: int) -> str:
    """Returns the command of a process, an empty one if there is no such process."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/cmdline").read_text("utf-8").replace("\0", " ").strip()
    return ""


class TwoNodes:
    """A cluster of two nodes, of which the second one can be killed; another one comes in its place."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster  # late: tests without Ray import this module

        self._settings = mock.patch.dict(os.environ, {**SETTINGS, **HEALTH, "PYTHONPATH": str(ROOT)})
        self._settings.start()
        head = {"num_cpus": CPUS, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._second: Any = None
        self._add()
        self.address = str(self._cluster.address)

    def _add(self) -> None:
        self._second = self._cluster.add_node(num_cpus=CPUS, object_store_memory=STORE_BYTES)

    def actors(self) -> dict[int, str]:
        """Returns the state of each actor that has a process."""
        found = self._cluster.global_state.actor_table(None)
        return {each["Pid"]: each["State"] for each in found.values() if each["Pid"]}

    def workers(self) -> list[int]:
        """Returns the processes that run lanes, in the order of their numbers."""
        return sorted(process for process, state in self.actors().items() if state == "ALIVE")

    def kill_node(self) -> None:
        """Ends all processes of the second node, and starts another one."""
        (raylet,) = self._second.all_processes["raylet"]
        for process in [raylet.process.pid, *children(raylet.process.pid)]:
            kill(process)
        self._cluster.remove_node(self._second, allow_graceful=False)
        self._add()

    def left(self) -> list[str]:
        """Returns the actors, worker processes and bytes of the object store that are there."""
        state = self._cluster.global_state
        actors = self.actors()
        found = [f"actor {process}: {state}" for process, state in actors.items() if state != "DEAD"]
        found += [f"process {process}" for process in actors if "LaneWorker" in title(process)]
        total, free = state.cluster_resources(), state.available_resources()
        held = total["object_store_memory"] - free.get("object_store_memory", 0)
        return [*found, *([f"{held:.0f} bytes in the store"] if held else [])]

    def close(self) -> list[str]:
        """Ends the cluster; returns the processes of it that are still there."""
        nodes = self._cluster.list_all_nodes()
        own = [each.process.pid for node in nodes for some in node.all_processes.values() for each in some]
        own += [child for process in own for child in children(process)]
        self._cluster.shutdown()
        self._settings.stop()
        until(lambda: not any(map(title, own)), seconds=10)
        return [shown for process in own if (shown := title(process))]


@dataclass(slots=True)
class Told:
    """How a run went.

    Attributes:
        batches: Digests of what the loop took.
        killed: What was killed while the loop ran.
        starts: Where the loop was started: "here" or "on Ray".
        seconds: How long all of it took.
    """

    batches: list[str] = field(default_factory=list)
    killed: Counter[Victim] = field(default_factory=Counter)
    starts: list[str] = field(default_factory=list)
    seconds: float = 0.0


def run_killed(
    cluster: TwoNodes, folder: Path, name: str, victims: Sequence[Victim], draw: random.Random
) -> Told:
    """Runs a loop to its end, killing one victim after the other; a killed loop goes on in turn here and on the cluster.

    Args:
        cluster: Where its workers are.
        folder: Has the shards, and gets the log.
        name: The pipeline.
        victims: What is killed. Those are left out that come after the end of the loop.
        draw: Says when.
    """
    log, told, rest = Log(folder / "log"), Told(), iter(victims)
    log.forget()
    began = time.monotonic()
    on_ray = True
    while True:
        told.starts.append("on Ray" if on_ray else "here")
        with _loop(cluster, folder, name, on_ray) as loop:
            for victim in rest:
                # A loop here has no workers. Its turn ends with it.
                victim = victim if on_ray else "consumer"
                if not _passed(loop, log, draw):
                    break
                told.killed[victim] += _killed(cluster, loop, victim, draw)
                if victim == "consumer":
                    break
            if loop.wait() == 0:
                break
        on_ray = not on_ray
    told.batches, told.seconds = log.batches(), time.monotonic() - began
    return told


def _passed(loop: subprocess.Popen[bytes], log: Log, draw: random.Random) -> bool:
    """Waits for a random moment of a loop; False if it ends before."""
    before = len(log.batches())
    steps, delay = draw.randrange(MAX_STEPS), draw.choice([0, 0, draw.uniform(0, MAX_DELAY_SECONDS)])
    until(lambda: loop.poll() is not None or len(log.batches()) > before + steps)
    time.sleep(delay)
    return loop.poll() is None


def _killed(cluster: TwoNodes, loop: subprocess.Popen[bytes], victim: Victim, draw: random.Random) -> bool:
    if victim == "consumer":
        return kill(loop.pid)
    if victim == "node":
        cluster.kill_node()
        return True
    workers = cluster.workers()
    return bool(workers) and kill(draw.choice(workers))


@contextlib.contextmanager
def _loop(cluster: TwoNodes, folder: Path, name: str, on_ray: bool) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the process of the loop; raises if it ends by itself with an error."""
    command = [sys.executable, "-m", "tests.cluster.consumer", str(folder), name]
    command += [cluster.address] if on_ray else []
    with (folder / "errors").open("w+b") as errors:
        loop = subprocess.Popen(command, cwd=ROOT, stdout=errors, stderr=errors)
        try:
            yield loop
        finally:
            kill(loop.pid)
            loop.wait()
        if loop.returncode not in (0, -signal.SIGKILL):
            errors.seek(0)
            raise AssertionError(f"the loop over {name} failed: {errors.read()[-4000:].decode()}")
