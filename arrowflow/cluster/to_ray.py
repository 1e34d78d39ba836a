"""Datasets as `ray.data.Dataset`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from arrowflow.optional import optional


def ray_dataset(
    batches: Callable[[], Iterable[pa.RecordBatch]], schema: pa.Schema | None, rows: int | None
) -> Any:
    """Returns a `ray.data.Dataset` of batches, in order.

    Args:
        batches: Returns the batches of an epoch; pickles. It is called in the task that reads.
        schema: Their schema, if it is known.
        rows: How many rows they have, if that is known.
    """
    data = optional("ray.data", user="to_ray", extra="ray")
    # With more blocks than tasks Ray would cut the batches.
    return data.read_datasource(_datasource()(batches, schema, rows), override_num_blocks=1)


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


@functools.cache
def _datasource() -> type[Any]:
    """Makes the class, whose base exists only with Ray."""
    module = optional("ray.data.datasource", user="to_ray", extra="ray")
    block = optional("ray.data.block", user="to_ray", extra="ray")

    class Batches(module.Datasource):  # type: ignore[name-defined]  # known when it runs
        """The batches of an epoch, read by one task: in order, and with arrowflow's own threads."""

        def __init__(
            self,
            batches: Callable[[], Iterable[pa.RecordBatch]],
            schema: pa.Schema | None,
            rows: int | None,
        ) -> None:
            self._batches = batches
            self._schema = schema
            self._rows = rows

        def get_name(self) -> str:
            return "arrowflow"

        def estimate_inmemory_data_size(self) -> int | None:
            return None  # only a run tells

        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[Any]:
            metadata = block.BlockMetadata(
                num_rows=self._rows, size_bytes=None, exec_stats=None, input_files=None
            )
            batches = self._batches
            return [module.ReadTask(lambda: map(_table, batches()), metadata, schema=self._schema)]

    return Batches
