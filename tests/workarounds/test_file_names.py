"""Functions that travel to worker processes keep the names of their files."""

from __future__ import annotations

from types import CodeType

from arrowflow.executor.processes.wire import pack, unpack


def test_a_function_keeps_the_name_of_its_file() -> None:
    def outer(number: int) -> int:
        return sum(each + 1 for each in (number,))

    found = unpack(pack(outer))
    assert found(2) == 3
    inner = [const for const in found.__code__.co_consts if isinstance(const, CodeType)]
    assert {code.co_filename for code in (found.__code__, *inner)} == {__file__}
    assert inner
