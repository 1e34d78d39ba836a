"""What people use in place of arrowflow: one module a library, written as its own documentation recommends.

Each module runs in an environment of its own, with the versions in `environments.py`, as `python -m
benchmarks.peers.duckdb stream`. It has a function for each workload that the library can do; `compare` starts them in
turns. The rows come from the modules that own a workload, such as `benchmarks.stream`. A name such as
`stream:fragments` is a variant; the best of a library's variants counts.
"""
