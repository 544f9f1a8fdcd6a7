"""Each chunk is found in the box that contains its index."""

from __future__ import annotations

import numpy as np

from refshard_fs.core.chunk_boxes import ChunkBoxes, cut_to_boxes


def test_find_returns_the_first_box_with_the_chunk() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        counts = tuple(rng.integers(1, 5, rng.integers(0, 4)).tolist())
        bounds = np.sort(rng.integers(0, 6, (rng.integers(0, 4), len(counts), 2)), axis=2).astype(np.uint32)
        boxes = ChunkBoxes(counts, bounds)
        found = boxes.find(np.arange(np.prod(counts, dtype=int), dtype=np.uint64)).tolist()
        for number, index in enumerate(np.ndindex(counts)):
            inside = [all(a <= i < b for i, (a, b) in zip(index, box, strict=True)) for box in bounds.tolist()]
            assert found[number] == (inside.index(True) if any(inside) else -1)
            assert {box for box, there in enumerate(inside) if there} <= {*boxes.find_boxes(number, number + 1)}
            assert any(number in some for some in boxes.list_ranges()) or not any(inside)


def test_ranges_ascend_without_overlaps() -> None:
    bounds = np.array([[[4, 6]], [[0, 2]], [[1, 3]], [[7, 99]], [[5, 5]]], np.uint32)
    assert ChunkBoxes((9,), bounds).list_ranges() == [range(3), range(4, 6), range(7, 9)]


def test_boxes_of_a_range_have_its_chunks_in_order() -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        counts = tuple(rng.integers(1, 5, rng.integers(0, 5)).tolist())
        numbers = np.arange(np.prod(counts, dtype=int)).reshape(counts)
        start, stop = sorted(rng.integers(0, numbers.size + 1, 2).tolist())
        boxes = cut_to_boxes(counts, start, stop)
        parts = [
            numbers[tuple(slice(at, at + size) for at, size in zip(first, shape, strict=True))]
            for first, shape in boxes
        ]
        assert [part.shape for part in parts] == [shape for _, shape in boxes], "the boxes lie within the grid"
        assert [number for part in parts for number in part.ravel().tolist()] == list(range(start, stop))
        assert len(boxes) <= max(1, 2 * len(counts) - 1)
