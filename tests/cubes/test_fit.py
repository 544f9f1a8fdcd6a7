"""Compare an array of a piece with the shown array, and decide how its chunks become shown chunks."""

from __future__ import annotations

from typing import Any

import pytest

from refshard_fs import ManifestError
from refshard_fs.core.zarrmeta import array_meta
from refshard_fs.cubes.fit import ArrayFacts, fit
from refshard_fs.cubes.recutting import Recut

BASE = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<i2", "order": "C", "fill_value": 0}
BASE |= {"filters": None, "compressor": None}


def make_facts(name: str, attributes: dict[str, Any] | None = None, **changed: Any) -> ArrayFacts:
    meta = array_meta(BASE | changed, name)
    assert meta is not None
    return ArrayFacts(name, meta, attributes or {})


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        ({}, True),
        ({"shape": [6]}, True),
        ({"dimension_separator": "/"}, True),
        ({"attributes": {"long_name": "x"}}, True),
        ({"dtype": ">i2"}, False),
        ({"compressor": {"id": "zlib", "level": 1}}, False),
        ({"attributes": {"scale_factor": 0.5}}, False),
    ],
)
def test_fit_recodes_only_arrays_whose_encoding_differs(changed: dict[str, Any], is_same: bool) -> None:
    found = fit("a", make_facts("one"), make_facts("other", **changed))
    assert found.is_same == is_same
    assert (found.recoding is None) == is_same


@pytest.mark.parametrize(
    ("changed", "field"),
    [({"chunks": [1]}, "chunks"), ({"attributes": {"units": "K"}}, "units"), ({"dtype": "<i4"}, "i4")],
)
def test_fit_refuses_arrays_that_cannot_be_recoded(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(ManifestError, match=field) as caught:
        fit("a", make_facts("one"), make_facts("other", **changed))
    assert "one" in str(caught.value)
    assert "other" in str(caught.value)


def test_fit_recuts_chunks_of_another_shape() -> None:
    shown = make_facts("one")
    recut = Recut.of(shown.meta, [8], (4,), "a")
    found = fit("a", shown, make_facts("other", chunks=[3]), recut)
    assert found.source is not None
    assert not found.is_same
