"""Runs all benchmarks, one after the other; exits with 1 where a bar is not met."""

import importlib.util
import subprocess
import sys
from pathlib import Path

NAMES = (
    "startup",
    "overhead",
    "stream",
    "wide",
    "profile",
    "scale",
    "decoders",
    "cluster",
    "lanes",
    "ranks",
    "columns",
    "borders",
    "pieces",
    "memory",
    "budgets",
    "straggler",
    "autotune",
    "tutorial",
    "packing",
    "bucketing",
    "shuffling",
    "caching",
    "keep",
    "mixing",
    "generator",
    "row_group",
    "resume_filtered",
    "tfrecord",
    "remote",
    "bad_rows",
    "processes",
    "row_functions",
    "literals",
    "kernels",
    "handover",
    "torch_wide",
    "beside",
    "images",
    "join",
    "features",
    "what_if",
    "layout",
    "sources",
)

NEEDS = {
    "cluster": "ray",
    "sources": "deltalake",
    **dict.fromkeys(("handover", "torch_wide", "beside", "images"), "torch"),
}
"""The extras that some of them need."""


def main() -> None:
    """Runs them with the arguments given."""
    root = Path(__file__).parent.parent
    missed = []
    for name in NAMES:
        print(f"\n=== {name}", flush=True)
        needed = NEEDS.get(name)
        if needed is not None and importlib.util.find_spec(needed) is None:
            print(f"left out: {needed} is not installed: pip install arrowflow[{needed}]")
            continue
        command = [sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]]
        if subprocess.run(command, cwd=root, check=False).returncode:
            missed.append(name)
    print(f"\nbars missed in: {', '.join(missed)}" if missed else "\nall bars met")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
