"""Random plans over files deliver the same batches and states in three epochs, whether chunks are kept or not; ranks do, too.

The consumer overwrites each array that it may write. Runs go on from a random step of each epoch: over the dataset that
has kept chunks, and over a new one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.ops.sources.files import split_readers, splits
from tests.effort import scaled
from tests.fuzz import named
from tests.fuzz.drafts import MAKERS, STEPS, Draft, grown, pick, sources
from tests.fuzz.watch import kinds

pytestmark = [pytest.mark.slow, pytest.mark.any_version]

EPOCHS: Final = 3
MOST_BATCHES: Final = 60
KEEPS: Final = ("auto", "auto", 1 << 20, 2_000, 300)
"""All that fits as it is or a second time, all of it copied, and parts of it."""
SPLITS: Final[tuple[dict[str, Any] | None, ...]] = (
    None,
    None,
    {"rank": 0, "world_size": 1, "lanes": 3},
    {"rank": 0, "world_size": 1, "lanes": 4, "equal_steps": "drop"},
    {"rank": 1, "world_size": 2, "lanes": 4},
)
"""The arguments of `split_by_rank`, if the plan is split."""

Batches = list[tuple[dict[str, list[Any]], str]]
"""Each batch, and the state after it."""


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    named.use_folder(tmp_path_factory.mktemp("keep"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split_readers, "LARGE_BYTES", 200)  # lanes keep halves
        patch.setattr(splits, "SMALL_FILE_BYTES", 0)  # which come whole, with their footers
        yield
    named.read_elsewhere(is_on=False)


@st.composite
def plans(draw: st.DrawFn) -> Draft:
    """Draws a plan over files that ends in batches."""
    draft = draw(sources(kinds=["parquet", "parquet", "parquet", "ipc", "csv", "json"]))
    for name in draw(st.lists(st.sampled_from(list(STEPS)), max_size=3)):
        draft = grown(draw, draft, name)
    assume("stream(" not in draft.text)  # which is read once, and not for three epochs
    return MAKERS[pick(draw, *["batch"] * 6, *MAKERS)](draw, draft)


def values(array: Any) -> list[Any]:
    """Returns the values of an array, or of the parts of lists of different lengths."""
    return [values(part) for part in array] if isinstance(array, tuple) else array.tolist()


def delivered(loader: Any, most: int = MOST_BATCHES) -> Batches:
    """Returns the first `most` batches of an epoch, and overwrites them."""
    found: Batches = []
    for batch in islice(loader, most):
        found.append(
            ({name: values(array) for name, array in batch.items()}, json.dumps(loader.state_dict()))
        )
        for array in batch.values():
            if isinstance(array, np.ndarray) and array.flags.writeable and array.dtype.kind in "if":
                array[...] = 77
    return found


def rows_of(epoch: Batches) -> list[dict[str, list[Any]]]:
    """Returns the batches without the states."""
    return [batch for batch, _ in epoch]


def made(draft: Draft, split: dict[str, Any] | None, **options: Any) -> af.Dataset:
    """Makes the plan anew; a plan over columns that NumPy does not have is of no use."""
    plan = draft.plain().with_options(af.Options(**options))
    return plan if split is None else plan.split_by_rank(**split)


@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=scaled(400), database=None)
@given(
    draft=plans(),
    keep=st.sampled_from(KEEPS),
    split=st.sampled_from(SPLITS),
    elsewhere=st.booleans(),
    cores=st.sampled_from([1, 2, 4]),
    steps=st.tuples(*[st.integers(0, MOST_BATCHES)] * EPOCHS),
)
def test_kept_chunks_change_nothing(
    draft: Draft, keep: Any, split: dict[str, Any] | None, elsewhere: bool, cores: int, steps: tuple[int, ...]
) -> None:
    named.read_elsewhere(is_on=elsewhere)
    try:
        keeps, plain = made(draft, split, keep=keep, cpu_budget=cores), made(draft, split, keep=False)
        loader, without = (each.to_numpy(lists="ragged") for each in (keeps, plain))
        expected = [delivered(without) for _ in range(EPOCHS)]  # each may have rows that NumPy does not take
    except (af.PlanError, af.DataError, af.StateError):
        kinds["refused"] += 1
        return
    found = [delivered(loader) for _ in range(EPOCHS)]
    if "generator(" in draft.text:
        # Its chunks end when it takes long, and one place has several positions: before a chunk, or in an earlier one.
        assert [rows_of(epoch) for epoch in found] == [rows_of(epoch) for epoch in expected]
    else:
        assert found == expected
    kept = "kept" if loader.stats().kept_rows else "nothing kept"
    kinds[f"{kept}{', split' * (split is not None)}{', elsewhere' * elsewhere}"] += 1
    for epoch, step in zip(expected, steps, strict=True):
        if epoch:
            at = step % len(epoch)
            for dataset in (keeps, made(draft, split, keep=keep)):
                resumed = dataset.to_numpy(lists="ragged")
                resumed.load_state_dict(json.loads(epoch[at][1]))
                # No batch more: one past the 60 may have nulls, which NumPy does not take.
                rest = delivered(resumed, len(epoch) - at - 1)
                assert rows_of(rest) == rows_of(epoch[at + 1 :])
                # A lane that goes on within a chunk cuts what is left of it in halves: other positions of the same places.
                assert "generator(" in draft.text or split is not None or rest == epoch[at + 1 :]
