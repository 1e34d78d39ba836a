"""Caches on disk, and the files to which a cache in memory moves chunks."""
