"""Sources that read files."""
