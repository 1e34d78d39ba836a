"""Types that nobody declares, and values that are no JSON: the rows that were written, or those that `json` takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from tests.effort import scaled
from tests.fuzz.test_text_files import BLOCKS, SHAPES, VALUES
from tests.fuzz.watch import kinds

CELLS: Final[dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]]] = {
    "int": (pa.int64(), st.integers(-(2**53), 2**53)),
    "float": (pa.float64(), st.integers(-999, 999).map(lambda value: value / 4 + 0.125)),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.sampled_from(["a", "b c", "é", "x,y", 'q"q', "l\nl"])),
}


def written(value: Any, null: str, decimal: str) -> str:
    if value is None:
        return null
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).replace(".", decimal)
    text = str(value)
    return '"' + text.replace('"', '""') + '"' if any(each in text for each in ',;"\n') else text


def check_resumes(ds: af.Dataset, expected: Sequence[dict[str, Any]]) -> None:
    """Asserts that the rows are those, and that the rest is the same from each state on."""
    states = []
    with iter(ds.batch(2)) as batches:
        found = []
        for batch in batches:
            found += batch.to_pylist()
            states.append((len(found), batches.state_dict()))
    assert found == expected
    for rows, state in states:
        with iter(ds.batch(2)) as batches:
            batches.load_state_dict(state)
            assert [row for batch in batches for row in batch.to_pylist()] == expected[rows:]


@settings(max_examples=scaled(150))
@given(data=st.data(), block_bytes=BLOCKS)
def test_types_of_csv(tmp_path_factory: pytest.TempPathFactory, data: Any, block_bytes: int) -> None:
    named = data.draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=2, max_size=4))
    null, other = data.draw(st.sampled_from([("", ()), ("NA", ("NA",)), ("NA", ("", "NA"))]))
    decimal, delimiter = data.draw(st.sampled_from([(".", ","), (".", ";"), (",", ";")]))
    cells = st.tuples(*(CELLS[kind][1] | st.none() for kind in named))
    rows = data.draw(st.lists(cells, min_size=1, max_size=8))
    first = tuple(data.draw(CELLS[kind][1]) for kind in named)  # so that each column has a value
    lines = [delimiter.join(f"c{number}" for number in range(len(named)))]
    lines += [delimiter.join(written(value, null, decimal) for value in row) for row in (first, *rows)]
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    options: dict[str, Any] = {"null_values": other} if other else {}
    ds = af.read_csv(path, delimiter=delimiter, decimal_point=decimal, block_bytes=block_bytes, **options)
    assert ds.schema.types == [CELLS[kind][0] for kind in named]
    expected = [{f"c{number}": value for number, value in enumerate(row)} for row in (first, *rows)]
    check_resumes(ds, expected)
    column = data.draw(st.sampled_from(sorted(expected[0])))
    assert ds.select(column).to_table().to_pylist() == [{column: row[column]} for row in expected]
    kinds["csv whose types are inferred"] += 1


NULLS: Final = st.lists(st.none(), max_size=3)


@settings(max_examples=scaled(150))
@given(data=st.data(), shape=st.sampled_from(sorted(SHAPES)), block_bytes=BLOCKS)
def test_types_of_json(
    tmp_path_factory: pytest.TempPathFactory, data: Any, shape: str, block_bytes: int
) -> None:
    values = VALUES | {"nulls": NULLS, "lists of nulls": st.lists(NULLS, max_size=2)}
    keys = data.draw(st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=4, unique=True))
    some = st.fixed_dictionaries({}, optional={key: values[key] | st.none() for key in keys})
    rows = [data.draw(st.fixed_dictionaries({key: values[key] for key in keys}))]
    rows += data.draw(st.lists(some, max_size=6))
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_text(SHAPES[shape](rows), encoding="utf-8")
    expected = [{name: row.get(name) for name in keys} for row in rows]
    ds = af.read_json(path, block_bytes=block_bytes).select(*keys)
    ds.to_table().validate(full=True)
    check_resumes(ds, expected)
    kinds["json whose types are inferred"] += 1


@settings(max_examples=scaled(200))
@given(data=st.data(), block_bytes=BLOCKS)
def test_values_that_are_no_json(
    tmp_path_factory: pytest.TempPathFactory, data: Any, block_bytes: int
) -> None:
    """One letter of some values is another one, or gone."""
    kind = st.sampled_from(sorted(VALUES)).flatmap(lambda name: VALUES[name])
    texts = []
    for value in data.draw(st.lists(kind, min_size=1, max_size=5)):
        text = json.dumps(value, ensure_ascii=False)
        if data.draw(st.booleans()):
            place = data.draw(st.integers(0, len(text) - 1))
            text = text[:place] + data.draw(st.sampled_from(["", *'"\\{}[],:1xN '])) + text[place + 1 :]
        texts.append(text)
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    path.write_text("".join(f'{{"any": {text}}}\n' for text in texts), encoding="utf-8")
    ds = af.read_json(path, schema={"any": pa.string()}, on_error="skip", block_bytes=block_bytes)
    found = ds.to_table()["any"].to_pylist()
    good = [line["any"] for line in map(loaded, texts) if line is not None]
    assert len(found) == len(good), texts
    for text, value in zip(found, good, strict=True):
        is_text = isinstance(value, str) or value is None
        assert text == value if is_text else json.loads(text, strict=False) == value, texts
    kinds["json of values that are none"] += len(texts) - len(good)


def loaded(text: str) -> Any:
    """Returns the object of a line with this value; None if it is no JSON."""
    try:
        return json.loads(f'{{"any": {text}}}', strict=False)
    except ValueError:
        return None
