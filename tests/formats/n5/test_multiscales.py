"""Pyramids of N5 get the description of OME-NGFF, for each kind of writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refshard_fs import RefShardFileSystem
from refshard_fs.formats.n5.multiscales import describe_pyramid

SIZES = [[8, 6, 4], [4, 3, 4]]
FACTORS = [[1, 1, 1], [2, 2, 1]]
DATASETS: dict[str, dict[str, Any]] = {f"s{n}": {"dimensions": size} for n, size in enumerate(SIZES)}


def make_cosem_transform(scale: float) -> dict[str, Any]:
    start = scale / 2 - 2
    return {"axes": ["z", "y", "x"], "units": ["nm"] * 3, "scale": [40.0, scale, scale], "translate": [0, start, start]}


ATTRIBUTES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "n5-viewer": (
        {"pixelResolution": {"dimensions": [4, 4, 40], "unit": "nm"}, "downsamplingFactors": FACTORS},
        [{}, {}],
    ),
    "bdv": ({}, [{"pixelResolution": {"dimensions": [4, 4, 40], "unit": "nm"}}, {"downsamplingFactors": FACTORS[1]}]),
    "paintera": (
        {"multiScale": True, "resolution": [4, 4, 40]},
        [{"resolution": [4, 4, 40]}, {"downsamplingFactors": [2, 2, 1]}],
    ),
    "cosem": ({}, [{"transform": make_cosem_transform(4.0)}, {"transform": make_cosem_transform(8.0)}]),
    "cosem's group": (
        {
            "multiscales": [
                {"datasets": [{"path": f"s{n}", "transform": make_cosem_transform(4.0 * (n + 1))} for n in range(2)]}
            ]
        },
        [{}, {}],
    ),
}


@pytest.mark.parametrize("writer", ATTRIBUTES)
def test_attributes_of_each_writer_describe_the_same_pyramid(writer: str) -> None:
    group, levels = ATTRIBUTES[writer]
    datasets = {name: {**DATASETS[name], **level} for name, level in zip(DATASETS, levels, strict=True)}
    (multiscale,) = describe_pyramid("em", group, datasets)
    assert (multiscale["version"], multiscale["name"]) == ("0.4", "em")
    assert multiscale["axes"] == [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
    full, half = (
        {key: value for key, value in level.items() if key != "transform"} for level in multiscale["datasets"]
    )
    assert full == {"path": "s0", "coordinateTransformations": [{"type": "scale", "scale": [40.0, 4.0, 4.0]}]}
    assert half["coordinateTransformations"] == [
        {"type": "scale", "scale": [40.0, 8.0, 8.0]},
        {"type": "translation", "translation": [0.0, 2.0, 2.0]},
    ]


@pytest.mark.parametrize(
    ("group", "levels"),
    [
        ({}, DATASETS),  # there are no factors
        ({"scales": FACTORS}, {"raw": DATASETS["s0"]}),
        ({"scales": [[1, 1], [2, "2"]]}, DATASETS),
        ({"multiscales": [{"version": "0.4", "axes": []}], "scales": FACTORS}, DATASETS),
        ({"scales": [[1] * 4]}, {"s0": {"dimensions": [4] * 4}}),  # the names of four axes are unknown
    ],
)
def test_groups_that_are_not_pyramids_get_no_multiscales(group: dict[str, Any], levels: dict[str, Any]) -> None:
    assert describe_pyramid("em", group, levels) is None


def test_group_has_multiscales_metadata(tmp_path: Path) -> None:
    layout = {"blockSize": [4, 4, 4], "dataType": "uint8", "compression": {"type": "raw"}}
    documents: dict[str, dict[str, Any]] = {"": {"n5": "2.5.0"}, "em": {"scales": FACTORS}}
    documents |= {f"em/{name}": {**layout, **doc} for name, doc in DATASETS.items()}
    for path, doc in documents.items():
        (tmp_path / path).mkdir(exist_ok=True)
        (tmp_path / path / "attributes.json").write_text(json.dumps(doc))
    attributes = json.loads(RefShardFileSystem(str(tmp_path)).cat_file("em/.zattrs"))
    assert attributes["scales"] == FACTORS
    assert [level["path"] for level in attributes["multiscales"][0]["datasets"]] == ["s0", "s1"]
