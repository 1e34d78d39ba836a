"""`Tail`: the last serial kernel, on the consumer's thread (rule 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from arrowflow.executor.failure import cause_of, located
from arrowflow.executor.stages.serial import SerialQueue
from arrowflow.kernels.items import PAUSE, Item, Slices


class Tail:
    """Runs the kernel of a stage that no worker runs, one result at a time.

    A thread that drops the stage takes the kernel away; the engine refuses later requests.
    """

    def __init__(self, stage: SerialQueue) -> None:
        self.stage = stage
        stage.caller.kernel.lazy = True
        self.iterator: Iterator[Item] | None = None
        self._finished = False

    def next_item(self, take: Callable[[], Item | None]) -> Item | None:
        """Returns the kernel's next result with rows; takes input as needed."""
        while True:
            item = self._result()
            if item is not None or self._finished or self.stage.caller.kernel.done:
                return item
            self._feed(take())  # a name for the item here would hold its rows until the next one has come

    def _feed(self, item: Item | None) -> None:
        kernel = self.stage.caller.kernel
        if item is not None:
            self.iterator = self.stage.caller.pushed(item)
        else:
            self._finished = not kernel.done
            self.iterator = kernel.finish()

    def _result(self) -> Item | None:
        if self.iterator is None:
            return None
        try:
            for item in self.iterator:
                if item is PAUSE:
                    continue  # earlier results are with the consumer already
                rows = item.chunk.num_rows
                if rows:
                    self.stage.chunks += item.chunk.batches if type(item.chunk) is Slices else 1
                    self.stage.rows += rows
                    return item
        except Exception as error:
            raise located(error, self.stage.caller.operator) from cause_of(error)
        self.iterator = None
        return None
