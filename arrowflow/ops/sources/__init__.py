"""Sources: where the rows of a pipeline come from."""
