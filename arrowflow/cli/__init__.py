"""The commands of `arrowflow` and `python -m arrowflow`: a module each, with a function `run`.

`run` takes the command's arguments, writes to the standard output, and returns whether it has found something that a
script should stop at. Their arguments are declared in `arrowflow_cli.app`.
"""
