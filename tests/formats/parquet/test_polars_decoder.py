"""What the Polars decoder sees in the header of a page; `test_parquet.py` has what it decodes."""

from __future__ import annotations

import pytest

from arrowflow.formats.parquet.polars_decoder import has_checksum

BEFORE = bytes([0x15, 0, 0x15, 0x80, 1, 0x15, 0x80, 1])
"""The type and the two sizes of a page, of which each of the last two takes two bytes."""


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        *((BEFORE[:size], True) for size in range(len(BEFORE) + 1)),  # nobody knows what follows
        (BEFORE + bytes([0x15]), True),
        (BEFORE + bytes([0x2C]), False),
        (
            bytes([0x25]) + BEFORE[1:] + bytes([0x2C]),
            True,
        ),  # another field first: no header that writers write
    ],
)
def test_a_page_whose_header_does_not_rule_out_a_checksum_has_one(header: bytes, expected: bool) -> None:
    assert has_checksum(header) == expected
