"""`python -m arrowflow`: the command line."""

from arrowflow_cli import main

if __name__ == "__main__":
    main()
