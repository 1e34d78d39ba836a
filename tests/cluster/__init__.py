"""A package, so that its tests may share a cluster, which ends with them."""
