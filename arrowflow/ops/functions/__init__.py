"""Operators that call user functions."""
