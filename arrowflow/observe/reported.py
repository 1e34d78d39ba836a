"""`Reported`: what loaders and iterators have in common: `explain` and `report`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from arrowflow.observe.page import page
from arrowflow.observe.report import predicted, report
from arrowflow.observe.whole_file import write_whole
from arrowflow.options import check_flag
from arrowflow.physical.tuning import Statistics


class Reported:
    """Something with figures of a run."""

    __slots__ = ()

    def stats(self) -> Statistics:
        """Returns the measurements of the run so far."""
        raise NotImplementedError

    def explain(self, *, verbose: bool = False, what_if: Mapping[str, int] | None = None) -> str:
        """Describes the run: its limit, a table of its stages, and advice.

        Args:
            verbose: Gives a sentence for each stage, with the tuned values and their reasons, in place of the table.
            what_if: Another `cpu_budget`. One more line says about how many rows a second the run would deliver, and what
                would limit it. That is worked out from the figures of the run; nothing is run for it.

        Raises:
            PlanError: `what_if` has another key than `cpu_budget`, or `verbose` is no flag.

        Examples:
            >>> import arrowflow as af
            >>> loader = af.range(100_000).batch(1_000).to_numpy()
            >>> for batch in loader:
            ...     pass
            >>> print(loader.explain(what_if={"cpu_budget": 8}).splitlines()[-1])  # doctest: +ELLIPSIS
            with cpu_budget=8 about ... rows/s, ... times as many...; ... would limit you
        """
        check_flag("explain", "verbose", verbose)
        statistics = self.stats()
        text = report(statistics, verbose=verbose)
        return text if what_if is None else f"{text}\n{predicted(statistics, what_if)}"

    def report(
        self, path: str | os.PathLike[str], *, trace: str | os.PathLike[str] | Mapping[str, Any] | None = None
    ) -> None:
        """Writes the figures of `stats` as one HTML page, which needs no network and no program but a browser.

        It shows what limits the run, throughput, waiting and memory over time, each stage with its tuned values and
        reasons, advice, and the machine. The file holds no value of the data. It appears when it is complete.

        Args:
            path: The file, on a local disk. A file that is there is replaced.
            trace: A trace of the run, as `plot_timeline` takes it; the page then has a timeline.

        Raises:
            SourceError: The folder of `path` does not exist or cannot be written to, `path` is a folder, or `trace` is no trace.
            PlanError: `path` is no path.

        Examples:
            >>> import arrowflow as af, pathlib, tempfile
            >>> path = pathlib.Path(tempfile.mkdtemp(), "run.html")
            >>> loader = af.range(100).batch(10).to_numpy()
            >>> for batch in loader:
            ...     pass
            >>> loader.report(path)
            >>> path.read_text(encoding="utf-8").startswith("<!doctype html>")
            True
        """
        write_whole(path, page(self.stats(), trace), operator="report", name="report")
