"""A copy of arrowflow that counts its own work, line by line: calls, iterations, and how much each call was handed.

`install` makes later imports of the library rewrite its source. A call of C code weighs as many as the columns and
elements that it takes and returns; so does `in` on a list, a concatenation, a slice, a list that pyarrow builds for an
attribute. So `schema.names.index(name)` in a loop over names is found, which no count of calls would show. Counts are
a function of the pipeline, and not of the machine; only lines of the executor, whose threads wait, vary by a few.
"""

from __future__ import annotations

import ast
import builtins
import importlib.abc
import importlib.machinery
import operator
import sys
import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

import polars as pl
import pyarrow as pa

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = "arrowflow"
HOOK: Final = "__arrowflow_{}__"

SIZED: Final[tuple[type, ...]] = (
    *(list, tuple, dict, set, frozenset, type({}.keys()), type({}.values()), type({}.items())),
)
WIDE: Final = (pa.Schema, pa.RecordBatch, pa.Table, pa.StructType, pa.StructArray, pl.DataFrame, pl.Schema)
LISTING: Final = {
    *("arrays", "column_names", "columns", "dtypes", "metadata", "names", "nbytes", "schema", "types")
}
"""Attributes of pyarrow's and Polars' objects that are made anew each time; `schema` of a frame alone."""

FREE: Final = {
    *("append", "appendleft", "pop", "popleft", "get", "put", "item", "items", "keys", "setdefault"),
    *("values", "column", "field", "get_field_index", "get_all_field_indices", "get_column"),
}
"""Methods that take no longer where there is more."""

WHOLE: Final = {"copy", "count", "index", "insert", "remove", "union", "difference", "intersection"}
"""Methods of Python's collections that look at all elements."""

FREE_CALLS: Final = (
    *(bisect_left, bisect_right, isinstance, issubclass, len, id, type, getattr, hasattr, setattr, callable),
    *(iter, next),
)
UNTOUCHED: Final = {"super", "locals", "globals", "vars", "NamedTuple", "namedtuple"}

_counts: list[Counter[str]] = []
_local = threading.local()


def counted(run: Callable[[], object]) -> Counter[str]:
    """Returns the work of `run` by line of the library, of all threads."""
    for counter in _counts:
        counter.clear()
    run()
    return sum(list(_counts), Counter())


def install() -> None:
    """Makes every later import of the library import the copy that counts."""
    sys.meta_path.insert(0, _Finder())


def copied(source: str, path: str) -> CodeType:
    """Returns Python source as code that counts; lines are called `path:number`."""
    for hook in (call, contained, combined, added, listed, sized, each, count):
        setattr(builtins, HOOK.format(hook.__name__), hook)
    code: CodeType = compile(ast.fix_missing_locations(_Copy(path).visit(ast.parse(source))), path, "exec")
    return code


# ---------------------------------------------------------------- what the copy calls; `line` says from where


def count(line: str, weight: int = 1) -> None:
    try:
        counter = _local.counter
    except AttributeError:
        counter = _local.counter = Counter()
        _counts.append(counter)
    counter[line] += weight


