"""Enums: columns of codes whose field declares the values that the codes stand for.

A column is an enum by its schema alone: its type is a dictionary, and the metadata of its field list all values. Inside a
pipeline the type is a dictionary of the narrowest codes for so many values, and `ENUM_VALUES` lists them. Polars' own
spelling is known too. A dictionary without declared values is decoded to its values, since its codes depend on the data.

* Sources make the codes, where they also decode other dictionaries, and so do a `cast`, a function that returns such a
  column, and `schema=`. Code i stands for the i-th declared value. Codes of a dictionary in another order are mapped. A
  text that is not declared is a `DataError`.
* Files of one source declare the same values, else there is a `SchemaError`; a user's `schema=` may list them all, or
  take texts.
* Polars reads such a field as its own Enum, since the metadata of the field has Polars' spelling too. So expressions of
  Polars compare by the declared order. Those of pyarrow see a dictionary, and order texts as texts. Row groups are not
  pruned by values of such a column.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from arrowflow.errors import DataError, shown
from arrowflow.lazy import compute as pc
from arrowflow.types import POLARS_VALUES, convert, declared_values, enum_field


def enum_values(field: pa.Field) -> list[str] | None:
    """Returns the values of a field that declares itself an enum, here or by Polars; None for other fields.

    A dictionary whose field declares no values is no enum: its values depend on the data.

    Examples:
        >>> import polars as pl
        >>> enum_values(pl.Series("x", [], pl.Enum(["low", "high"])).to_frame().to_arrow().schema.field("x"))
        ['low', 'high']
    """
    if not field.metadata or not pa.types.is_dictionary(field.type):
        return None
    values = declared_values(field)
    return _polars_values(field.metadata.get(POLARS_VALUES)) if values is None else values


def _polars_values(text: bytes | None) -> list[str] | None:
    """Returns the values in Polars' spelling; None where it is another spelling."""
    if text is None:
        return None
    found, at = [], 0
    while at < len(text):
        end = text.find(b";", at)
        if end < 0 or not text[at:end].isdigit():
            return None
        at = end + 1 + int(text[at:end])
        found.append(text[end + 1 : at].decode())
    return found if at == len(text) else None


def enum_of(field: pa.Field) -> pa.Field | None:
    """Returns the field that an enum of a source has inside a pipeline, as after `cast`; None for other fields.

    Examples:
        >>> import polars as pl
        >>> field = pl.Series("x", [], pl.Enum(["low", "high"])).to_frame().to_arrow().schema.field("x")
        >>> print(enum_of(field).type, enum_of(field.with_metadata(None)))
        dictionary<values=string, indices=uint8, ordered=0> None
    """
    values = enum_values(field)
    return None if values is None else enum_field(field.name, values)


def as_enum(array: pa.Array, field: pa.Field) -> pa.Array:
    """Returns texts, codes of a dictionary in any order, or bare codes, as codes of the field of an enum.

    Codes of a dictionary in the declared order stay where they are.

    Raises:
        DataError: A text is not among the values, or a code stands for none.

    Examples:
        >>> as_enum(pa.array(["b", None, "a"]), enum_field("x", ["a", "b"])).indices.to_pylist()
        [1, None, 0]
    """
    declared = pl.Series(enum_values(field), dtype=pl.String)  # `pa.array` would import pandas
    values = declared.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string())
    try:
        if pa.types.is_integer(array.type):
            return pa.DictionaryArray.from_arrays(array.cast(field.type.index_type), values)
        is_coded = pa.types.is_dictionary(array.type)
        words = convert(array.dictionary if is_coded else array, pa.string())
        if is_coded and words.equals(values):
            codes = array.indices
        else:
            numbers = pc.index_in(words, value_set=values)
            codes = numbers.take(array.indices) if is_coded else numbers
            if numbers.null_count > words.null_count:
                texts = convert(array, pa.string())
                for stray in texts.filter(pc.and_(texts.is_valid(), codes.is_null())):
                    raise DataError(
                        f"column {field.name!r}: {stray.as_py()!r} is not among the values that its field declares: "
                        f"{shown(enum_values(field))}; write the column with all values declared, or as text"
                    )
        return pa.DictionaryArray.from_arrays(codes.cast(field.type.index_type), values)
    except (pa.ArrowInvalid, pa.ArrowIndexError) as error:
        raise DataError(f"column {field.name!r}: {array.type} does not fit its enum: {error}") from error


def other_values(expected: pa.Schema, found: pa.Schema) -> str | None:
    """Returns the text of an error if an enum has other values than the expected enum of the same name."""
    values = {field.name: declared for field in found if (declared := enum_values(field)) is not None}
    for field in expected if values else ():
        wanted = enum_values(field)
        if wanted is not None and values.get(field.name, wanted) != wanted:
            return f"column {field.name!r}: expected an enum of {shown(wanted)}, found one of {shown(values[field.name])}"
    return None
