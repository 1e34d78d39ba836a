"""Loaders: how the batches of a pipeline become what a framework trains on.

One module per framework holds its export kernel and its type mapping; `mapping` is what they share.
"""
