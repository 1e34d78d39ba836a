"""The local cluster that a first run starts, where nobody has started one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

from tests.ray_cluster import ROOT, SETTINGS

pytestmark = [pytest.mark.slow, pytest.mark.any_version]

SCRIPT = """
import ray
import arrowflow as af

engine = af.RayEngine(workers=1, cpus_per_worker=1)
assert sum(batch.num_rows for batch in af.range(320).batch(16).with_engine(engine)) == 320
# The threads of that run are over. Only a cluster that still lives starts another worker.
assert sum(batch.num_rows for batch in af.range(640).batch(16).with_engine(engine)) == 640
ray.shutdown()
"""


def test_the_cluster_outlives_the_run_that_started_it() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    # Ray looks in its folder for a cluster that another process of tests may have started. Paths of sockets are short.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | SETTINGS | {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=110,  # without the cluster's processes, Ray gives up after 60, with an error
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    said = [line for line in ran.stderr.splitlines() if not line.startswith("RayEngine waits for workers")]
    assert not said, "but for a machine that is busy, the library says nothing of its own accord"
