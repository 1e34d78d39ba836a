"""Arrow IPC files."""
