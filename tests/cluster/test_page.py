"""The snippet of `docs/cluster.md`, with the numbers that the page names for a laptop."""

from __future__ import annotations

import re
from typing import Any

import pytest

import arrowflow as af
from tests.ray_cluster import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.any_version, pytest.mark.torch]

ENGINE = r"af\.RayEngine\(workers=.*?\)"


def test_the_snippet_yields_the_batches_of_one_machine(ray: Any) -> None:
    page = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M)
    _, for_a_laptop = re.findall(ENGINE, page)
    train = af.range(20_000).shuffle(5_000, seed=1)
    names: dict[str, Any] = {"af": af, "train": train}
    exec(compile(re.sub(ENGINE, for_a_laptop, block), "cluster.md", "exec"), names)
    on_one_machine = train.batch(4096).split_by_rank(0, 1).to_torch()
    first, second = ([batch["id"].tolist() for batch in on_one_machine] for _ in range(2))
    with names["loader"] as loader:
        assert loader.stats().cluster is not None
        assert names["batch"]["id"].tolist() == first[-1]
        assert [batch["id"].tolist() for batch in loader] == second
