"""Shipped test tools: contracts that every operator must pass, fault injectors, and clocks that a test moves.

Authors of operators, formats and loaders can use them for their own. Nothing here needs pytest.
"""

from arrowflow.testing.chunks import chunked, chunkings, cut
from arrowflow.testing.clocks import FakeClock, Gate, Sequencer
from arrowflow.testing.contracts import (
    batches_of,
    check_any_chunks,
    check_columns_needed,
    check_dataset,
    check_declared,
    check_empty,
    check_epochs,
    check_operator,
    check_owned,
    check_pickles,
    check_resume,
    check_row_order,
)
from arrowflow.testing.equality import assert_same_batches, assert_same_rows, assert_same_values
from arrowflow.testing.faults import Fault, failing, raising, returning, waiting
from arrowflow.testing.formats import check_format
from arrowflow.testing.ranks import check_ranks

__all__ = [
    "FakeClock",
    "Fault",
    "Gate",
    "Sequencer",
    "assert_same_batches",
    "assert_same_rows",
    "assert_same_values",
    "batches_of",
    "check_any_chunks",
    "check_columns_needed",
    "check_dataset",
    "check_declared",
    "check_empty",
    "check_epochs",
    "check_format",
    "check_operator",
    "check_owned",
    "check_pickles",
    "check_ranks",
    "check_resume",
    "check_row_order",
    "chunked",
    "chunkings",
    "cut",
    "failing",
    "raising",
    "returning",
    "waiting",
]
