"""The protocol between operators and the executor: items, positions, the kinds of kernel, and what operators share.

**Positions.** Every chunk travels with the state from which its producer would make the *next* chunk. A
position is a nested tuple of JSON values; None is the start. A kernel with several parts of its own names them in a
`NamedTuple`. A kernel that passes rows on one to one passes the position on. A kernel that keeps rows back emits the
position before its oldest row, the rows from there on that are gone (`Held.mark` computes both), and its own counters.
The state of an iterator is the position of the last batch that it delivered; so readahead needs no care at all.

**Kernels know nothing of threads.** The executor calls them as written at each method; a kernel is made anew
for each stream, that is for each pass over a sub-plan.

| kind | order of calls | example |
|---|---|---|
| `SourceKernel` | `tasks` once, then `read` per task, several tasks at once | range, footers of files |
| `ReaderKernel` | `read` per item, several items at once | row groups |
| `StatelessKernel` | `apply` per chunk, several chunks at once | filter, gather of a shuffle window |
| `SerialKernel` | `open`, then `push` per item in order, then `finish`; one call at a time | batch, take |
| `BoundaryKernel` | like a serial kernel, but it opens and pulls streams of its own | repeat |
"""
