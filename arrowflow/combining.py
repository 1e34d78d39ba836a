"""One dataset of several: side by side, or mixed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, get_args

from arrowflow.dataset import Dataset, plans_of
from arrowflow.errors import PlanError, shown
from arrowflow.ops.combine.choose_from_datasets import ChooseFromDatasets
from arrowflow.ops.combine.mixing import MAX_DATASETS
from arrowflow.ops.combine.sample_from_datasets import SampleFromDatasets, Stop
from arrowflow.ops.combine.zip import Zip
from arrowflow.options import check_choice, check_flag, check_seed
from arrowflow.plan.node import Node


def zip(*datasets: Dataset) -> Dataset:
    """Puts the columns of several datasets side by side, row by row, until the shortest dataset ends.

    Nothing is copied: chunks are slices of the datasets' chunks. All datasets are read at the same time. A state
    holds the place in each dataset.

    Raises:
        PlanError: An argument is no dataset or is in batches; or, once the plan is bound, two columns have the same
            name.

    Examples:
        >>> import arrowflow as af
        >>> letters = af.from_numpy({"letter": ["a", "b", "c"]})
        >>> af.zip(af.range(2), letters).to_table().to_pydict()
        {'id': [0, 1], 'letter': ['a', 'b']}
    """
    if not datasets:
        raise PlanError("zip: expected at least one dataset")
    return Dataset(Zip(inputs=plans_of("zip", datasets)))


def sample_from_datasets(
    datasets: Sequence[Dataset],
    weights: Sequence[float] | None = None,
    *,
    seed: int | None = None,
    stop: Stop = "first_exhausted",
) -> Dataset:
    """Mixes datasets at random: each row comes from one of them, drawn by weight.

    The rows of one dataset stay in their order. An error of a dataset comes where its row is drawn. Draws are
    stratified: the shares stay within a few rows of the weights at every moment, in small batches too. All datasets
    are read at the same time, and may be endless. A state holds the place in each dataset and in the draws. Some 16
    MiB or 16,384 rows are gathered at a time.

    Args:
        datasets: Datasets with the same columns; the first dataset decides the order of columns.
        weights: How often each dataset is drawn, in relation to the others. A dataset with weight 0 is never read. By
            default all are drawn equally often.
        seed: Seed of the draws, which also follow from the epoch; by default derived from `Options.seed` and the
            operator's place.
        stop: Where the mix ends. `"first_exhausted"`: where a dataset is drawn that has no more rows, so that shares
            hold to the end. `"all_exhausted"`: where that has happened to each dataset. Until then one that has ended
            begins again, in the same order, so its rows come several times in an epoch (oversampling); one without
            rows is left out.
            `"all_exhausted_without_replacement"`: the mix goes on with the other datasets until all have ended, and
            each row comes once. Their weights keep their relation.

    Raises:
        PlanError: An argument is no dataset or is in batches, or weights do not fit; or, once the plan is bound,
            columns differ.

    Examples:
        >>> import arrowflow as af
        >>> ds = af.sample_from_datasets([af.range(100), af.range(1000, 1100)], weights=[3, 1], seed=1)
        >>> ds.take(8).to_table()["id"].to_pylist()
        [0, 1, 2, 1000, 3, 4, 1001, 5]
        >>> small, large = af.range(2), af.range(10, 15)
        >>> af.sample_from_datasets([small, large], seed=1, stop="all_exhausted").to_table()["id"].to_pylist()
        [10, 11, 0, 12, 1, 0, 13, 14]
    """
    plans = _mixed("sample_from_datasets", datasets)
    node = SampleFromDatasets(
        inputs=plans,
        weights=None if weights is None else _weights(weights, len(plans)),
        seed=check_seed("sample_from_datasets", seed),
        stop=check_choice("sample_from_datasets", "stop", stop, get_args(Stop)),
    )
    return Dataset(node)


def choose_from_datasets(
    datasets: Sequence[Dataset], choice_dataset: Dataset, *, stop_on_empty_dataset: bool = True
) -> Dataset:
    """Mixes datasets as a column of numbers says: each number takes the next row of the dataset with that number.

    The mix ends with the numbers. An error of a dataset comes where its row is chosen. All datasets are read at the
    same time, and may be endless. A state holds the place in each dataset and in the numbers. Some 16 MiB or 16,384
    rows are gathered at a time.

    Args:
        datasets: Datasets with the same columns; the first dataset decides the order of columns.
        choice_dataset: One column of whole numbers, from 0 on.
        stop_on_empty_dataset: Whether the mix ends where a dataset is chosen that has no more rows. With False such
            numbers are passed over.

    Raises:
        PlanError: An argument is no dataset or is in batches; or, once the plan is bound, columns differ.
        DataError: A number is that of no dataset; in `next()`, after the rows before it.

    Examples:
        >>> import arrowflow as af
        >>> choices = af.from_numpy({"choice": [1, 0, 0, 1]})
        >>> af.choose_from_datasets([af.range(5), af.range(10, 15)], choices).to_table()["id"].to_pylist()
        [10, 0, 1, 11]
    """
    sources = _mixed("choose_from_datasets", datasets)
    if not isinstance(choice_dataset, Dataset):
        raise PlanError(
            f"choose_from_datasets: choice_dataset is a Dataset, got {type(choice_dataset).__name__}; of numbers make one by "
            'af.from_numpy({"choice": numbers})'
        )
    chosen = plans_of("choose_from_datasets", [choice_dataset])
    stops = check_flag("choose_from_datasets", "stop_on_empty_dataset", stop_on_empty_dataset)
    node = ChooseFromDatasets(inputs=(*sources, *chosen), stop_on_empty_dataset=stops)
    return Dataset(node)


def _mixed(operator: str, datasets: Any) -> tuple[Node, ...]:
    if isinstance(datasets, Dataset) or not isinstance(datasets, Sequence):
        raise PlanError(f"{operator}: expected a list of datasets, got {type(datasets).__name__}")
    if not 1 <= len(datasets) <= MAX_DATASETS:
        raise PlanError(f"{operator}: expected 1 to {MAX_DATASETS} datasets, got {len(datasets)}")
    return plans_of(operator, datasets)


def _weights(weights: Any, num_datasets: int) -> tuple[float, ...]:
    try:
        if isinstance(weights, Mapping | Set):
            raise TypeError("datasets have an order and no names")
        found = tuple(math.fsum((weight,)) for weight in weights)  # `float` would read texts
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"sample_from_datasets: weights are a list of numbers, one a dataset in their order, got {shown(weights)}"
        ) from error
    if len(found) != num_datasets:
        raise PlanError(f"sample_from_datasets: one weight a dataset, got {list(found)} for {num_datasets}")
    if not all(math.isfinite(weight) and weight >= 0 for weight in found):
        raise PlanError(f"sample_from_datasets: weights are finite and not negative, got {list(found)}")
    if not max(found) > 0:
        raise PlanError(f"sample_from_datasets: some weight is above 0, got {list(found)}")
    return found
