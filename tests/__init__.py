"""Tests, as a package, so that `tests.cluster` is one."""
