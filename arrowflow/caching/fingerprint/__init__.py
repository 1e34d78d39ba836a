"""The names of cache entries: digests of plans, data and code."""
