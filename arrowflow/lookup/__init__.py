"""Keys of rows, and the row of each key in a table."""
