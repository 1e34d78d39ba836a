"""File names of pickled functions: cloudpickle 3.1.3 leaves them out, and tracebacks lose the lines of the user's code.

It writes a constant in place of the name of a code object's file. See `_code_reduce` in
https://github.com/cloudpipe/cloudpickle/blob/master/cloudpickle/cloudpickle.py
"""

from __future__ import annotations

from collections import ChainMap
from functools import cache
from types import CodeType
from typing import Any, Final

_NO_NAME: Final = "<dynamic-code>"


@cache
def with_file_names(pickler: Any) -> Any:
    """Returns a class like `cloudpickle.Pickler`, the argument, that keeps the names of the files of functions."""
    reduced = pickler.dispatch_table[CodeType]

    def named(code: CodeType) -> tuple[Any, ...]:
        make, arguments, *rest = reduced(code)
        parts = (
            code.co_filename if isinstance(part, str) and part == _NO_NAME else part for part in arguments
        )
        return (make, tuple(parts), *rest)

    table = ChainMap({CodeType: named}, pickler.dispatch_table)
    return type("Pickler", (pickler,), {"dispatch_table": table})
