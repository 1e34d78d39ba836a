"""The commands, their arguments and their exit codes. A command imports the library when it runs."""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

FAILED: Final = 1
"""The exit code of a command that failed, or that has found something."""
USAGE: Final = 2
"""The exit code where the arguments make no sense."""

app = typer.Typer(
    name="arrowflow",
    help="Looks at data and pipelines, and lays data out for fast reading.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help in boxes takes 0.55 s in place of 0.2: Rich's Markdown is imported
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH", help="Files, folders, globs or URLs, as the readers take them."),
]
Format = Annotated[
    str | None, typer.Option(help="The format of the files, such as parquet. Default: by their endings.")
]
_NAME: Final = re.compile(r'\s*("(?:[^"]|"")*")\s*(?=,|$)|([^,]+)', re.DOTALL)
AsJson = Annotated[bool, typer.Option("--json", help="Writes JSON, for scripts.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(importlib.import_module("arrowflow").__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Shows the version.")
    ] = False,
) -> None:
    """Takes the options that stand before a command."""


def _names(text: str) -> list[str]:
    """Returns names with commas between them; one that has a comma or blanks itself stands in double quotes."""
    found = []
    for quoted, plain in _NAME.findall(text):
        if quoted:
            found.append(quoted[1:-1].replace('""', '"'))
        elif plain.strip():
            found.append(plain.strip())
    return found


@app.command()
def inspect(paths: Paths, format: Format = None, as_json: AsJson = False) -> None:
    """Shows columns, rows, files, row groups and their sizes.

    Of each column it tells type, codec, encodings and bounds. It reads footers alone. Only text formats are read through,
    to count their rows.
    """
    _run("inspect", paths=paths, format=format, as_json=as_json)


