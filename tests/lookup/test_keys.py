"""Keys as words, and the index of keys: a dict of Python is the truth."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from arrowflow.lookup import key_index
from arrowflow.lookup.key_index import MISSING, KeyIndex
from arrowflow.lookup.keys import text_words

TYPES = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
BLOCK_ROWS = 10_000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "BLOCK_ROWS", BLOCK_ROWS)


def texts(count: int, seed: int, longest: int) -> list[bytes | None]:
    """Returns texts of few letters, so that many begin or end alike; some are null. Some letters make words that are no floats."""
    rng = random.Random(seed)
    letters = [b"a", b"b", b"\x00", "é".encode(), b"\x7f\x7f"]
    made = [b"".join(rng.choices(letters, k=rng.randrange(longest))) for _ in range(count)]
    return [None if rng.random() < 0.1 else text for text in made]


CASES = [
    *((type, 12, 64) for type in TYPES),
    *((TYPES[0], *each) for each in product((3, 12, 40), (1 << 30, 1))),
]


@pytest.mark.parametrize(("type", "longest", "most_bytes"), CASES, ids=str)
def test_two_texts_are_equal_where_their_words_are(type: pa.DataType, longest: int, most_bytes: int) -> None:
    values = texts(300, longest, longest)
    for start in (0, 7, 290, 300):
        part = pa.array(values, type=pa.binary()).cast(type).slice(start)
        words = list(map(tuple, text_words(part, most_bytes).view(np.uint64).reshape(-1, 2).tolist()))
        pairs = [(text, word) for text, word in zip(values[start:], words, strict=True) if text is not None]
        assert len(words) == len(part)
        assert len(set(pairs)) == len({text for text, _ in pairs}) == len({word for _, word in pairs})


@pytest.mark.parametrize("make", [lambda text: text, lambda text: text.ljust(13, b"x")], ids=["any", "long"])
@pytest.mark.parametrize("is_large", [False, True])
def test_rows_are_found_by_texts(make: Callable[[bytes], bytes], is_large: bool) -> None:
    known = list(dict.fromkeys(make(text) for text in texts(900, 1, 20) if text is not None))
    wanted = [None if text is None else make(text) for text in texts(BLOCK_ROWS + 3, 2, 20)]
    index = KeyIndex(batch(known, pa.string()))
    rows = {text: row for row, text in enumerate(known)}
    found = index.find(batch(wanted, pa.large_string() if is_large else pa.string()))
    assert found.tolist() == [MISSING if text is None else rows.get(text, MISSING) for text in wanted]
    assert 0 < np.count_nonzero(found == MISSING) < len(found)


@pytest.mark.parametrize("slots", [2, 4, 16])
def test_rows_are_found_by_numbers_among_few_slots_and_by_many_threads(
    slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that meet others look further. Threads, and indexes of one word and of two, share no array."""
    for name in ("LEAST_SLOTS", "SMALL_SLOTS"):
        monkeypatch.setattr(key_index, name, slots)
    rng = np.random.default_rng(slots)
    known = rng.permutation(np.r_[0:500, rng.integers(-(1 << 62), 1 << 62, 500)])
    wanted = np.r_[known, rng.integers(0, 2000, BLOCK_ROWS), known]
    rng.shuffle(wanted)
    nulls = rng.random(len(wanted)) < 0.01
    rows = {key: row for row, key in enumerate(known.tolist())}
    expected = [
        MISSING if is_null else rows.get(key, MISSING)
        for key, is_null in zip(wanted.tolist(), nulls.tolist(), strict=True)
    ]
    columns = {"key": pa.array(wanted, mask=nulls), "more": pa.array(-wanted)}
    indexes = [
        KeyIndex(pa.record_batch({"key": known})),
        KeyIndex(pa.record_batch({"key": known, "more": -known})),
    ]
    chunk = pa.record_batch(columns)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda number: indexes[number % 2].find(chunk).tolist(), range(8)))
    assert all(each == expected for each in found)


def batch(values: list[Any], type: pa.DataType) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(values, pa.binary()).cast(type)})
