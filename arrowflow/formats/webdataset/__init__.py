"""Tar shards whose members make rows."""
