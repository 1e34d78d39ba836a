"""The levels at which NumPy picks its loops on this machine, as values of `NPY_DISABLE_CPU_FEATURES`.

`python -m tests.expr.cpu_levels` prints one a line, the first of them empty: nothing is disabled.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

umath: Final[Any] = import_module("numpy._core._multiarray_umath")  # of which NumPy has no types

# NumPy 2.4 calls groups of features by the levels of x86-64; `X86_V4` is AVX-512.
_AVX512: Final = ("AVX512", "X86_V4")


def cpu_feature_levels(
    dispatched: Sequence[str] = umath.__cpu_dispatch__, found: Mapping[str, bool] = umath.__cpu_features__
) -> list[str]:
    """Returns the values to run the tests with: all features, without AVX-512, without any that NumPy looks for.

    Args:
        dispatched: The features that NumPy looks for at run time.
        found: Which features this machine has.

    Example:
        >>> cpu_feature_levels(["AVX2", "AVX512_SKX"], {"SSE": True, "AVX2": True, "AVX512_SKX": True})
        ['', 'AVX512_SKX', 'AVX2 AVX512_SKX']
    """
    features = [name for name in dispatched if found.get(name)]
    wide = [name for name in features if name.startswith(_AVX512)]
    return list(dict.fromkeys(" ".join(names) for names in ([], wide, features)))


if __name__ == "__main__":
    sys.stdout.write("".join(f"{level}\n" for level in cpu_feature_levels()))
