"""The exception tree.

Every error of the library derives from `ArrowflowError`. Its message says what was expected, what was found and what
to do next. Its fields say *where* it happened: `operator`, `file` and `row_group`, filled in by the code that knows
them. An exception of the user's own code is always kept as `__cause__`.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

_USER: Final = re.compile(r"(://)[^/?#@\s'\"]*:[^@'\"]*@(?:[^/?#@\s'\"]*@)*|(https?://)[^/?#@\s'\"]+@")
"""A user and a password; of web servers the user alone may be a token, where others have the name of a bucket."""
_QUERY: Final = re.compile(
    r"([?&;][^=&;\s'\"]*(?:key|secret|token|pass|sig|credential|auth|jwt)[^=&;\s'\"]*=)[^&;\s'\"]+",
    re.IGNORECASE,
)


MOST_LETTERS: Final = 10_000
"""The most letters of a message, and of its beginning and its end together where it is longer."""
MOST_SHOWN: Final = 200
"""The most letters that `shown` returns of an object, and the most elements."""

_OBEYED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, and those that turn the direction of a text."""


class ArrowflowError(Exception):
    """Base of all errors of the library.

    Attributes:
        operator: Name of the operator that failed, e.g. `filter`, or None.
        file: Path of the file that was being read, or None.
        row_group: Number of the row group (Parquet), record batch (IPC) or block (CSV, JSON) in that file, or None.
        part: The word for what `row_group` counts.
        of_data: Whether some rows are at fault, which `on_error` may leave out; not storage, a plan or a budget.
    """

    of_data: bool = False
    operator: str | None = None
    file: str | None = None
    row_group: int | None = None
    part: str = "row group"

    def locate(
        self,
        *,
        operator: str | None = None,
        file: str | None = None,
        row_group: int | None = None,
        part: str = "row group",
    ) -> ArrowflowError:
        """Fills in where the error happened, keeps fields that are already known, and returns the error itself."""
        self.operator = self.operator or operator
        self.file = self.file or file
        if self.row_group is None:
            self.row_group, self.part = row_group, part
        return self

    def __str__(self) -> str:
        text = super().__str__()
        if self.operator is not None and not text.startswith(self.operator):
            text = f"{self.operator}: {text}"
        if self.file is not None:
            text += f" (in file {self.file!r}"
            text += ")" if self.row_group is None else f", {self.part} {self.row_group})"
        if len(text) > MOST_LETTERS:
            text = f"{text[: MOST_LETTERS // 2]} … {text[-MOST_LETTERS // 2 :]}"
        return printable(without_credentials(text))


class PlanError(ArrowflowError, ValueError):
    """The pipeline, as written, cannot run: an unknown column, a bad size, an operator in a wrong place."""


class FingerprintError(PlanError):
    """A function or a source has no fingerprint that holds in another run; the message says which, and why."""


class SchemaError(ArrowflowError, TypeError):
    """Data differ from the schema that was declared for them, or from the schema of the first data."""

    of_data = True


class SourceError(ArrowflowError, OSError):
    """A file or a path is missing, truncated, corrupt or out of reach."""

    of_data = True
    # OSError formats (errno, text) pairs by itself; here the message is always the only argument.


class WriteError(ArrowflowError, OSError):
    """A dataset could not be written, and nothing of it is visible: the place is taken, the disk is full, and so on."""


class CacheFullError(ArrowflowError):
    """The disk has no room for the rows of a cache, or lets nothing be written there."""


class DataError(ArrowflowError, ValueError):
    """An operator cannot take a value: a null in `stack`, a number that a `cast` cannot hold."""

    of_data = True


class MissingPackageError(ArrowflowError, ImportError):
    """An optional package is not installed, or cannot be imported; the message names the extra."""


class FunctionError(ArrowflowError):
    """A user function raised (see `__cause__`), or returned something other than it has to return."""

    of_data = True


class WorkerError(ArrowflowError, RuntimeError):
    """A worker process crashed, was killed, could not start, or could not load a function; the message says which."""


class BudgetError(ArrowflowError, MemoryError):
    """The pipeline cannot run within `ram_budget`, or a file announces more; the message names a sufficient budget."""


class StateError(ArrowflowError, ValueError):
    """A state cannot be taken, or does not belong to this pipeline; the message says what differs."""


class ClosedError(ArrowflowError, RuntimeError):
    """The iterator was closed, or an error ended it, and it delivers nothing more."""