@app.command()
def head(
    paths: Paths,
    rows: Annotated[int, typer.Option("-n", "--rows", min=1, help="The number of rows.")] = 10,
    columns: Annotated[
        str | None,
        typer.Option(help="Names of the columns to show, with commas between them, such as 'a,\"b, c\"'."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="The rows to show, such as \"price > 3 AND name LIKE 'a%'\"."),
    ] = None,
    format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Shows rows as a table; with --json one row a line."""
    names = None if columns is None else _names(columns)
    _run("head", paths=paths, rows=rows, columns=names, where=where, format=format, as_json=as_json)


@app.command()
def bench(
    target: Annotated[str, typer.Argument(metavar="MODULE:DATASET", help="Such as train:dataset.")],
    seconds: Annotated[float, typer.Option(min=0.1, help="The time to run.")] = 10.0,
    live: Annotated[bool, typer.Option("--live", help="Shows the report while it runs.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Says each tuned value, and why it is what it is.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Writes the report of one more epoch, an HTML page with a timeline."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measures how fast a pipeline delivers, and says what limits it.

    DATASET is a dataset, a loader, or a function that returns one. Nothing is done with the batches.
    """
    _run("bench", target, seconds=seconds, live=live, verbose=verbose, report=report, as_json=as_json)


@app.command()
def doctor(paths: Paths, format: Format = None, as_json: AsJson = False) -> None:
    """Finds layout that costs speed, and names the cure.

    It tries the cure on a sample. PATH may also be module:dataset; then the columns count that its plan reads. Ends with 1
    if there is a finding.
    """
    _run("doctor", paths, format=format, as_json=as_json)


@app.command()
def rewrite(
    sources: Annotated[list[str], typer.Argument(metavar="SRC…", help="Files, folders, globs or URLs.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="The new folder, or its URL.")],
    to: Annotated[str, typer.Option(help="parquet, ipc, csv or json.")] = "parquet",
    group_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows of a row group or record batch. Default: as the writers.")
    ] = None,
    shard_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows of a file. Default: as many as take some 256 MiB.")
    ] = None,
    compression: Annotated[
        str | None, typer.Option(help="zstd, snappy, lz4, … or none. Default: as the writers.")
    ] = None,
    sort: Annotated[str, typer.Option(help="Columns to sort by; needs all rows in memory.")] = "",
    fixed: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN:SIZE", help="A column whose lists become fixed-size. May be repeated."),
    ] = None,
    partition_by: Annotated[
        str, typer.Option(help="Columns whose values name folders, such as year=2024 (Parquet alone).")
    ] = "",
    format: Format = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replaces a dataset that is at DST, once all rows are written."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Lays data out anew: row groups, files, codec, order, partitions.

    DST appears whole, once all rows are written. Stopped before, the same command goes on behind the last whole file; a remote
    or partitioned DST begins anew.
    """
    _run(
        "rewrite",
        sources,
        target,
        to=to,
        group_rows=group_rows,
        shard_rows=shard_rows,
        compression=compression,
        sort=_names(sort),
        fixed=fixed or [],
        partition_by=_names(partition_by),
        format=format,
        overwrite=overwrite,
        as_json=as_json,
    )


state = typer.Typer(help="Looks at saved states.", no_args_is_help=True)
app.add_typer(state, name="state")


@state.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON of what state_dict() returned.")],
    as_json: AsJson = False,
) -> None:
    """Shows where a state goes on, and to which pipeline it belongs."""
    _run("states", file, as_json=as_json)


cache = typer.Typer(help="Lists and removes entries in folders of cache(path).", no_args_is_help=True)
app.add_typer(cache, name="cache")
CacheFolder = Annotated[str, typer.Argument(metavar="PATH", help="The folder that cache(path) names.")]


@cache.command("ls")
def list_entries(path: CacheFolder, as_json: AsJson = False) -> None:
    """Lists the entries, the least recently used first."""
    _run("caches", "ls", path, as_json=as_json)


@cache.command("info")
def describe_entries(
    path: CacheFolder,
    fingerprint: Annotated[str, typer.Argument(help="The beginning of an entry's name.")] = "",
    as_json: AsJson = False,
) -> None:
    """Describes entries, with the plans that they belong to."""
    _run("caches", "info", path, fingerprint=fingerprint, as_json=as_json)


@cache.command("clear")
def clear_entries(
    path: CacheFolder,
    older_than: Annotated[
        str | None, typer.Option(help="Entries last used longer ago than this, such as 7d.")
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(help="The least recently used, until the rest takes this size, such as 10GiB."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Asks nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Removes entries: all of them, or those that an option names. Entries that are being computed stay."""
    if older_than is None and max_bytes is None and not yes:
        typer.confirm(f"Remove all entries in {path}?", abort=True, err=True)
    _run("caches", "clear", path, older_than=older_than, max_bytes=max_bytes, as_json=as_json)


def _run(command: str, *arguments: Any, **options: Any) -> None:
    """Runs a command; its errors become one line, and an exit code."""
    errors = importlib.import_module("arrowflow.errors")
    if sys.stdout is None:  # closed by the caller
        sys.stdout = io.StringIO()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # not every terminal has all letters
    try:
        found = importlib.import_module(f"arrowflow.cli.{command}").run(*arguments, **options)
        sys.stdout.flush()
    except errors.ArrowflowError as error:
        hint = _of_python(str(error.args[0])) if command in ("inspect", "head", "doctor", "rewrite") else ""
        _fail(f"{error}{hint}", USAGE if isinstance(error, errors.PlanError) else FAILED)
    except OSError as error:
        with suppress(OSError):  # what waits to be written is lost, too
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has enough
            raise typer.Exit(FAILED) from None
        _fail(error, FAILED)
    if found:
        raise typer.Exit(FAILED)


def _of_python(text: str) -> str:
    """Returns what to say of advice that names an argument of the readers."""
    readers = importlib.import_module("arrowflow.sources.readers")
    names = {**readers.CsvArguments.__annotations__, **readers.LineArguments.__annotations__}
    told = re.search(rf"(?<![/\w])({'|'.join(names)})=", text)
    return f"; {told[0]} is an argument of the readers in Python, no option here" if told else ""


def _fail(error: Exception | str, code: int) -> NoReturn:
    typer.echo(f"arrowflow: {error}", err=True)
    raise typer.Exit(code) from None
