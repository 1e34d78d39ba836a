"""Token packing in PyTorch: a small GPT learns which bracket closes which.

Documents of very different length are packed into rows of exactly 128 tokens, so that hardly any of them is padding;
`segment_ids` keep documents that share a row from seeing each other, and `positions` begin anew with each.

The language has four kinds of brackets, well nested to a depth of 8: in `([]{<>})` each bracket that closes follows from
the one that it belongs to, which may be a long way back. A model that only counts tokens cannot know it: its loss is the
entropy of single tokens. The least possible loss is known too, since the dice that wrote the documents are.

    python examples/tokens.py         # needs PyTorch: the extra `torch`
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
import torch
from torch import nn
from torch.nn import functional

import arrowflow as af

DATA: Final = Path(__file__).parent.parent / "demo-data"
SHARDS: Final = 8
LENGTH: Final = 128
BATCH_ROWS: Final = 16

KINDS: Final = 4
START: Final = 2 * KINDS  # behind the brackets that open and those that close
END: Final = START + 1
VOCABULARY: Final = END + 1
DEPTH: Final = 8
OPENS: Final = 0.5  # how likely a bracket opens within others
ENDS: Final = 0.15  # how likely a document ends where no bracket is open

WIDTH: Final = 64
HEADS: Final = 4
LAYERS: Final = 2


def document(rng: np.random.Generator) -> tuple[list[int], float]:
    """Returns the tokens of a document, and the sum of how surprising each of them is to who knows the dice."""
    tokens, stack, surprise = [START], list[int](), 0.0
    while len(tokens) < LENGTH:
        if stack and (len(stack) == DEPTH or rng.random() >= OPENS):
            surprise -= np.log(1 - OPENS) if len(stack) < DEPTH else 0
            tokens.append(KINDS + stack.pop())
        elif not stack and len(tokens) > 1 and rng.random() < ENDS:
            surprise -= np.log(ENDS)
            tokens.append(END)
            break
        else:
            chance = OPENS if stack else 1 - ENDS if len(tokens) > 1 else 1
            surprise -= np.log(chance / KINDS)
            stack.append(int(rng.integers(KINDS)))
            tokens.append(stack[-1])
    return tokens, surprise


def make(folder: Path, documents: int) -> None:
    """Writes made-up documents as Parquet shards."""
    rng = np.random.default_rng(1)
    tokens, surprise = zip(*(document(rng) for _ in range(documents)), strict=True)
    frame = pl.DataFrame(
        {"tokens": tokens, "surprise": surprise}, schema_overrides={"tokens": pl.List(pl.UInt8)}
    )
    af.from_arrow(frame).write_parquet(folder, shard_rows=-(-documents // SHARDS))


def packed(files: Sequence[Path]) -> af.Dataset:
    """Returns rows of 128 tokens, of documents in random order."""
    return (
        af.read_parquet(files)
        .select("tokens")
        .shuffle(4096, seed=7)
        .pack_sequences("tokens", LENGTH)
        .batch(BATCH_ROWS)
    )


class Block(nn.Module):
    """Attention, and two layers for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attend = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, sees: torch.Tensor) -> torch.Tensor:
        """Returns `(B, T, WIDTH)` for the same, where each token attends to those that it sees, `(B, 1, T, T)`."""
        query, key, value = self.attend(self.norms[0](x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=sees)
        x = x + self.mix(found.transpose(1, 2).flatten(2))
        return x + self.think(self.norms[1](x))


class Gpt(nn.Module):
    """A transformer that says how likely each token comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.out = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Returns scores of the next token, `(B, T, VOCABULARY)`."""
        segment = batch["segment_ids"]
        sees = (segment[:, None, :, None] == segment[:, None, None, :]).tril()
        x = self.token(batch["tokens"]) + self.position(batch["positions"])
        for block in self.blocks:
            x = block(x, sees)
        return self.out(x)


def predicted(gpt: Gpt, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns scores of next tokens and these tokens, where there is one in the same document."""
    segment = batch["segment_ids"]
    follows = (segment[:, 1:] == segment[:, :-1]) & (segment[:, 1:] > 0)
    return gpt(batch)[:, :-1][follows], batch["tokens"][:, 1:][follows]


def judge(gpt: Gpt, name: str, test: Sequence[dict[str, torch.Tensor]]) -> float:
    """Prints how good the model is on documents that it has not seen, and returns its loss."""
    with torch.no_grad():
        parts = [predicted(gpt, batch) for batch in test]
    scores, target = (torch.cat(part) for part in zip(*parts, strict=True))
    loss = float(functional.cross_entropy(scores, target))
    closes = (target >= KINDS) & (target < 2 * KINDS)
    right = (scores[closes, KINDS : 2 * KINDS].argmax(1) + KINDS == target[closes]).float().mean()
    print(f"{name:<24} loss {loss:.3f}, {right:6.1%} of the brackets that close are right", flush=True)
    return loss


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the data, trains and tells what was learnt."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder for the data, which is made once")
    parser.add_argument("--documents", type=int, default=8_000)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.manual_seed(1)
    # Steps as small as these are hardly faster with more, and the input has the other core.
    torch.set_num_threads(1)

    folder = options.data / f"brackets-{options.documents}"
    if not folder.exists():  # it gets its name when all of it is written
        make(folder, options.documents)
    *files, last = sorted(folder.glob("*.parquet"))

    loader = packed(files).with_options(af.Options(progress=True)).to_torch(dtypes={"tokens": "int64"})
    test = list(packed([last]).to_torch(dtypes={"tokens": "int64"}))
    filled = torch.cat([batch["segment_ids"] for batch in test]) > 0
    print(f"{filled.float().mean():.1%} of the packed tokens are no padding")

    truth = af.read_parquet(last).to_table()
    tokens = np.concatenate(truth["tokens"].to_pylist())
    shares = np.bincount(tokens[tokens != START]) / np.sum(tokens != START)
    unigram = -float(np.sum(shares[shares > 0] * np.log(shares[shares > 0])))
    print(f"{'entropy of single tokens':<24} loss {unigram:.3f}, {1 / KINDS:6.1%}")

    gpt = Gpt()
    loss = judge(gpt, "before training", test)
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=3e-3)
    for epoch in range(options.epochs):
        for batch in loader:
            step = functional.cross_entropy(*predicted(gpt, batch))
            optimizer.zero_grad()
            step.backward()
            optimizer.step()
        loss = judge(gpt, f"after epoch {epoch}", test)
    least = np.sum(truth["surprise"]) / np.sum(tokens != START)
    print(f"{'who knows the dice':<24} loss {least:.3f}, {1:6.1%}\n")
    print(loader.explain())
    if loss > unigram - 0.1:
        sys.exit(f"learnt nothing: loss {loss:.3f}, and single tokens have an entropy of {unigram:.3f}")


if __name__ == "__main__":
    main()
