"""The protocol between operators and the executor: items, positions, the kinds of kernel, and what operators share.

**Positions.** Every chunk travels with the state from which its producer would make the *next* chunk. A
position is a nested tuple of JSON values; None is the start. A kernel with several parts of its own names them in a
`NamedTuple`, by which `KernelSpec.position` has states checked. A kernel that passes rows on one to one passes the
position on. A kernel that keeps rows back emits three things: the position before its oldest row, the rows from there on that are gone, and its own counters. `Held.mark`
computes the first two. The state of an iterator is the position of its last delivered batch. So readahead needs no
care at all.

**Kernels know nothing of threads.** The docstring of each method says how the executor calls it. Each stream, that is
each pass over a sub-plan, has new kernels.

| kind | order of calls | example |
|---|---|---|
| `SourceKernel` | `tasks` once, then `read` per task, several tasks at once | range, footers of files |
| `ReaderKernel` | `read` per item, several items at once | row groups |
| `StatelessKernel` | `apply` per chunk, several chunks at once | filter, gather of a shuffle window |
| `SerialKernel` | `open`, then `push` per item in order, then `finish`; one call at a time | batch, take |
| `BoundaryKernel` | like a serial kernel, but it opens and pulls streams of its own | repeat |
"""
