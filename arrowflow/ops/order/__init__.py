"""Operators that change the order of rows."""
