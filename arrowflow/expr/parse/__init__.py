"""From an expression as a user wrote it to one checked tree."""
