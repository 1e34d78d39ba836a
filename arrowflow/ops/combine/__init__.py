"""Operators that make one dataset of several."""
