"""Random numbers that depend on nothing but their key.

A *key* is a tuple of whole numbers that says what the numbers are for. It holds a seed, one of the domains in this
module, and numbers that distinguish uses within the domain, such as (operator, epoch, split, piece).
Equal keys give equal numbers on every platform, with every release of NumPy and in every thread. The reason: this
module uses only two things that cannot change. BLAKE2b turns the key into the 128-bit key of a Philox4x64-10
counter-based generator, and this generator gives raw output.

A key is encoded for BLAKE2b (16 bytes of digest, personalised `arrowflow.random`) number by number. Each number is its
length in bytes (four bytes, little-endian), then its shortest two's complement (little-endian). The encoding is
prefix-free, so no two keys share an encoding. A change of it would change every shuffled order ever saved: the tests
pin it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.lazy import compute as pc

Key = tuple[int, ...]

FILE_ORDER: Final = 1
SPLIT_ORDER: Final = 2
WINDOW_ORDER: Final = 3
GLOBAL_ORDER: Final = 4
SAMPLE_DRAWS: Final = 5
RESAMPLE_DRAWS: Final = 6
FUNCTION_CALLS: Final = 7
BLOCK_ORDER: Final = 8
PART_DRAWS: Final = 10
LANE_SEEDS: Final = 11
IMAGE_DRAWS: Final = 12
WEIGHTED_DRAWS: Final = 9
"""Domains, the second numbers of keys: operators with one seed never share numbers. Only the keys that derive an
operator's seed from `Options.seed` have no domain: (seed, operator)."""

SCRATCH_BYTES_PER_ROW: Final = 28
"""Upper bound of the bytes a row that `permutation` allocates besides its result: 12 for 2**18 rows, 28 right above
that, 10 for many more rows."""

_SORTED_ROWS: Final = 1024  # up to here a single sort of 64-bit keys is fastest: 0.03 ms at most
_BLOCK_ROWS: Final = 1 << 18  # 18 bits of index leave 14 random bits in a 32-bit key
_INDEX_BITS: Final = np.uint32(18)
_INDEX_MASK: Final = np.uint32(_BLOCK_ROWS - 1)
_SCRAMBLE: Final = np.uint32(162_013)  # odd, 2**18 divided by the golden ratio
_UNSCRAMBLE: Final = np.uint32(pow(162_013, -1, _BLOCK_ROWS))
_DIGIT_BITS: Final = 12  # Arrow counts instead of comparing up to 4096 values: 0.5 ms against 18 ms for 2**18
_NETWORK_ROUNDS: Final = 8  # a pair of rows needs more than four to forget a shared line or column
# The numbers that go through all rounds at once: two arrays of 128 KiB, which stay in the cache.
_NETWORK_NUMBERS: Final = 1 << 16
_ARROW: Final = {2: pa.uint16(), 4: pa.uint32()}
_LOG_TWO: Final = math.log(2)
_HALF_ROOT: Final = math.sqrt(0.5)
_NETWORK_ROWS: Final = 512  # the limit of NumPy's vector sorting network: 0.8 ns a row, 5 above it


def philox(key: Key) -> np.random.Philox:
    """Returns the counter-based bit generator that belongs to `key`.

    Examples:
        >>> int(philox((7, 1)).random_raw())
        1060010937140503447
    """
    encoded = b"".join(map(_encode, key))
    digest = hashlib.blake2b(encoded, digest_size=16, person=b"arrowflow.random").digest()
    return np.random.Philox(key=int.from_bytes(digest, "little"))


def generator(key: Key) -> np.random.Generator:
    """Returns a generator for user functions. Its methods, unlike `bits`, may change between NumPy releases.

    Examples:
        >>> generator((7, 1)).random() == generator((7, 1)).random()
        True
    """
    return np.random.Generator(philox(key))


def bits(key: Key, num_words: int) -> npt.NDArray[np.uint64]:
    """Returns the first `num_words` raw 64-bit outputs of `philox(key)`.

    Examples:
        >>> bits((7, 1), 2).dtype
        dtype('uint64')
    """
    words: npt.NDArray[np.uint64] = philox(key).random_raw(num_words)
    return words


def uniforms(key: Key, start: int, stop: int) -> npt.NDArray[np.float64]:
    """Returns random numbers from 0 to below 1: those at the places from `start` to before `stop`, in any parts.

    Examples:
        >>> float(uniforms((7, 1), 0, 9)[6]) == float(uniforms((7, 1), 6, 7)[0])
        True
    """
    numbers = (_words_at(key, start, stop) >> np.uint64(11)).astype(np.float64)
    numbers *= 2.0**-53
    return numbers


