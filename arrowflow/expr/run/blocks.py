"""Runs a graph over a batch, block by block: each block's values stay in the cache from input to output.

A `BlockPlan` is made once per program and shared by all threads. A run writes its intermediate values to a `Scratch`.
Runs take a scratch from a pool and give it back: `deque.pop` and `append` are atomic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from arrowflow.expr.compile.graph import CONSTANT, INPUT, Op, reachable
from arrowflow.expr.run.columns import BLOCK_ROWS, RowBlock, Source, source
from arrowflow.expr.run.numpy_kernels import KERNELS, VALIDITY, Kernel, Valid, ValidityKernel, both
from arrowflow.types import Array


class Sink(Protocol):
    """Where the values of one output go, block by block."""

    values: Array

    def validity(self, start: int, stop: int, valid: Valid) -> None:
        """Takes the validity of the rows from `start` to `stop`, whose values were written before."""


@dataclass(slots=True)
class Scratch:
    """The memory of one run: an array per slot, and the current block's values and validities per operation."""

    slots: list[Array]
    values: list[Any]
    valids: list[Valid]


class _Instruction(NamedTuple):
    """One operation of the plan.

    Attributes:
        at: The index of its values in `Scratch.values`.
        args: The indices of its arguments there.
        slot: The scratch array for its values; -1 for outputs.
        outputs: The sinks for its values.
        column: The input that it reads, -1 for none.
        kernel: The function for its values, unless the operation is an input.
        validity: The function instead, for kernels that see validity.
    """

    at: int
    args: tuple[int, ...]
    slot: int
    outputs: tuple[int, ...]
    column: int
    kernel: Kernel | None
    validity: ValidityKernel | None


class BlockPlan:
    """The order in which to compute `roots`, and which scratch array each operation uses."""

    def __init__(self, roots: tuple[Op, ...]) -> None:
        ops = reachable(roots)
        self.inputs = tuple(op for op in ops if op.kernel == INPUT)
        self._constants = tuple(op.param if op.kernel == CONSTANT else None for op in ops)
        self._code, self._dtypes = _assemble(ops, roots, self.inputs)
        self._pool: deque[Scratch] = deque()

    def run(self, columns: Mapping[str, pa.Array], blocks: Iterable[RowBlock], sinks: Sequence[Sink]) -> None:
        """Computes every root over `blocks` of `columns` into the sink at the same place in `sinks`.

        Any number of threads may call this at the same time.
        """
        sources = [source(columns[op.param], op.dtype) for op in self.inputs]
        scratch = self._take_scratch()
        done = 0
        with np.errstate(all="ignore"):
            for block in blocks:
                self._run_block(scratch, sources, sinks, block, done)
                done += len(block)
        # After an error the scratch is not given back: nobody relies on it, and broken runs must not make the pool
        # grow.
        # A view of an input or an output would keep its buffer alive.
        scratch.values[:] = self._constants
        scratch.valids[:] = [None] * len(self._constants)
        self._pool.append(scratch)

    def _run_block(
        self, scratch: Scratch, sources: Sequence[Source], sinks: Sequence[Sink], block: RowBlock, done: int
    ) -> None:
        values, valids, stop = scratch.values, scratch.valids, done + len(block)
        for ins in self._code:
            if ins.outputs:
                out = sinks[ins.outputs[0]].values[done:stop]
            else:
                out = scratch.slots[ins.slot][: stop - done]
            if ins.column >= 0:
                target = out if ins.outputs or block.rows is not None else None
                values[ins.at], valids[ins.at] = sources[ins.column].read(block, target)
            else:
                valids[ins.at] = _compute(ins, values, valids, out)
                values[ins.at] = out
            if ins.outputs:
                _deliver(ins, sinks, values[ins.at], valids[ins.at], done, stop)

    def _take_scratch(self) -> Scratch:
        try:
            return self._pool.pop()
        except IndexError:
            slots = [np.empty(BLOCK_ROWS, dtype) for dtype in self._dtypes]
            return Scratch(slots, list(self._constants), [None] * len(self._constants))


def _compute(ins: _Instruction, values: list[Any], valids: list[Valid], out: Array) -> Valid:
    args = tuple([values[arg] for arg in ins.args])
    if ins.validity is not None:
        return ins.validity(args, tuple([valids[arg] for arg in ins.args]), out)
    assert ins.kernel is not None
    ins.kernel(args, out)
    valid = None
    for arg in ins.args:
        if valids[arg] is not None:
            valid = both(valid, valids[arg])
    return valid


def _deliver(
    ins: _Instruction, sinks: Sequence[Sink], values: Array, valid: Valid, start: int, stop: int
) -> None:
    for number, output in enumerate(ins.outputs):
        if number:
            sinks[output].values[start:stop] = values
        sinks[output].validity(start, stop, valid)


def _assemble(
    ops: Sequence[Op], roots: Sequence[Op], inputs: Sequence[Op]
) -> tuple[tuple[_Instruction, ...], list[np.dtype[Any]]]:
    """Gives every operation but outputs a scratch array that no other operation uses while its values are needed."""
    place = {op.number: index for index, op in enumerate(ops)}
    last_use = {arg.number: index for index, op in enumerate(ops) for arg in op.args}
    column = {op.number: index for index, op in enumerate(inputs)}
    outputs: dict[int, list[int]] = {}
    for index, root in enumerate(roots):
        outputs.setdefault(root.number, []).append(index)
    free: dict[np.dtype[Any], list[int]] = {}
    slots: dict[int, int] = {}
    dtypes: list[np.dtype[Any]] = []
    code = []
    for index, op in enumerate(ops):
        if op.kernel == CONSTANT:
            continue
        known = op.kernel == INPUT or op.kernel in KERNELS or op.kernel in VALIDITY
        assert known, f"numpy_kernels has no kernel {op.kernel!r}, which a rule of lowering names"
        if op.number not in outputs:
            if not free.get(op.dtype):
                free[op.dtype] = [len(dtypes)]
                dtypes.append(op.dtype)
            slots[op.number] = free[op.dtype].pop()
        code.append(
            _Instruction(
                index,
                tuple([place[arg.number] for arg in op.args]),
                slots.get(op.number, -1),
                tuple(outputs.get(op.number, ())),
                column.get(op.number, -1),
                KERNELS.get(op.kernel),
                VALIDITY.get(op.kernel),
            )
        )
        for arg in {arg.number: arg for arg in op.args}.values():
            if last_use[arg.number] == index and arg.number in slots:
                free.setdefault(arg.dtype, []).append(slots[arg.number])
    return tuple(code), dtypes
