"""Operators that keep the rows of their input."""
