"""Images of a group share dimensions of the same length, and are described as levels of pyramids."""

from __future__ import annotations

import numpy as np

from refshard_fs.core.array_group import ArrayDescription, SingleChunk
from refshard_fs.core.rasters import RasterGroupBuilder


def test_dimensions_and_scales_of_overviews_follow_their_shapes() -> None:
    group = RasterGroupBuilder("x")
    for name, shape in (("0", (4, 6)), ("1", (2, 3)), ("2", (2, 6))):
        names = [*group.name_dimensions(name, ("y", "x"), shape).values()]
        group.add(name, ArrayDescription(name, shape, shape, np.dtype("u1"), names), SingleChunk(bytes(24)))
    assert [array.dimensions for array in group.arrays.values()] == [["y", "x"], ["y_1", "x_1"], ["y_2", "x"]]
    group.add_pyramids("", [("", ["0", "1"])], {"y": (0.5, "micrometer")})
    (pyramid,) = group.groups[""]["multiscales"]
    scales = [level["coordinateTransformations"] for level in pyramid["datasets"]]
    assert scales == [[{"type": "scale", "scale": [0.5, 1]}], [{"type": "scale", "scale": [1, 2]}]]
    assert pyramid["axes"][0] == {"name": "y", "type": "space", "unit": "micrometer"}
