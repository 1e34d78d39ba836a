"""The choice of record batches for one Arrow IPC file: a file holds only one dictionary for each encoded column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from arrowflow.workarounds.codes import has_dictionary


def same_file(batches: Sequence[pa.RecordBatch]) -> bool:
    """Returns whether record batches of one schema have the same dictionaries.

    Examples:
        >>> first, other = (pa.record_batch({"x": pa.array([x]).dictionary_encode()}) for x in "ab")
        >>> same_file([first, first]), same_file([first, other])
        (True, False)
    """
    if len(batches) < 2 or not any(map(has_dictionary, batches[0].schema.types)):
        return True
    first, *others = ([d for column in batch.columns for d in _dictionaries(column)] for batch in batches)
    return all(len(first) == len(other) and all(map(pa.Array.equals, first, other)) for other in others)


def _dictionaries(array: pa.Array) -> Iterator[pa.Array]:
    type = array.type
    if not has_dictionary(type):
        return
    if isinstance(type, pa.BaseExtensionType):
        yield from _dictionaries(array.storage)
    elif pa.types.is_dictionary(type):
        yield array.dictionary
        yield from _dictionaries(array.dictionary)
    elif pa.types.is_map(type):
        yield from _dictionaries(array.keys)
        yield from _dictionaries(array.items)
    elif pa.types.is_struct(type) or pa.types.is_union(type):
        for index in range(type.num_fields):
            yield from _dictionaries(array.field(index))
    else:  # lists of all kinds, and run-end-encoded arrays
        yield from _dictionaries(array.values)
