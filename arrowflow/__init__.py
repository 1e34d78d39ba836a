"""arrowflow: input pipelines over Apache Arrow record batches.

Pipelines take tf.data's names, columns take Polars', states take PyTorch's. Start with `read_parquet`, `read_ipc`,
`read_orc`, `read_avro`, `read_csv`, `read_json`, `read_text`, `read_tfrecord`, `read_webdataset`, `read_files`, `read_images`, `from_arrow`, `from_numpy`, `from_generator`, `list_files` or `range`; each
returns a `Dataset`. `read` is for formats of other packages. `zip`, `sample_from_datasets` and `choose_from_datasets` make one of several. `Loader`, `Iterator` and
`Statistics` are for annotations: `Dataset.to_torch` and its like, `iter(…)` and `stats()` return them.
"""

import gc
import sys
import typing

if sys.platform == "win32":
    raise ImportError(
        "arrowflow runs on Linux and macOS, not on Windows: it needs file locks, maps and signals of POSIX. Use it in WSL 2 "
        "(https://learn.microsoft.com/windows/wsl), where it runs as on Linux"
    )

# A tenth of the import would go to looks for garbage among 80,000 new objects, none of which is. To freeze objects and thaw them
# makes them old ones without a look. Otherwise the first run would stand still for one, 65 ms.
_collects = gc.isenabled()
gc.disable()
try:
    from arrowflow import image
    from arrowflow.caching.store.upkeep import CacheEntry, cache_clear, cache_info
    from arrowflow.cluster.engine import RayEngine
    from arrowflow.combining import choose_from_datasets, sample_from_datasets, zip
    from arrowflow.dataset import Dataset
    from arrowflow.errors import (
        ArrowflowError,
        BudgetError,
        CacheFullError,
        ClosedError,
        DataError,
        FingerprintError,
        ForkError,
        FunctionError,
        MissingPackageError,
        PlanError,
        RankError,
        SchemaError,
        SourceError,
        StateError,
        WorkerError,
        WriteError,
    )
    from arrowflow.features.feature_statistics import FeatureStatistics
    from arrowflow.features.hashing import hash_bucket
    from arrowflow.iterator import Iterator
    from arrowflow.loaders.base import Loader
    from arrowflow.observe.guessed_names import OF_LIBRARY, no_attribute
    from arrowflow.observe.plot import plot_timeline
    from arrowflow.options import AUTOTUNE, Options
    from arrowflow.physical.tuning import Statistics
    from arrowflow.provenance import count_rows, locate, read_quarantine
    from arrowflow.sources import (
        from_arrow,
        from_generator,
        from_numpy,
        list_files,
        range,
        read,
        read_avro,
        read_csv,
        read_delta,
        read_files,
        read_iceberg,
        read_images,
        read_ipc,
        read_json,
        read_lance,
        read_orc,
        read_parquet,
        read_text,
        read_tfrecord,
        read_webdataset,
    )
    from arrowflow.state import merge_states
finally:
    if _collects:
        # Objects that a program has frozen stay so. Python 3.12 itself freezes some 400.
        if gc.get_freeze_count() < 1000:
            gc.freeze()
            gc.unfreeze()
        gc.enable()

__version__ = "0.1.0"

__all__ = [
    "AUTOTUNE",
    "ArrowflowError",
    "BudgetError",
    "CacheEntry",
    "CacheFullError",
    "ClosedError",
    "DataError",
    "Dataset",
    "FeatureStatistics",
    "FingerprintError",
    "ForkError",
    "FunctionError",
    "Iterator",
    "Loader",
    "MissingPackageError",
    "Options",
    "PlanError",
    "RankError",
    "RayEngine",
    "SchemaError",
    "SourceError",
    "StateError",
    "Statistics",
    "WorkerError",
    "WriteError",
    "cache_clear",
    "cache_info",
    "choose_from_datasets",
    "count_rows",
    "from_arrow",
    "from_generator",
    "from_numpy",
    "hash_bucket",
    "image",
    "list_files",
    "locate",
    "merge_states",
    "plot_timeline",
    "range",
    "read",
    "read_avro",
    "read_csv",
    "read_delta",
    "read_files",
    "read_iceberg",
    "read_images",
    "read_ipc",
    "read_json",
    "read_lance",
    "read_orc",
    "read_parquet",
    "read_quarantine",
    "read_text",
    "read_tfrecord",
    "read_webdataset",
    "sample_from_datasets",
    "zip",
]


def __dir__() -> list[str]:
    """Returns the public names, and not the modules that stand beside them."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


if not typing.TYPE_CHECKING:  # for type checkers a wrong name stays an error

    def __getattr__(name: str) -> typing.Any:
        raise no_attribute(sys.modules[__name__], "arrowflow", name, OF_LIBRARY)
