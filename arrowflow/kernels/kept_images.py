"""`KeptImages`: the pixels that `decode_image` has made of images, and takes from memory where these come again.

The pixels of an image follow from its bytes alone, where nothing is drawn. Decisions:

* **Key.** The key of an image is the SHA-256 of its bytes, cut to 16. So it does not matter which file, batch, window, lane or
  function it comes from, where a run was resumed, or what else its call decodes. A file with other bytes has other keys. A digest
  takes 0.6 to 1.3 µs a kB, 3 to 7 % of decoding. Splits and rows could not be keys, as those of chunks are: a call decodes a piece or a
  batch, which has rows of other splits in another order.
* **What.** The pixels of single images. Images that are null or cannot be decoded are not kept, so each epoch reports the bad
  ones. Random parts are never kept.
* **Which.** The first that fit stay, and the last ones go first, as with `KeptChunks`. Chunks of local files leave the room to the
  images that are decoded of them, unless decoding them was dear, too: to read bytes again takes 1 % of decoding.
* **When.** A single epoch shall cost nothing. So pixels are kept when an image is decoded for the second time, as far as a
  sample of its bytes tells. Until then an image has no digest. If a user asks for a size, pixels are kept the first time.
* **Copies.** Batches own their pixels, so they are copied on their way in and out. The epoch that keeps them takes 1.1 to 1.3
  times the CPU, and later ones a sixth.
* **Bytes.** The executor counts them in the ledger, as kept chunks: see `executor.keeping`.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from arrowflow.kernels.kept import MAPPED_BYTES, Kept, KeptGroup, new_map

Pixels = npt.NDArray[np.uint8]

SAMPLE_BYTES: Final = 64
"""Bytes in the middle of an image that tell it from most others of the same length."""

MET_BITS: Final = 1 << 22
"""Bits that note which images have come. Of 1 M images an eighth seem to have come before, and are kept early."""


class KeptImages(Kept):
    """The kept pixels of one `decode_image`, which lie in `chunks` by key.

    Attributes:
        met_bytes: About the bytes of the pixels of all images that came so far. Threads add at the same time; that one is not
            counted does no harm.
    """

    __slots__ = ("_met", "met_bytes")

    what = "pixels"
    chunks: dict[bytes, Pixels]

    def __init__(self, asked_bytes: int | None = None) -> None:
        super().__init__(asked_bytes)
        self._met = bytearray(MET_BITS // 8)
        self.met_bytes = 0

    @property
    def total_bytes(self) -> int:
        return max(self.num_bytes, self.met_bytes)

    def key(self, image: memoryview, num_bytes: int) -> bytes | None:
        """Returns the key of an image; None where it is neither kept nor to be kept. Any thread.

        Args:
            image: Its bytes.
            num_bytes: The bytes of its pixels.
        """
        again = self._meet(image)
        if not again:
            self.met_bytes += num_bytes
            if self.asked_bytes is None or not self.has_room(num_bytes):
                return None
        elif not self.chunks and not self.has_room(num_bytes):
            return None
        return hashlib.sha256(image).digest()[:16]

    def _meet(self, image: memoryview) -> bool:
        """Notes that an image has come. Returns whether it seems to have come before."""
        middle = len(image) // 2
        bit = zlib.crc32(image[middle : middle + SAMPLE_BYTES], len(image)) % MET_BITS
        again = self._met[bit >> 3] >> (bit & 7) & 1
        self._met[bit >> 3] |= 1 << (bit & 7)
        return bool(again)

    def group(self, made: Mapping[bytes, Pixels]) -> KeptGroup | None:
        """Returns copies of the pixels that one call made; None where there is no room for them. Any thread."""
        num_bytes = sum(pixels.nbytes for pixels in made.values())
        if not num_bytes or not self.has_room(num_bytes):
            return None
        try:
            memory = new_map(num_bytes) if num_bytes >= MAPPED_BYTES else np.empty(num_bytes, np.uint8)
        except (OSError, MemoryError):
            return None
        copies: dict[bytes, Any] = {}
        end = 0
        for key, pixels in made.items():
            start, end = end, end + pixels.nbytes
            copies[key] = memory[start:end].reshape(pixels.shape)
            copies[key][...] = pixels
        return KeptGroup(copies, {memory.ctypes.data: memory.nbytes})
