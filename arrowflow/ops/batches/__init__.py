"""Operators that make batches."""
