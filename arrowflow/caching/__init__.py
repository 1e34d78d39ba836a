"""Caches on disk, and what a cache in memory moves there."""
