"""Operators on columns, which run as one fused program."""
