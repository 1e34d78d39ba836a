"""Operators on whole rows: which rows pass, how often, and with which number."""
