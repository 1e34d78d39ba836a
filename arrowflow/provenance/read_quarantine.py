"""`read_quarantine`: the bad rows that a pipeline has kept, for another try."""

from __future__ import annotations

from os import PathLike

from arrowflow.bad_rows.quarantine import is_of_operator, operators_of
from arrowflow.dataset import Dataset
from arrowflow.errors import PlanError, SourceError, shown
from arrowflow.sources import read


def read_quarantine(folder: str | PathLike[str], *, operator: str | None = None) -> Dataset:
    """Reads the bad rows that `on_error="quarantine"` wrote to a folder, for another try.

    Rows for which a function raised come with their own columns, and four more: `_split`, `_piece` (the number of the piece
    of it that the function was given), `_row` (the number in the piece) and `_error`. Rows that a reader could not decode come as `data`, the bytes of the line or
    the record, with `_file`, `_part` (the number of the block or row group), `_row` (the number in it), `_rows` and
    `_error`. Where a part or a file was left out whole, `data` is null.

    Each place is there once, however often the pipeline ran, as long as its files stay the same. Rows of a function after
    a `shuffle` may come once an epoch.

    Args:
        folder: The folder, or its URL.
        operator: The operator whose rows are read, such as `"read_csv"`, `"map_rows(parse)"`, or the name of a folder in
            `folder`. Needed where several operators have written there.

    Raises:
        SourceError: The folder holds no bad rows.
        PlanError: Several operators have bad rows there; the message names them.

    Examples:
        >>> import arrowflow as af, pathlib, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> def halve(row):
        ...     return {"half": row["id"] // (row["id"] % 4)}
        >>> af.range(6).map_rows(halve, on_error="quarantine", quarantine=folder).to_table()["half"].to_pylist()
        [1, 1, 1, 5]
        >>> bad = af.read_quarantine(folder)
        >>> bad.map_rows(lambda row: {"half": row["id"] // 2}).to_table()["half"].to_pylist()
        [0, 2]
    """
    name = "read_quarantine"
    if operator is not None and not isinstance(operator, str):
        raise PlanError(f"{name}: operator is the name of an operator, got {shown(operator)}")
    names = operators_of(folder, name)
    wanted = names if operator is None else [found for found in names if is_of_operator(found, operator)]
    if len(wanted) > 1:
        raise PlanError(
            f"{name}: several operators have bad rows in {str(folder)!r}: name one of {wanted} by operator="
        )
    if not wanted:
        has = f"has those of {names}" if names else "has none"
        of = "" if operator is None else f" of {operator!r}"
        raise SourceError(f"expected bad rows{of} in the folder {str(folder)!r}, which {has}").locate(
            operator=name
        )
    return read(f"{str(folder).rstrip('/')}/{wanted[0]}", format="ipc", partitioning=None)