def call(line: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    if _is_counted(function) or _is_free(function):
        count(line)
        return function(*args, **kwargs)
    owner = getattr(function, "__self__", None)
    is_whole = isinstance(owner, WIDE) or (isinstance(owner, SIZED) and function.__name__ in WHOLE)
    count(
        line, 1 + (_size(owner) if is_whole else 0) + sum(map(_size, args)) + sum(map(_size, kwargs.values()))
    )
    made = function(*args, **kwargs)
    count(line, _size(made))
    return made


def contained(line: str, item: Any, container: Any) -> bool:
    count(line, 1 + (len(container) if isinstance(container, list | tuple) else 0))
    return item in container


def combined(line: str, name: str, left: Any, right: Any) -> Any:
    made = getattr(operator, name)(left, right)
    is_equality = name in ("eq", "ne")
    count(line, 1 + (min(_size(left), _size(right)) if is_equality else _size(made)))
    return made


def added(line: str, name: str, left: Any, right: Any) -> Any:
    in_place = {"add": "iadd", "or_": "ior", "and_": "iand", "sub": "isub"}[name]
    made = getattr(operator, in_place)(left, right)
    count(line, 1 + _size(right if made is left else made))
    return made


def listed(line: str, owner: Any, name: str) -> Any:
    value = getattr(owner, name)
    if type(owner).__module__.partition(".")[0] in ("pyarrow", "polars"):
        is_made = name != "schema" or isinstance(owner, pl.DataFrame)
        count(line, _size(owner) if name == "nbytes" else _size(value) if is_made else 1)
    return value


def sized(line: str, value: Any) -> Any:
    count(line, _size(value))
    return value


def each(line: str, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        count(line)
        yield value


def _size(value: Any) -> int:
    if type(value) in SIZED:
        return len(value)
    if isinstance(value, WIDE):
        return value.num_fields if isinstance(value, pa.StructType) else len(_names(value))
    return len(value) // 32 if isinstance(value, str | bytes) else 0


def _names(value: Any) -> Sequence[Any]:
    if isinstance(value, pa.StructArray):
        return range(value.type.num_fields)
    if isinstance(value, pa.RecordBatch | pa.Table):
        return range(value.num_columns)
    return range(value.width) if isinstance(value, pl.DataFrame) else value


def _is_counted(function: Any) -> bool:
    if isinstance(function, MethodType):
        function = function.__func__
    return isinstance(function, FunctionType | type) and str(function.__module__).partition(".")[0] == PACKAGE


def _is_free(function: Any) -> bool:
    name = getattr(function, "__name__", None)  # an expression where `pl.col` is called
    return isinstance(name, str) and (name in FREE or function in FREE_CALLS)


# ---------------------------------------------------------------- how it is made


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path or [str(ROOT)], target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = Path(self.get_filename(fullname))
        return copied(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())


class _Copy(ast.NodeTransformer):
    """Rewrites a module's statements and leaves its types alone."""

    OPERATORS: Final = {ast.Add: "add", ast.BitOr: "or_", ast.BitAnd: "and_", ast.Sub: "sub"}
    COMPARISONS: Final = {ast.Eq: "eq", ast.NotEq: "ne"}

    def __init__(self, path: str) -> None:
        self.path = path

    def _hook(self, hook: Callable[..., Any], node: ast.AST, *args: ast.expr) -> Any:
        line = ast.Constant(f"{self.path}:{getattr(node, 'lineno', 0)}")
        return ast.copy_location(
            ast.Call(ast.Name(HOOK.format(hook.__name__), ast.Load()), [line, *args], []), node
        )

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.match_case:
        node.guard = None if node.guard is None else self.visit(node.guard)
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.value = None if node.value is None else self.visit(node.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        returns, node.returns = node.returns, None
        self.generic_visit(node)
        node.returns = returns
        at = 1 if ast.get_docstring(node, clean=False) is not None else 0
        node.body.insert(at, ast.copy_location(ast.Expr(self._hook(count, node)), node.body[-1]))
        return node

    def visit_While(self, node: ast.While) -> ast.While:
        self.generic_visit(node)
        node.body.insert(0, ast.copy_location(ast.Expr(self._hook(count, node)), node))
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        node.iter = self._hook(each, node.iter, node.iter)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        node.iter = self._hook(each, node.iter, node.iter)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in UNTOUCHED:
            return node
        made = self._hook(call, node, node.func, *node.args)
        made.keywords = node.keywords
        return made

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) > 1:
            return node
        (op,) = node.ops
        (right,) = node.comparators
        if isinstance(op, ast.In | ast.NotIn):
            found = self._hook(contained, node, node.left, right)
            return found if isinstance(op, ast.In) else ast.copy_location(ast.UnaryOp(ast.Not(), found), node)
        name = self.COMPARISONS.get(type(op))
        return node if name is None else self._hook(combined, node, ast.Constant(name), node.left, right)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        name = self.OPERATORS.get(type(node.op))
        return node if name is None else self._hook(combined, node, ast.Constant(name), node.left, node.right)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        self.generic_visit(node)
        name = self.OPERATORS.get(type(node.op))
        if name is None or not isinstance(node.target, ast.Name):
            node.value = self._hook(sized, node, node.value)
            return node
        # `+=` of a list adds to it, and of a tuple makes another.
        read = ast.Name(node.target.id, ast.Load())
        value = self._hook(added, node, ast.Constant(name), read, node.value)
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr not in LISTING or not isinstance(node.ctx, ast.Load):
            return node
        return self._hook(listed, node, node.value, ast.Constant(node.attr))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        is_slice = isinstance(node.slice, ast.Slice) and isinstance(node.ctx, ast.Load)
        return self._hook(sized, node, node) if is_slice else node

    def visit_Starred(self, node: ast.Starred) -> ast.Starred:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = self._hook(sized, node, node.value)
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.Dict:
        self.generic_visit(node)
        pairs = zip(node.keys, node.values, strict=True)
        node.values = [value if key is not None else self._hook(sized, node, value) for key, value in pairs]
        return node
