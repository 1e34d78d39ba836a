"""A compiled program, run over a batch."""
