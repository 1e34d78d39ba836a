"""Files for pipelines that run on ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ops.ranks.pipelines import write_shards


@pytest.fixture(scope="package")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"))
