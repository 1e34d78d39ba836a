"""An expression as a user wrote it becomes one checked tree."""
