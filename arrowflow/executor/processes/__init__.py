"""Worker processes, for functions that hold the interpreter lock."""