class RankError(ArrowflowError, RuntimeError):
    """Ranks of `split_by_rank` could not agree: another one failed, did not answer in time, or is at another step."""


class ForkError(ArrowflowError, RuntimeError):
    """A pipeline was started in a forked child whose parent had run a pipeline, or whose Polars had threads."""


def printable(text: str) -> str:
    r"""Returns a text without codes that a terminal obeys: names of columns and messages of functions may hold any.

    Lines and tabs stay.

    Examples:
        >>> printable("a\x1b[31m\u202eb\n")
        'a\\x1b[31m\\u202eb\n'
    """
    return text if text.isprintable() else _OBEYED.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def cut(text: str, letters: int) -> str:
    """Returns a text, or its beginning where it has more letters.

    Examples:
        >>> cut("price", 5), cut("prices", 5)
        ('price', 'pric…')
    """
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def without_credentials(text: str) -> str:
    """Returns a text without the passwords, keys and signatures in its URLs.

    Examples:
        >>> without_credentials("no s3://AKIA:s3cr3t@bucket/a and https://host/a?sig=Zm9v&v=1")
        'no s3://…@bucket/a and https://host/a?sig=…&v=1'
    """
    return _QUERY.sub(r"\1…", _USER.sub(r"\1\2…@", text)) if "://" in text or "?" in text else text


def repeated(names: Iterable[str]) -> list[str]:
    """Returns the names that come more than once, sorted, for messages about columns.

    Examples:
        >>> repeated(["a", "b", "a"])
        ['a']
    """
    return sorted(name for name, count in Counter(names).items() if count > 1)


def some(names: Sequence[object], most: int = 3) -> str:
    """Returns the first of some names, and how many more there are.

    Examples:
        >>> some(["a", "b", "c", "d", "e"])
        "'a', 'b', 'c' and 2 more"
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def said(error: BaseException) -> str:
    """Returns the type and the text of an exception; if its `__str__` raises, the type and that fact.

    Examples:
        >>> said(KeyError("price"))
        "KeyError: 'price'"
    """
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as other:  # noqa: BLE001  # whatever a user's code raises
        return f"{type(error).__name__}, whose text cannot be had (its __str__ raised {type(other).__name__})"


def shown(value: object) -> str:
    """Returns the `repr` of an object that a user made; if its `__repr__` raises, its type and that fact.

    An expression of Polars is shown as text, since its `repr` is an address and the beginning of that text. Of a long text
    the beginning is shown, and what it is.

    Examples:
        >>> shown("price")
        "'price'"
        >>> shown([0] * 1000)[-40:]
        ' 0, 0, 0, 0, 0… (list of 1,000 elements)'
    """
    text = _shown(value)
    if len(text) <= MOST_SHOWN:
        return text
    length = (
        f" of {counted(len(value), 'element')}"
        if isinstance(value, list | tuple | dict | str | bytes)
        else ""
    )
    return f"{text[:MOST_SHOWN]}… ({type(value).__name__}{length})"


def _shown(value: object) -> str:
    try:
        if type(value) is list or type(value) is tuple:
            return f"[{', '.join(map(_shown, value[:MOST_SHOWN]))}]"
        if type(value) is dict:
            items = itertools.islice(value.items(), MOST_SHOWN)
            return "{" + ", ".join(f"{_shown(key)}: {_shown(found)}" for key, found in items) + "}"
        is_expression = type(value).__name__ == "Expr" and type(value).__module__.startswith("polars.")
        return str(value) if is_expression else repr(value)
    except Exception as other:  # noqa: BLE001  # whatever a user's code raises
        return f"<{type(value).__name__}, whose __repr__ raised {type(other).__name__}>"


def counted(count: int, name: str) -> str:
    """Returns a number with its noun.

    Examples:
        >>> counted(1, "file"), counted(1200, "row"), counted(2, "record batch")
        ('1 file', '1,200 rows', '2 record batches')
    """
    return f"{count:,} {name}" + ("" if count == 1 else "es" if name.endswith("tch") else "s")


def closest(name: str, names: Iterable[str], *, kind: str = "columns") -> str:
    """Returns a hint that names the candidates most like `name`, for messages about unknown names.

    Examples:
        >>> closest("pricee", ["price", "tax"])
        "did you mean 'price'?"
    """
    import difflib

    known = list(names)
    matches = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if matches:
        return "did you mean " + " or ".join(repr(match) for match in matches) + "?"
    shown = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
    return f"known {kind}: {shown}"
