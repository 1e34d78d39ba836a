"""Operators on whole rows: which of them pass, how often, and with which number."""
