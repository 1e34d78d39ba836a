"""WHAT a pipeline does: immutable, picklable nodes. Nothing in here reads data or starts a thread."""
