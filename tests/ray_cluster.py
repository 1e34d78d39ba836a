"""A cluster of one node for the tests of a module: Ray has threads and descriptors of its own, which other tests count."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
STORE_BYTES = 200 << 20


def cluster() -> Iterator[Any]:
    """Yields Ray, connected to the cluster; skips the test without Ray."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings(action="ignore"), pytest.MonkeyPatch.context() as patch:
        ray: Any = pytest.importorskip("ray", reason="Ray is not installed")
        pytest.importorskip("ray.data", reason="Ray Data is not installed")
        patch.setenv("PYTHONPATH", str(ROOT))  # functions of tests go to workers by name
        ray.init(
            num_cpus=8,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        yield ray
        ray.shutdown()


def store_statistics() -> Any:
    """Returns the figures of all object stores of the cluster, as these tell them: bytes in use, bytes spilled, and more."""
    import ray
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    address = ray.get_runtime_context().gcs_address  # without it Ray looks for any cluster of the machine
    return get_memory_info_reply(get_state_from_address(address)).store_stats
