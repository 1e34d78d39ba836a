"""A cluster of one node for the tests of a module or package: Ray has threads and descriptors of its own, which other tests count."""

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
            address="local",  # whatever cluster another process of tests has started
            num_cpus=8,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        yield ray
        ray.shutdown()
