"""Operators that keep what their input yields."""
