"""Columns of bytes that are filled where they stay."""

from __future__ import annotations

import pyarrow as pa
import pytest

from arrowflow.interchange.binary import binary_column


@pytest.mark.parametrize("values", [[], [b""], [b"ab", b"", b"cde"], [b"", b""]])
def test_memory_is_that_of_the_values(values: list[bytes]) -> None:
    column, memory = binary_column([len(value) for value in values])
    assert len(memory) == len(values)
    for place, value in zip(memory, values, strict=True):
        place[:] = list(value)
    column.validate(full=True)
    assert column.to_pylist() == values


def test_more_than_offsets_can_tell_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(pa.ArrowInvalid, match="2 values have 2,147,483,648 bytes"):
        binary_column([1 << 31, 0])
