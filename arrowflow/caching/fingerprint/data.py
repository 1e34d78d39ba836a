"""Writers for arrays, tables, types and expressions of NumPy, Arrow, Polars and PyTorch."""

from __future__ import annotations

import dataclasses
import re
import sys
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from arrowflow.caching.fingerprint.arrays import array_digest, batch_digest, type_bytes
from arrowflow.caching.fingerprint.encoder import Encoder
from arrowflow.expr.parse import arrow_tree
from arrowflow.expr.parse.expression import Expr
from arrowflow.expr.parse.lifted import Text, functions_named
from arrowflow.plan.node import Unknown

_EXTENDED_BITS, _EXTENDED_BYTES = 63, 10
"""Of x86's numbers with extended precision: the bits of the fraction, and the bytes that are not padding."""

_PICKLED = re.compile(r'"(?!Binary")\w+":\[(80,76,80,89,|(\d+,){0,4}128,[2-5],149,)')
"""The start of pickled functions in the JSON of an expression: Polars' mark, or a few bytes of versions before them."""

_DRAWS = "it goes on to another state with each call; map(fn, seed=…) hands a generator to `fn`"


def write_data(encoder: Encoder, value: Any) -> bool:
    """Writes a value that holds or describes data."""
    # PyTorch is looked up, not imported: a module that nobody has imported has made no objects.
    return (
        _write_numpy(encoder, value)
        or _write_arrow(encoder, value)
        or _write_polars(encoder, value)
        or ("torch" in sys.modules and _write_torch(encoder, value))
        or _write_own(encoder, value)
    )


def _write_numpy(encoder: Encoder, value: Any) -> bool:
    if type(value) is np.ndarray or isinstance(value, np.memmap | np.generic):
        array = np.asarray(value)
        kind = repr(array.dtype) if array.dtype.names else array.dtype.str
        encoder.put("numpy", type(value).__name__, kind)
        encoder.put("shape", repr(array.shape))
        if array.dtype.hasobject:
            encoder.write(array.tolist())
        else:
            _write_array(encoder, array)
    elif isinstance(value, np.ufunc):
        name = str(value.__name__)
        if getattr(np, name, None) is not value:
            raise encoder.refusal(
                value, "it is none of NumPy's own, and does not show the function that it calls"
            )
        encoder.put("ufunc", name)
    elif isinstance(value, np.random.Generator | np.random.RandomState | np.random.BitGenerator):
        raise encoder.refusal(value, _DRAWS)
    else:
        return False
    return True


def _write_array(encoder: Encoder, array: npt.NDArray[Any]) -> None:
    """Writes the meaning of an array's bytes, without the padding."""
    if array.dtype.names:
        for name in array.dtype.names:
            _write_array(encoder, array[name])
        return
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.nbytes else np.empty(0, np.uint8)
    if array.dtype.type in (np.longdouble, np.clongdouble) and np.finfo(array.dtype).nmant == _EXTENDED_BITS:
        whole = np.dtype(np.longdouble).itemsize
        data = np.ascontiguousarray(data.reshape(-1, whole)[:, :_EXTENDED_BYTES])
    encoder.put("values", data)


def _write_arrow(encoder: Encoder, value: Any) -> bool:
    if isinstance(value, pa.RecordBatch):
        encoder.put("record batch", batch_digest(value, once=encoder.is_data))
    elif isinstance(value, pa.Table):
        encoder.put("table", bytes(value.schema.serialize()))
        encoder.write([batch_digest(batch, once=False) for batch in value.to_batches()])
    elif isinstance(value, pa.Array):
        encoder.put("array", array_digest(value))
    elif isinstance(value, pa.ChunkedArray):
        encoder.put("chunked array", type_bytes(value.type))
        encoder.write([array_digest(chunk) for chunk in value.chunks])
    elif isinstance(value, pa.Scalar):
        encoder.put("scalar", array_digest(pa.repeat(value, 1)))
    elif isinstance(value, pa.Buffer):
        encoder.put("buffer", value)
    elif isinstance(value, pa.Schema):
        encoder.put("schema", bytes(value.serialize()))
    elif isinstance(value, pa.Field):
        encoder.put("field", bytes(pa.schema([value]).serialize()))
    elif isinstance(value, pa.DataType):
        encoder.put("type", type_bytes(value))
    else:
        return _write_compute(encoder, value)
    return True


def _write_compute(encoder: Encoder, value: Any) -> bool:
    compute = sys.modules.get("pyarrow._compute")
    if compute is None:
        return False
    if isinstance(value, compute.Expression):
        data = arrow_tree.serialise(value)
        encoder.put("arrow expression", repr(arrow_tree.entries(data)))
        encoder.write(pa.ipc.open_file(pa.py_buffer(data)).get_batch(0).columns)
    elif isinstance(value, compute.FunctionOptions):
        encoder.put("options", type(value).__name__, bytes(value.serialize()))
    else:
        return False
    return True


def _write_polars(encoder: Encoder, value: Any) -> bool:
    if isinstance(value, pl.Expr):
        encoder.put("polars expression", _serialised(encoder, value))
    elif isinstance(value, pl.DataFrame):
        encoder.put("frame", str(value.width))
        for column in value.iter_columns():
            _write_polars(encoder, column)
    elif isinstance(value, pl.Series):
        if value.dtype.base_type() is pl.Object:
            raise encoder.refusal(value, "it holds Python objects")
        encoder.put("series", value.name)
        encoder.write(value.dtype)
        encoder.write(value.to_arrow())
    elif isinstance(value, pl.LazyFrame):
        raise encoder.refusal(
            value, "what it reads, when it is collected, may be other data; collect it first"
        )
    else:
        return False
    return True


def _serialised(encoder: Encoder, value: pl.Expr) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # JSON has no NaN, so it tells less than the binary form.
            text = functions_named(value.meta.serialize(format="json"))
            data = value.meta.serialize()
        except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
            raise encoder.refusal(value, f"Polars cannot serialise it ({error})") from error
    if _PICKLED.search(text):
        raise encoder.refusal(value, "it calls Python, whose code cannot be told; use map or map_rows")
    # Each Python pickles functions in its own way.
    return f"{text}{value}".encode() if isinstance(text, Text) else data


def _write_torch(encoder: Encoder, value: Any) -> bool:
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        if value.is_quantized or value.is_nested or value.layout is not torch.strided:
            raise encoder.refusal(value, "it is quantised, sparse or nested; make it a plain one")
        whole = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        encoder.put("tensor", str(value.dtype), str(tuple(value.shape)), str(value.requires_grad))
        encoder.put("values", whole.reshape(-1).view(torch.uint8).numpy() if whole.numel() else b"")
    elif isinstance(value, torch.Generator):
        raise encoder.refusal(value, _DRAWS)
    elif isinstance(value, torch.dtype | torch.device):
        encoder.put("torch", str(value))
    else:
        return False
    return True


def _write_own(encoder: Encoder, value: Any) -> bool:
    """Writes objects of this library, such as expressions and formats, by the values by which they are compared."""
    if isinstance(value, Unknown):
        raise encoder.refusal(value, value.reason)
    if isinstance(value, Expr):
        encoder.put("expression", value.name or "", str(value.name is None))
        encoder.write(value.source)
    elif type(value).__module__.startswith("arrowflow.") and dataclasses.is_dataclass(value):
        fields = [each.name for each in dataclasses.fields(value) if each.compare]
        encoder.put(type(value).__qualname__, str(len(fields)))
        for name in fields:
            encoder.put("field", name)
            encoder.write(getattr(value, name), f"{name!r}")
    else:
        return False
    return True
