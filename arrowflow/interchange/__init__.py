"""Between Arrow and NumPy: one mapping of types, in both directions, without pandas and without a copy where possible.

Used by operators that hand arrays to user functions and by loaders.
"""
