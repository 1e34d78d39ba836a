"""Datasets as `ray.data.Dataset`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from arrowflow.optional import optional


def ray_dataset(
    batches: Callable[[], Iterable[pa.RecordBatch]], schema: pa.Schema | None, rows: int | None
) -> Any:
    """Returns a `ray.data.Dataset` of the batches of an epoch, in order.

    `batches` pickles, and is called in the task that reads. Schema and number of rows are None where only a run tells.
    """
    data = optional("ray.data", user="to_ray", extra="ray")
    metadata = data.block.BlockMetadata(num_rows=rows, size_bytes=None, exec_stats=None, input_files=None)

    class Batches(data.Datasource):  # type: ignore[name-defined]  # known when it runs
        """The batches of an epoch, read by one task: in order, and with arrowflow's own threads."""

        def get_name(self) -> str:
            return "arrowflow"

        def estimate_inmemory_data_size(self) -> int | None:
            return None  # only a run tells

        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[Any]:
            def read() -> Iterator[pa.Table]:
                return (pa.Table.from_batches([batch]) for batch in batches())

            return [data.ReadTask(read, metadata, schema=schema)]

    # With more blocks than tasks Ray would cut the batches.
    return data.read_datasource(Batches(), override_num_blocks=1)
