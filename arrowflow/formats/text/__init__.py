"""CSV and JSON files."""
