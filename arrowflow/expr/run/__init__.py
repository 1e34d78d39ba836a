"""The run of a compiled program over a batch."""
