"""What all tests of clusters need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ops.ranks.pipelines import write_shards
from tests.ray_cluster import started


@pytest.fixture(scope="session")
def ray() -> Any:
    return started()


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"))
