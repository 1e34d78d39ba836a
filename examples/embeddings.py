"""Embeddings as views in PyTorch: a linear probe that trains on the bytes of files where they lie.

Vectors of 256 floats are written once as uncompressed Arrow IPC, which `read_ipc` maps into memory; a fixed-size list
column becomes a `(B, 256)` tensor that is a view of the map. `strict_zero_copy=True` makes an error of any copy, and what
it promises is checked here by address, where Linux says which addresses belong to a file. Rows lie in the files in random
order, so nothing has to be shuffled, which would gather them into new memory.

The vectors are those of 20 classes, each around a centre of its own, and near enough to each other to be mistaken.

    python examples/embeddings.py     # needs PyTorch: the extra `torch`
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

import arrowflow as af

DATA: Final = Path(__file__).parent.parent / "demo-data"
CLASSES: Final = 20
WIDTH: Final = 256
SHARDS: Final = 5
BATCH_ROWS: Final = 2048
CENTRES: Final = np.random.default_rng(1).normal(0, 0.15, (CLASSES, WIDTH)).astype(np.float32)

Batches = Iterable[dict[str, torch.Tensor]]


def make(folder: Path, batches: int) -> None:
    """Writes made-up vectors as Arrow IPC."""
    rng, rows = np.random.default_rng(2), SHARDS * batches * BATCH_ROWS
    label = rng.integers(CLASSES, size=rows)
    vector = rng.standard_normal((rows, WIDTH), np.float32)
    vector += CENTRES[label]
    # Batches are views where they lie in one record batch of the file each.
    af.from_numpy({"vector": vector, "label": label}).write_ipc(
        folder, shard_rows=batches * BATCH_ROWS, batch_rows=4 * BATCH_ROWS
    )


def is_mapped(tensor: torch.Tensor, folder: Path) -> bool:
    """Returns whether a tensor lies in a mapped file of a folder, as Linux lists maps."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        start, stop = (int(address, 16) for address in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < stop:
            return str(folder.resolve()) in line
    return False


def accuracy(classify: Callable[[torch.Tensor], torch.Tensor], batches: Batches) -> float:
    """Returns the share of vectors whose class is found."""
    with torch.no_grad():
        right = [classify(batch["vector"]).argmax(1) == batch["label"] for batch in batches]
    return float(torch.cat(right).float().mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the data, trains and tells what was learnt, and what was copied."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder for the data, which is made once")
    parser.add_argument("--batches", type=int, default=12, help="batches of 2,048 vectors in each of 5 files")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args(arguments)
    torch.manual_seed(1)
    torch.set_num_threads(1)  # a step as small as this is not faster with more

    folder = options.data / f"embeddings-{options.batches}"
    if not folder.exists():  # it gets its name when all of it is written
        make(folder, options.batches)
    *files, last = sorted(folder.glob("*.arrow"))

    progress = af.Options(progress=True)
    loader = af.read_ipc(files).batch(BATCH_ROWS).with_options(progress).to_torch(strict_zero_copy=True)
    test = af.read_ipc(last).batch(BATCH_ROWS).to_torch(strict_zero_copy=True)

    probe = nn.Linear(WIDTH, CLASSES)
    before = after = accuracy(probe, test)
    print(f"chance {1 / CLASSES:.1%} right, before training {before:.1%}", flush=True)
    optimizer = torch.optim.Adam(probe.parameters(), lr=3e-3)
    mapped = 0
    for epoch in range(options.epochs):
        for batch in loader:
            loss = nn.functional.cross_entropy(probe(batch["vector"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if epoch == 0 and sys.platform == "linux":
                mapped += is_mapped(batch["vector"], folder) and is_mapped(batch["label"], folder)
        after = accuracy(probe, test)
        print(f"after epoch {epoch} {after:.1%} right", flush=True)

    centres = torch.from_numpy(CENTRES)
    nearest = accuracy(lambda vector: vector @ centres.T - centres.square().sum(1) / 2, test)
    print(f"the nearest of the true centres: {nearest:.1%} right (the most that is possible)\n")

    print(loader.explain(copies=True))
    if sys.platform == "linux":
        print(f"of {len(loader)} batches {mapped} lie where their files are mapped")
    print(loader.explain())
    if sys.platform == "linux" and options.epochs and mapped < len(loader):
        sys.exit(f"{len(loader) - mapped} batches were copied")
    if after < before + 0.2:
        sys.exit(f"learnt nothing: {before:.1%} right before, {after:.1%} after")


if __name__ == "__main__":
    main()
