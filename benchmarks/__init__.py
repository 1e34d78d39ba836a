"""Benchmarks of arrowflow: one module per bar, run by `make bench` or `python -m benchmarks.<name>`."""
