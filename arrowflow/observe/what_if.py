"""`predicted`: what a run would do under another CPU budget, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from arrowflow.autotune.limit import Forecast, forecast
from arrowflow.errors import PlanError, shown
from arrowflow.options import available_cpus, check_size
from arrowflow.physical.tuning import Statistics

TIMES: Final = (0.5, 2, 4)
"""CPU budgets that a report shows, as multiples of the run's own."""


def predicted(statistics: Statistics, what_if: Any) -> str:
    """Returns the line of `explain` for other options.

    Raises:
        PlanError: Another option than `cpu_budget` is named, or none, or the budget is no number of cores.
    """
    if not isinstance(what_if, Mapping) or list(what_if) != ["cpu_budget"]:
        given = list(what_if) if isinstance(what_if, Mapping) else what_if
        raise PlanError(
            f"explain: what_if takes the key 'cpu_budget' alone, such as {{'cpu_budget': 8}}, got {shown(given)}; the measurements of a run say "
            "nothing of other options: run with them"
        )
    cores = check_size("explain", "what_if['cpu_budget']", what_if["cpu_budget"])
    line = f"with cpu_budget={cores}"
    if not _is_known(statistics):
        return f"{line}: nothing is known yet, run an epoch first"
    if statistics.cluster is not None:
        return f"{line}: not known, as the lanes ran in the workers of a cluster"
    found = forecast(statistics, cores)
    here = available_cpus()
    beyond = f", on a machine that has them (this one has {here})" if cores > here else ""
    times = found.rows_per_second / statistics.rows_per_second
    return (
        f"{line} about {found.rows_per_second:,.0f} rows/s, {times:.2f} times as many{beyond}; {found.limit} would "
        "limit you"
    )


def forecasts(statistics: Statistics) -> Iterator[tuple[int, Forecast]]:
    """Yields CPU budgets, and what a run would do under them; nothing where that is not known."""
    if _is_known(statistics) and statistics.cluster is None:
        budgets = {max(1, int(times * statistics.cpu_budget)) for times in TIMES}
        for cores in sorted(budgets - {statistics.cpu_budget}):
            yield cores, forecast(statistics, cores)


def _is_known(statistics: Statistics) -> bool:
    return bool(statistics.stages) and statistics.rows > 0 and statistics.seconds > 0
