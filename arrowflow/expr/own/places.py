"""`index` and `one_hot`: the place of a value in a vocabulary, from 1 on, as a number or as a row of flags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.expr.own.hash_bucket import hashes
from arrowflow.lazy import compute as pc
from arrowflow.lookup.key_index import KeyIndex
from arrowflow.lookup.keys import MOST_INLINE, present, taken
from arrowflow.types import Array, is_string, numpy_dtype

MOST_BY_ARROW: Final = 32_768
"""Words that Arrow finds, which makes its table of them anew in each call: 27 ns a word."""
MOST_SHORT_BY_ARROW: Final = 4_096
"""The same where no word has more than 12 bytes: those `KeyIndex` finds in 25 ns a value, and others in 60 (AMD EPYC)."""


@dataclass(frozen=True, slots=True)
class Index:
    """The place of a value in the vocabulary, as uint32.

    It is 0 for null. A value that the vocabulary lacks has 0, too, or one of `unknown` places behind the last word, by its hash.

    Attributes:
        places: Returns the places of the values of an array, 0 for values that the vocabulary lacks.
        words: The size of the vocabulary.
        unknown: The number of places for values that the vocabulary lacks.
    """

    places: Callable[[pa.Array], Array]
    words: int
    unknown: int

    @classmethod
    def of(cls, unknown: int, words: pl.Series | None, type: pa.DataType) -> Index:
        """Returns the function for a column of `type`.

        Raises:
            PlanError: The column holds no texts though the words are texts, or no whole numbers though these are.
        """
        assert words is not None
        kept = type.value_type if pa.types.is_dictionary(type) else type
        if not len(words) and pa.types.is_integer(kept):
            words = words.cast(pl.Int64)  # the type of no words is not known
        if words.dtype.is_integer():
            if pa.types.is_integer(kept):
                return cls(_places_of_numbers(words, kept), len(words), unknown)
        elif is_string(kept):
            return cls(_places_of_texts(words, kept), len(words), unknown)
        expected = "whole numbers" if words.dtype.is_integer() else "texts"
        raise PlanError(f"the vocabulary holds {expected}, and the column {type}: `cast` the column")

    def __call__(self, array: pa.Array) -> pa.Array:
        return pa.Array.from_buffers(pa.uint32(), len(array), [None, pa.py_buffer(self.numbers(array))])

    def numbers(self, array: pa.Array) -> Array:
        """Returns the place of each value, as NumPy has it."""
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        found = self.places(array)
        if self.unknown:
            lacks, valid = found == 0, present(_keys(array))
            rows = np.flatnonzero(lacks if valid is None else lacks & valid)
            if len(rows):
                found[rows] = hashes(taken(array, rows)) % np.uint64(self.unknown) + np.uint64(self.words + 1)
        return found


@dataclass(frozen=True, slots=True)
class OneHot:
    """A list of fixed size for each value: 1.0 at its place in the vocabulary, and 0.0 elsewhere, as float32."""

    index: Index

    @classmethod
    def of(cls, size: int, words: pl.Series | None, type: pa.DataType) -> OneHot:
        """Returns the function for a column of `type`; raises as `Index.of` does."""
        return cls(Index.of(0, words, type))

    def __call__(self, array: pa.Array) -> pa.Array:
        found = np.zeros((len(array), self.index.words), np.float32)
        places = self.index.numbers(array)
        rows = np.flatnonzero(places)
        found[rows, places[rows] - 1] = 1.0
        flags = pa.Array.from_buffers(pa.float32(), found.size, [None, pa.py_buffer(found)])
        type = pa.list_(pa.float32(), self.index.words)
        return pa.Array.from_buffers(type, len(array), [None], children=[flags])


def _places(index: KeyIndex, rows: Array) -> Callable[[pa.Array], Array]:
    """Returns a function that finds places by the index of a vocabulary's words, of which these rows are in it."""
    # Of a whole vocabulary rows are places: to look them up would take a tenth of the time.
    if np.array_equal(rows, np.arange(len(rows))):

        def places(array: pa.Array) -> Array:
            found = index.find(_keys(array))
            found += 1  # `MISSING` is -1
            return found.view(np.uint32)

        return places
    at = np.append(rows + 1, 0).astype(np.uint32)  # the last one is read for `MISSING`
    return lambda array: at.take(index.find(_keys(array)))


def _places_of_texts(words: pl.Series, type: pa.DataType) -> Callable[[pa.Array], Array]:
    known = words.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(type)
    are_short = (words.str.len_bytes() <= MOST_INLINE).all()
    if len(known) <= (MOST_SHORT_BY_ARROW if are_short else MOST_BY_ARROW):
        return _by_arrow(known)
    return _places(KeyIndex(_keys(known)), np.arange(len(known)))


def _by_arrow(known: pa.Array) -> Callable[[pa.Array], Array]:
    def places(array: pa.Array) -> Array:
        found = pc.index_in(array, value_set=known, skip_nulls=True)
        numbers = np.frombuffer(found.buffers()[1] or b"", np.uint32)[: len(found)] + np.uint32(1)
        if (valid := present(_keys(found))) is not None:
            numbers *= valid  # a tenth of the time of `np.where`
        return numbers

    return places


def _places_of_numbers(words: pl.Series, type: pa.DataType) -> Callable[[pa.Array], Array]:
    dtype = numpy_dtype(type)
    assert dtype is not None
    limits, numbers = np.iinfo(dtype), words.to_numpy()
    rows = np.flatnonzero((limits.min <= numbers) & (numbers <= limits.max))
    known = pa.py_buffer(numbers[rows].astype(dtype))
    return _places(KeyIndex(_keys(pa.Array.from_buffers(type, len(rows), [None, known]))), rows)


def _keys(array: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([array], names=["word"])
