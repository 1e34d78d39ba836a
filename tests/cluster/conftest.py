"""What all tests of clusters need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ops.ranks.pipelines import write_shards
from tests.ray_cluster import cluster


@pytest.fixture(scope="package")  # a cluster takes five seconds to start
def ray() -> Iterator[Any]:
    yield from cluster()


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"))
