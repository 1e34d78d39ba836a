"""Iterators that nobody will ask any more: each that can be closed is closed, once, whatever the one before it did."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from arrowflow.executor.failure import Abandoned
from arrowflow.executor.workers.worker import Runner


def counting(closed: list[int], number: int, error: Exception | None = None) -> Iterator[int]:
    """Returns an iterator that was begun, and notes when it is closed."""

    def numbers() -> Iterator[int]:
        try:
            yield number
        finally:
            closed.append(number)
            if error is not None:
                raise error

    iterator = numbers()
    next(iterator)
    return iterator


def test_each_is_closed_once_and_an_error_of_one_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[int] = []
    abandoned = Abandoned()
    abandoned.add(("map",), counting(closed, 1, ValueError("at the end")))
    abandoned.add(("map", "filter"), counting(closed, 2))
    with caplog.at_level(logging.WARNING, logger="arrowflow"):
        abandoned.close(Runner())
        abandoned.close(Runner())
    assert closed == [1, 2] and not abandoned
    assert [record.getMessage() for record in caplog.records] == [
        "map raised while it was closed before its end: ValueError: at the end"
    ]


def test_an_iterator_that_cannot_be_closed_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    abandoned = Abandoned()
    for nothing in (None, iter([1, 2])):
        abandoned.add(("map",), nothing)
    assert not abandoned
    abandoned.close(Runner())
    assert not caplog.records
