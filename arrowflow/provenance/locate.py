"""`locate`: where the rows of a batch come from, without running the epoch up to it."""

from __future__ import annotations

import dataclasses
import itertools

import pyarrow as pa

from arrowflow.dataset import Dataset, plans_of
from arrowflow.errors import PlanError
from arrowflow.ops.columns.select import Select
from arrowflow.ops.sources.files.with_provenance import PROVENANCE, WithProvenance
from arrowflow.options import Options, check_size
from arrowflow.plan.access import position_at
from arrowflow.plan.node import Node

_NAMES = tuple(f"__arrowflow_{name}" for name in PROVENANCE)


def locate(dataset: Dataset, epoch: int, step: int) -> pa.Table:
    """Returns the file, the row group and the row of each row of one batch, in the order of the batch.

    Reads the rows of the batch, or the windows of a `shuffle` that hold them, and no columns that decide nothing. Where only
    a run tells at which row a batch begins, as after a `filter` without counts or after a mix, the epoch is run up to the
    batch. In one of several processes, after `split_by_rank`, the batch is that of this process.

    Args:
        dataset: A dataset that reads files. A function in it has to keep columns that it does not know.
        epoch: The number of the epoch, from 0.
        step: The number of the batch in the epoch, from 0: `state_dict()["batches"]` before the batch was delivered.

    Returns: The columns of `with_provenance`: `file`, `row_group` and `row`.

    Raises:
        PlanError: The dataset does not end in batches, the epoch has fewer of them, it does not read files alone, or an
            operator drops the columns.

    Examples:
        >>> import arrowflow as af, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = af.range(1000).write_parquet(folder)
        >>> ds = af.read_parquet(folder).shuffle(100, seed=1).batch(4)
        >>> rows = af.locate(ds, epoch=2, step=50)
        >>> run = iter(ds)
        >>> run.set_epoch(2)
        >>> rows["row"].to_pylist() == list(run)[50]["id"].to_pylist()
        True
    """
    plans_of("locate", [dataset])
    epoch, step = (check_size("locate", *given, least=0) for given in (("epoch", epoch), ("step", step)))
    bound = dataset._ready().bound
    if not bound.batched:
        raise PlanError(
            "locate: the dataset does not end in batches, so it has no steps; put batch(n) at its end"
        )
    traced = Dataset(Select.named_by("locate", _traced(bound), list(_NAMES)))
    traced = traced.with_options(Options(skip_steps={}, progress=False))
    prepared = traced._ready()
    batches = prepared.num_batches
    position = position_at(prepared.optimised, step, epoch)
    batch = None
    if batches is None or step < batches:
        with iter(traced) as run:
            run.progress.place(epoch, position, 0 if position is None else step)
            batch = next(itertools.islice(run, step if position is None else 0, None), None)
    if batch is None:
        raise PlanError(f"locate: epoch {epoch} has no step {step:,}: it ends before")
    return pa.Table.from_batches([batch]).rename_columns(list(PROVENANCE))


def _traced(plan: Node) -> Node:
    """Returns a bound plan whose sources tell where their rows come from."""
    if not plan.inputs:
        return WithProvenance.of(plan, *_NAMES)
    inputs = tuple(map(_traced, plan.inputs))
    return dataclasses.replace(plan.carrying(_NAMES), inputs=inputs)
