"""Shapes of a picture, and the page on which they are placed."""

from __future__ import annotations

import numpy as np

from refshard_fs.tools.scene import Box, Label, make_boxes


def test_boxes_broadcast_their_arguments() -> None:
    boxes = make_boxes(np.array([0.0, 5.0]), 1.0, np.array([2, 3]), 4.0)
    assert boxes == [Box(0, 1, 2, 4), Box(5, 1, 3, 4)]


def test_label_begins_or_ends_at_its_position() -> None:
    left, right = Label(100, 20, "air"), Label(100, 20, "air", ends_there=True)
    assert left.box.x == 100
    assert right.box.x + right.box.width == 100
    assert left.box.y < 20 < left.box.y + left.box.height
