"""The command line in this process, and data for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

testing = pytest.importorskip("typer.testing")
pytest.importorskip("rich")

Run = Callable[..., Any]


@pytest.fixture
def run() -> Run:
    """Runs a command; returns its result with `output`, `stderr` and `exit_code`."""
    from arrowflow_cli.app import app

    def run(*arguments: object, code: int = 0, **options: Any) -> Any:
        result = testing.CliRunner().invoke(app, [str(each) for each in arguments], **options)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return run


@pytest.fixture
def answer(run: Run) -> Run:
    """Runs a command with `--json`; returns its value."""

    def answer(*arguments: object, code: int = 0) -> Any:
        return json.loads(run(*arguments, "--json", code=code).stdout)

    return answer
