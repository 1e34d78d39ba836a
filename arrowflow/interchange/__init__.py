"""Arrow and NumPy: one mapping of types, in both directions, without pandas and without a copy where possible.

Operators that hand arrays to user functions use it, and so do loaders.
"""
