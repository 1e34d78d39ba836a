"""A cluster of one node for all tests of a process: Ray takes some seconds to start, and ends with the process."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


def started() -> Any:
    """Returns Ray, connected to the cluster; skips the test without Ray."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with warnings.catch_warnings(action="ignore"), pytest.MonkeyPatch.context() as patch:
        ray: Any = pytest.importorskip("ray", reason="Ray is not installed")
        pytest.importorskip("ray.data", reason="Ray Data is not installed")
        if not ray.is_initialized():
            patch.setenv("PYTHONPATH", str(ROOT))  # functions of tests go to workers by name
            ray.init(
                num_cpus=8,
                object_store_memory=200 << 20,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    return ray