def exponentials(key: Key, start: int, stop: int) -> npt.NDArray[np.float64]:
    """Returns random numbers above 0 whose density is exp(-x), in parts as `uniforms` does.

    They are the negative logarithms of numbers between 0 and 1, off by a few units in the last place. Only operations
    that IEEE 754 defines to the bit compute them, unlike `np.log`. So they are the same on every CPU.

    Examples:
        >>> float(exponentials((7, 1), 0, 9)[6]) == float(exponentials((7, 1), 6, 7)[0])
        True
    """
    # Half a step away from 0 and from 1: neither has a logarithm that is any use.
    numbers = ((_words_at(key, start, stop) >> np.uint64(12)) + 0.5) * 2.0**-52
    mantissas, exponents = np.frexp(numbers)
    small = mantissas < _HALF_ROOT
    mantissas[small] *= 2.0
    exponents[small] -= 1
    ratio = (mantissas - 1.0) / (mantissas + 1.0)  # at most 0.172, so ten terms of the series suffice
    square = ratio * ratio
    series = np.full(len(numbers), 1 / 21)
    for odd in range(19, 0, -2):
        series *= square
        series += 1 / odd
    logarithms: npt.NDArray[np.float64] = exponents * _LOG_TWO + 2.0 * ratio * series
    return np.negative(logarithms, out=logarithms)


