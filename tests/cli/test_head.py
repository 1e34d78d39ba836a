from __future__ import annotations

import base64
import datetime
import json
import math
from pathlib import Path

import polars as pl
import pytest

from tests.cli.conftest import Run

pytestmark = pytest.mark.any_version

FRAME = pl.DataFrame(
    {
        "price": [1.5, None, -2.25, 4.0],
        "name": ["a", "b", "ab", None],
        "day": [datetime.date(2024, 1, 1 + number) for number in range(4)],
        "image": [b"\x00\xff", b"", None, b"xyz"],
    }
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.parquet"
    FRAME.write_parquet(path)
    return path


@pytest.mark.parametrize(
    "where",
    [
        "price > 1",
        "price >= 0.5",
        "price = 1.5",
        "price * 1.5 - 0.5 > 1",
        "name IN ('a', 'b') AND day < DATE '2024-01-02'",
        "price IS NULL OR name LIKE '%b'",
    ],
)
def test_where_means_what_sql_means(where: str, file: Path, run: Run) -> None:
    lines = run("head", file, "--where", where, "--columns", "name, price", "--json").stdout.splitlines()
    wanted = pl.SQLContext(rows=FRAME).execute(f"SELECT name, price FROM rows WHERE {where}").collect()
    assert [json.loads(line) for line in lines] == wanted.to_dicts()


@pytest.mark.parametrize("text", ["", " , "])
def test_columns_name_a_column(text: str, file: Path, run: Run) -> None:
    """As where a variable of the shell is not set."""
    assert "--columns names no column" in run("head", file, "--columns", text, code=2).stderr


def test_names_with_commas_stand_in_quotes(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "rows.parquet"
    pl.DataFrame({"a": [1], "b, c": [2], "d": [3]}).write_parquet(file)
    for text, names in (
        ('d, "b, c"', ("d", "b, c")),
        (' "b, c" ,a', ("b, c", "a")),
        ('"d",, a ,', ("d", "a")),
    ):
        found = json.loads(run("head", file, "--json", "--columns", text).stdout)
        assert list(found) == list(names)
    pl.DataFrame({"": [1], " x\n": [2], 'q"': [3]}).write_parquet(file)
    found = json.loads(run("head", file, "--json", "--columns", '"q""", " x\n", ""').stdout)
    assert found == {'q"': 3, " x\n": 2, "": 1}


def test_advice_for_readers_says_that_it_is_of_python(tmp_path: Path, run: Run) -> None:
    for number, names in enumerate(("ab", "a")):
        pl.DataFrame({name: [1] for name in names}).write_parquet(tmp_path / f"{number}.parquet")
    error = run("head", tmp_path, code=1).stderr
    assert "missing_columns='null'" in error
    assert error.endswith("missing_columns= is an argument of the readers in Python, no option here\n")
    (tmp_path / "schema=1").mkdir()
    (tmp_path / "schema=1" / "a.parquet").write_bytes(b"damaged")
    for path in (tmp_path / "none.parquet", tmp_path / "schema=1"):
        assert "Python" not in run("head", path, code=1).stderr


def test_json_has_dates_and_bytes_as_texts(file: Path, run: Run) -> None:
    first, second = map(json.loads, run("head", file, "-n", 2, "--json").stdout.splitlines())
    assert first["day"] == "2024-01-01"
    assert base64.b64decode(first["image"]) == b"\x00\xff"
    assert second["price"] is None


def test_json_has_no_nan(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "rows.parquet"
    pl.DataFrame({"x": [math.nan, 1.5], "y": [[math.inf, None], [-math.inf]]}).write_parquet(file)
    lines = run("head", file, "--json").stdout.splitlines()
    found = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert found == [{"x": "NaN", "y": ["Infinity", None]}, {"x": 1.5, "y": ["-Infinity"]}]


def test_a_table_has_the_first_rows(file: Path, run: Run) -> None:
    lines = run("head", file, "-n", 3).stdout.splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["1.5", "a", "2024-01-01", "2", "bytes"],
        ["null", "b", "2024-01-02", "0", "bytes"],
        ["-2.25", "ab", "2024-01-03", "null"],
    ]
    assert run("head", file, "--where", "price > 100").stdout == "no rows\n"


def test_many_columns_become_lines(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "wide.parquet"
    pl.DataFrame({f"column {number}": range(20) for number in range(40)}).write_parquet(file)
    lines = run("head", file, "-n", 20).stdout.splitlines()
    assert lines[2].split()[:5] == ["column", "0", "0", "1", "2"]
    assert len(lines) == 2 + 40 + 1 and lines[-1].startswith("15 more rows")


@pytest.mark.parametrize("where", ["price >", "pric > 3", "price > AVG(price)"])
def test_other_expressions_are_refused(where: str, file: Path, run: Run) -> None:
    assert run("head", file, "--where", where, code=2).stderr.startswith("arrowflow: ")


def test_codes_of_a_terminal_are_shown_and_not_sent(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "codes.parquet"
    pl.DataFrame({"\x1b[31mred": ["[bold]\x1b[2J"]}).write_parquet(file)
    text = run("head", file).stdout
    assert "\x1b" not in text and "\\x1b[31mred" in text and "[bold]\\x1b[2J" in text
