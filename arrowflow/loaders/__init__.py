"""Loaders: they turn the batches of a pipeline into the arrays that a framework trains on.

One module per framework holds its export kernel and its type mapping; `interchange` holds the parts that they share.
"""
