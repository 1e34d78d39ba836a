"""The workers of a run, and the cores that they may use."""
