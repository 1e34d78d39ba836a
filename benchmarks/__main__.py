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
    "lanes",
    "ranks",
    "columns",
    "borders",
    "memory",
    "budgets",
    "autotune",
    "tutorial",
    "packing",
    "bucketing",
    "shuffling",
    "caching",
    "mixing",
    "generator",
    "row_group",
    "resume_filtered",
    "tfrecord",
    "remote",
    "bad_rows",
    "processes",
    "handover",
    "torch_wide",
    "beside",
    "images",
)

NEED_TORCH = ("handover", "torch_wide", "beside", "images")


def main() -> None:
    """Runs them with the arguments given."""
    root = Path(__file__).parent.parent
    missed = []
    for name in NAMES:
        print(f"\n=== {name}", flush=True)
        if name in NEED_TORCH and importlib.util.find_spec("torch") is None:
            print("left out: PyTorch is not installed: pip install arrowflow[torch]")
            continue
        command = [sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]]
        if subprocess.run(command, cwd=root, check=False).returncode:
            missed.append(name)
    print(f"\nbars missed in: {', '.join(missed)}" if missed else "\nall bars met")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
