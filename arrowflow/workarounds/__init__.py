"""Workarounds for mistakes of other libraries."""
