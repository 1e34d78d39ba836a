"""The rows of a part of a mix, and the kernel that puts them in order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.kernels.gather import GatherKernel, gathered
from arrowflow.kernels.held import join
from arrowflow.kernels.items import Origin

Choices = npt.NDArray[np.uint16]
"""For each row the number of its input; a row that is left out has the number of inputs."""


@dataclass(slots=True)
class MixedRows:
    """Chunks of all inputs, input after input, and the input of each row; the rows stand on the chunks' tickets."""

    chunks: list[pa.RecordBatch]
    choices: Choices
    num_rows: int
    nbytes: int


class OrderKernel(GatherKernel):
    """Puts the rows of a part in order, into new memory."""

    def gather(self, chunk: MixedRows, origin: Origin) -> pa.RecordBatch:
        """Returns the part's rows in the order of their draws."""
        # Joined, the rows lie as a stable sort by input would put them: its inverse gives the place of each row.
        indices = np.empty(chunk.num_rows, np.uint32)
        indices[np.argsort(chunk.choices, kind="stable")] = np.arange(chunk.num_rows, dtype=np.uint32)
        return gathered(join(chunk.chunks), indices)
