"""The files of caches: entries, chunks, claims and upkeep."""
