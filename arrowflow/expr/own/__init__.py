"""Functions of this library's own in expressions of Polars."""
