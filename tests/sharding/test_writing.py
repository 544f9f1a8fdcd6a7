"""If a program writes metadata through the view, shape and attributes change, and the array stays sharded."""

from __future__ import annotations

from typing import Any

import pytest

from refshard_fs.errors import ManifestError
from refshard_fs.sharding.known_shard_formats import unshard_metadata
from refshard_fs.sharding.writing import update_stored_metadata
from tests.support.shard_codecs import CRC, LITTLE, make_sharding, make_version_2, make_version_3

TRANSPOSE = {"name": "transpose", "configuration": {"order": "F"}}
STORED = {
    "sharded": make_version_3((6, 8), (4, 4), [make_sharding([2, 2])]),
    "nested": make_version_3((6, 8), (8, 8), [make_sharding([4, 4], [make_sharding([2, 2], ["bytes", "gzip"])]), CRC]),
    "transposed": make_version_3((6, 8), (4, 4), [TRANSPOSE, make_sharding([2, 2])]),
    "prototype": make_version_2((6, 8), (2, 2), (2, 2), compressor={"id": "zlib", "level": 1}),
    "transformed": {
        **make_version_3((6, 8), (2, 2), [LITTLE]),
        "storage_transformers": [{"type": "indexed", "configuration": {"chunks_per_shard": [2, 2]}}],
    },
}


def shown(doc: dict[str, Any]) -> dict[str, Any]:
    found = unshard_metadata(doc, {})
    assert found is not None
    assert found.layout is not None
    return dict(found.document)


@pytest.mark.parametrize("name", STORED)
def test_shown_metadata_is_stored_with_its_sharding(name: str) -> None:
    assert update_stored_metadata(STORED[name], shown(STORED[name]), {}) == STORED[name]


@pytest.mark.parametrize("name", STORED)
def test_changed_shape_fill_value_and_attributes_are_stored(name: str) -> None:
    changed = {"shape": [60, 9], "fill_value": 5, "attributes": {"a": 1}}
    assert update_stored_metadata(STORED[name], {**shown(STORED[name]), **changed}, {}) == {**STORED[name], **changed}


def test_metadata_with_explicit_defaults_keep_the_sharding() -> None:
    codecs = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "gzip", "configuration": {"level": 5}},
    ]
    written = {**shown(STORED["nested"]), "codecs": codecs, "storage_transformers": []}
    found = update_stored_metadata(STORED["nested"], written, {})
    assert found is not None
    assert found["codecs"] == STORED["nested"]["codecs"]
    spelled = [{"name": "transpose", "configuration": {"order": [1, 0]}}, LITTLE]
    assert (
        update_stored_metadata(STORED["transposed"], {**shown(STORED["transposed"]), "codecs": spelled}, {}) is not None
    )


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("sharded", {"data_type": "int16"}),
        ("sharded", {"codecs": [LITTLE, {"name": "gzip", "configuration": {"level": 1}}]}),
        ("sharded", {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3, 3]}}}),
        ("sharded", {"chunk_key_encoding": {"name": "v2"}}),
        ("sharded", {"codecs": [make_sharding([1, 1])]}),
        ("transposed", {"codecs": [{"name": "transpose", "configuration": {"order": [0, 1]}}, LITTLE]}),
        ("prototype", {"dtype": "<i2"}),
        ("prototype", {"compressor": None}),
        ("prototype", {"chunks": [3, 3]}),
        ("prototype", {"order": "F"}),
        ("prototype", {"dimension_separator": "/"}),
    ],
)
def test_other_chunks_codecs_or_dtypes_drop_the_sharding(name: str, changed: dict[str, Any]) -> None:
    assert update_stored_metadata(STORED[name], {**shown(STORED[name]), **changed}, {}) is None


def test_ordinary_array_stays_unsharded() -> None:
    plain = make_version_3((6, 8), (2, 2), [LITTLE])
    assert update_stored_metadata(plain, plain, {}) is None


def test_rectilinear_shards_do_not_grow() -> None:
    shapes = {"kind": "inline", "chunk_shapes": [[4, 2], [4, 4]]}
    doc = {**STORED["sharded"], "chunk_grid": {"name": "rectilinear", "configuration": shapes}}
    assert update_stored_metadata(doc, {**shown(doc), "attributes": {"a": 1}}, {}) == {**doc, "attributes": {"a": 1}}
    with pytest.raises(
        ManifestError, match=r"shape \[7, 8\] does not fit into its shards: .* cover 6 elements: expected at least 7"
    ):
        update_stored_metadata(doc, {**shown(doc), "shape": [7, 8]}, {})