def _words_at(key: Key, start: int, stop: int) -> npt.NDArray[np.uint64]:
    first = start // 4 * 4  # the generator counts in fours
    words: npt.NDArray[np.uint64] = philox(key).advance(first // 4).random_raw(stop - first)
    return words[start - first :]


def permutation(num_rows: int, key: Key) -> npt.NDArray[Any]:
    """Returns the numbers below `num_rows` in random order, as uint32 (as int64 from 2**32 rows on).

    Up to 1024 rows are ordered by a random key for each row, of at least 54 bits. A tie would leave two rows in index
    order. A tie occurs in less than one of 2**34 permutations.

    More rows are first scattered by a random digit below 4096. The rows of one digit stay together, in index order.
    Then each block of 512 rows is put into random order by itself. Beyond 2**18 rows, each block of 2**18 rows is
    permuted by this same method instead.

    This leaves a bias at borders. A border between two blocks may fall among the rows of one digit (64 rows in
    2**18). These rows then go to either side in index order. So the borders start at a random offset, and a coin decides
    whether rows count from the front or from the back. For each order that occurs too often the reverse order does,
    too. Two rows share a digit in one case of 4096, and one digit in eight lies on a border.

    The function releases the GIL in a handful of long calls. Any number of threads may call it.

    Examples:
        >>> permutation(5, (7, 1)).tolist()
        [3, 0, 1, 2, 4]
    """
    source = philox(key)
    return _block(num_rows, source) if num_rows <= _BLOCK_ROWS else _blocks(num_rows, source)


class Permutation:
    """The numbers below `num_rows` in random order; each part is available by itself.

    Up to 2**18 rows it is `permutation`, made once: 1 MiB. More rows are laid out in a table with as many lines as
    columns, row after row. A Feistel network of eight rounds over (line, column) moves number i to its place. A round
    turns the columns by a random distance for each line, or the lines by one for each column. All distances are raw
    random bits. So its state is eight times the root of the number of rows, and a part takes 13 ns a row. The table has
    a few places after the last row. A number that lands on such a place goes through the network again.

    Safe to use from several threads.

    Examples:
        >>> order = Permutation(5, (7, 1))
        >>> order.part(0, 2).tolist() + order.part(2, 5).tolist() == permutation(5, (7, 1)).tolist()
        True
    """

    __slots__ = ("_all", "_columns", "_distances", "_lines", "_narrow", "_wide", "num_rows")

    def __init__(self, num_rows: int, key: Key) -> None:
        self.num_rows = num_rows
        self._all = permutation(num_rows, key) if num_rows <= _BLOCK_ROWS else None
        if self._all is None:
            self._lines = math.isqrt(num_rows - 1) + 1
            self._columns = -(-num_rows // self._lines)
            # A line or a column and a distance are added before the modulo.
            self._narrow: type[np.unsignedinteger[Any]] = np.uint16 if self._lines <= 1 << 15 else np.uint32
            self._wide = np.uint32 if self._lines * self._columns <= 1 << 32 else np.uint64
            self._distances = self._random_distances(philox(key))

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        """Memory that grows with the rows: none that counts."""
        return ()

    def part(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Returns the numbers at the places from `start` to before `stop`."""
        if self._all is not None:
            return self._all[start:stop].astype(np.int64)
        return self.at(np.arange(start, stop, dtype=np.int64))

    def at(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the numbers at these places."""
        if self._all is not None:
            return self._all[places].astype(np.int64)
        numbers = np.empty(len(places), np.int64)
        for first in range(0, len(numbers), _NETWORK_NUMBERS):
            some = slice(first, first + _NETWORK_NUMBERS)
            numbers[some] = self._moved(places[some].astype(self._wide))
        while len(outside := np.flatnonzero(numbers >= self.num_rows)):
            numbers[outside] = self._moved(numbers[outside].astype(self._wide))
        return numbers

    def _random_distances(self, source: np.random.Philox) -> list[pa.Array]:
        found = []
        for turn in range(_NETWORK_ROUNDS):
            count, below = (self._columns, self._lines) if turn % 2 == 0 else (self._lines, self._columns)
            words: npt.NDArray[np.uint64] = source.random_raw(count)
            # 40 random bits times at most 24 bits: at worst, the chance of a distance is off by one part in 2**16.
            distances = (words >> np.uint64(24)) * np.uint64(below) >> np.uint64(40)
            found.append(_as_arrow(distances.astype(self._narrow)))
        return found

    def _moved(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sends numbers through the network once."""
        columns = self._wide(self._columns)
        wide = numbers // columns
        line = wide.astype(self._narrow)
        wide *= columns
        np.subtract(numbers, wide, out=wide)
        column = wide.astype(self._narrow)
        scratch = np.empty_like(line)
        for turn, distances in enumerate(self._distances):
            moved, fixed = (line, column) if turn % 2 == 0 else (column, line)
            moved += _taken(distances, fixed)
            # Modulo: a number that is negative here is huge as an unsigned number.
            np.subtract(moved, self._narrow(self._lines if turn % 2 == 0 else self._columns), out=scratch)
            np.minimum(moved, scratch, out=moved)
        wide = line.astype(self._wide)
        wide *= columns
        wide += column
        return wide


def _as_arrow(numbers: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(_ARROW[numbers.itemsize], len(numbers), [None, pa.py_buffer(numbers)])


def _taken(values: pa.Array, places: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the values at places that all exist: 0.4 ns each; NumPy takes 0.7, and takes int64 alone."""
    found = pc.take(values, _as_arrow(places), boundscheck=False)
    return np.frombuffer(found.buffers()[1], places.dtype, len(places))


def _encode(number: int) -> bytes:
    size = number.bit_length() // 8 + 1
    return size.to_bytes(4, "little") + number.to_bytes(size, "little", signed=True)


def _block(num_rows: int, source: np.random.Philox) -> npt.NDArray[np.uint32]:
    return _sorted(num_rows, source) if num_rows <= _SORTED_ROWS else _scattered(num_rows, source)


def _sorted(num_rows: int, source: np.random.Philox) -> npt.NDArray[np.uint32]:
    index_bits = max(num_rows - 1, 0).bit_length()
    keys: npt.NDArray[np.uint64] = source.random_raw(num_rows)
    keys <<= np.uint64(index_bits)
    keys |= np.arange(num_rows, dtype=np.uint64)
    keys.sort()
    keys &= np.uint64((1 << index_bits) - 1)
    return keys.astype(np.uint32)


def _scattered(num_rows: int, source: np.random.Philox) -> npt.NDArray[np.uint32]:
    """Scatters rows: the upper 12 of 32 bits a row are the digit, the lower 14 give the order within a block.

    Eight pairs of a block tie in 14 bits. If the index decided such ties, rising neighbours would show it (at 14
    standard deviations in 2**18 rows). So a scrambled index decides.
    """
    coin, keys = _words(num_rows, "<u4", source)
    order = _stable_order((keys >> np.uint32(32 - _DIGIT_BITS)).astype(np.uint16))
    scrambled = order.astype(np.uint32)
    scrambled *= _SCRAMBLE
    scrambled &= _INDEX_MASK
    keys <<= _INDEX_BITS
    keys |= scrambled
    start = (coin >> 1) % _NETWORK_ROWS
    stop = num_rows - (num_rows - start) % _NETWORK_ROWS
    keys[:start].sort()
    keys[start:stop].reshape(-1, _NETWORK_ROWS).sort(axis=1)
    keys[stop:].sort()
    keys *= _UNSCRAMBLE
    keys &= _INDEX_MASK
    return _numbered(keys, coin)


def _blocks(num_rows: int, source: np.random.Philox) -> npt.NDArray[Any]:
    coin, digits = _words(num_rows, "<u2", source)
    digits >>= np.uint16(16 - _DIGIT_BITS)
    order = _stable_order(digits)
    rows = np.empty(num_rows, np.uint32 if num_rows < 1 << 32 else np.int64)
    start = (coin >> 1) % _BLOCK_ROWS
    edges = sorted({0, *range(start, num_rows, _BLOCK_ROWS), num_rows})
    for first, last in itertools.pairwise(edges):
        rows[first:last] = order[first:last][_block(last - first, source)]
    return _numbered(rows, coin)


def _words(num_rows: int, dtype: str, source: np.random.Philox) -> tuple[int, npt.NDArray[Any]]:
    """Returns a random word of 64 bits and an array of random numbers."""
    num_words = -(-num_rows * np.dtype(dtype).itemsize // 8)
    words: npt.NDArray[np.uint64] = source.random_raw(num_words + 1)
    return int(words[-1]), words.astype("<u8", copy=False).view(dtype)[:num_rows]


def _stable_order(digits: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint64]:
    array = pa.Array.from_buffers(pa.uint16(), len(digits), [None, pa.py_buffer(digits)])
    return np.frombuffer(pc.array_sort_indices(array).buffers()[1], dtype=np.uint64, count=len(digits))


def _numbered(rows: npt.NDArray[Any], coin: int) -> npt.NDArray[Any]:
    """Numbers the rows from the back if the coin says so, in place."""
    return np.subtract(rows.dtype.type(len(rows) - 1), rows, out=rows) if coin & 1 else rows
