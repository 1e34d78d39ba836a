"""What loaders of all frameworks share."""

from __future__ import annotations

import pyarrow as pa
import pytest

import arrowflow as af


@pytest.mark.parametrize("batched", [True, False])
def test_an_error_of_the_export_names_the_loader(*, batched: bool) -> None:
    dataset = af.from_arrow(pa.table({"x": pa.array([1, None, 3])}))
    with pytest.raises(af.DataError, match=r"to_numpy: .*'x'.*fill_null") as caught:
        list((dataset.batch(2) if batched else dataset).to_numpy())
    assert caught.value.operator == "to_numpy"
