"""Write files with virtual datasets of random selections, and of sources that grow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t

FILL: Final = 7  # the fill value of all random virtual datasets
GROWS: Final = h5s.UNLIMITED
_TYPES = ("<i2", "<i4", "<i8", ">i4", "<f4", "<f8", ">f8", "|u1", "<f2")
_LIBVERS = ("earliest", "latest", ("earliest", "v110"), ("v112", "latest"))
_MOST_TRIES = 30  # pairs of random selections, most of which have different numbers of elements

Shape = tuple[int, ...]
# Selection in the virtual dataset, names of file and dataset, and selection in the source.
VirtualMapping = tuple[Any, str, str, Any]


def create_virtual(
    file: h5py.File, name: str, shape: Shape, mappings: Sequence[VirtualMapping], dtype: Any = "<i4", fill: int = FILL
) -> None:
    """Create a virtual dataset; along an axis that grows, its maximum is unlimited."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_layout(h5d.VIRTUAL)
    plist.set_obj_track_times(False)
    plist.set_fill_value(np.array([fill], dtype))
    limits = shape
    for place, file_name, dataset, selection in mappings:
        plist.set_virtual(place, file_name.encode(), dataset.encode(), selection)
        limits = place.get_simple_extent_dims(True)
    h5d.create(file.id, name.encode(), h5t.py_create(np.dtype(dtype)), h5s.create_simple(shape, limits), plist)


def select(shape: Shape, start: Shape, count: Shape, stride: Shape, block: Shape) -> Any:
    """Select a hyperslab; the dataset is unlimited along an axis whose count or block is unlimited."""
    limits = tuple(
        GROWS if GROWS in (number, size) else extent for extent, number, size in zip(shape, count, block, strict=True)
    )
    space = h5s.create_simple(shape, limits)
    space.select_hyperslab(start, count, stride, block)
    return space


# Random selections.


def write_random_virtual_datasets(folder: Path, rng: np.random.Generator) -> Path:
    """Write sources, and a file with three virtual datasets, which may be sources of each other. Return its path."""
    libver = _LIBVERS[rng.integers(len(_LIBVERS))]
    dtype = np.dtype(_TYPES[rng.integers(len(_TYPES))])
    shape, is_own = _choose_shape(rng), bool(rng.integers(2))
    with h5py.File(folder / "virtual.h5", "w", libver=libver) as file:
        sources = []
        for number in range(3):
            if is_own:
                made = _write_source(file, f"source{number}", shape, dtype, rng)
                sources.append((".", f"source{number}", made))
                continue
            with h5py.File(folder / f"source{number}.h5", "w", libver=libver) as other:
                made = _write_source(other, "group/data", shape, dtype, rng)
            sources.append((f"source{number}.h5", "group/data", made))
        sources += [("none.h5", "data", shape), (sources[0][0], "none", shape)][: rng.integers(3)]
        for number in range(3):
            factors = rng.integers(1, 3, len(shape)).tolist()
            own = tuple(extent * factor for extent, factor in zip(shape, factors, strict=True))
            own = own if rng.integers(2) else _choose_shape(rng)
            mappings = _choose_mappings(sources, own, rng)
            own_dtype = dtype if rng.integers(4) else np.dtype("<f8")
            create_virtual(file, f"virtual{number}", own, mappings, own_dtype)
            sources.append((".", f"virtual{number}", own))
    return folder / "virtual.h5"


def _choose_shape(rng: np.random.Generator) -> Shape:
    return tuple(rng.integers(1, 9, int(rng.integers(1, 4))).tolist())


def _write_source(file: h5py.File, name: str, shape: Shape, dtype: Any, rng: np.random.Generator) -> Shape:
    """Write a source. Return its shape, which may differ from ``shape``."""
    shape = shape if rng.integers(4) else _choose_shape(rng)
    dtype = dtype if rng.integers(3) else np.dtype(_TYPES[rng.integers(len(_TYPES))])
    options: dict[str, Any] = {}
    if rng.integers(3):
        options["chunks"] = tuple(int(rng.integers(1, extent + 1)) for extent in shape)
        options["compression"] = [None, "gzip"][rng.integers(2)]
    data = file.create_dataset(name, shape, dtype, fillvalue=np.array(5, dtype)[()], **options)
    written = shape[0] if rng.integers(3) else shape[0] // 2
    if written:
        data[:written] = rng.integers(0, 100, (written, *shape[1:])).astype(dtype)
    return shape


def _choose_mappings(
    sources: Sequence[tuple[str, str, Shape]], shape: Shape, rng: np.random.Generator
) -> list[VirtualMapping]:
    """Choose up to four pairs of selections with the same number of elements."""
    mappings: list[VirtualMapping] = []
    for _ in range(_MOST_TRIES):
        file, dataset, source_shape = sources[rng.integers(len(sources))]
        selection, place = _choose_selection(source_shape, rng), _choose_selection(shape, rng)
        count = selection.get_select_npoints()
        if count != place.get_select_npoints():
            widths = [width for width in range(1, shape[-1] + 1) if count % width == 0]
            if source_shape == shape:
                place = selection
            elif len(shape) == 1 and count <= shape[0]:
                place.select_hyperslab((0,), (1,), (1,), (count,))
            elif len(shape) == 2 and widths and count // widths[-1] <= shape[0]:
                place.select_hyperslab((0, 0), (1, 1), (1, 1), (count // widths[-1], widths[-1]))
            else:
                continue
        mappings.append((place, file, dataset, selection))
        if len(mappings) == 4 or not rng.integers(3):
            break
    return mappings


def _choose_selection(shape: Shape, rng: np.random.Generator) -> Any:
    """Choose all elements, a block, a hyperslab with strides, or the union of some."""
    space = h5s.create_simple(shape)
    kind = rng.integers(4)
    if kind == 0:
        space.select_all()
        return space
    for number in range(int(rng.integers(1, 5)) if kind == 3 else 1):
        starts, counts, strides, blocks = [], [], [], []
        for extent in shape:
            start = int(rng.integers(0, extent))
            block = int(rng.integers(1, (extent - start if kind == 1 else min(3, extent - start)) + 1))
            strides.append(block + int(rng.integers(0, 3)))
            counts.append(1 if kind == 1 else int(rng.integers(1, (extent - start - block) // strides[-1] + 2)))
            starts.append(start)
            blocks.append(block)
        how = h5s.SELECT_OR if number else h5s.SELECT_SET
        space.select_hyperslab(tuple(starts), tuple(counts), tuple(strides), tuple(blocks), op=how)
    return space


# Sources that grow.


def write_growing_virtual_datasets(folder: Path, libver: str) -> Path:
    """Write sources, and a file with virtual datasets that grow with them. Return its path."""
    for number in range(4):
        with h5py.File(folder / f"piece{number}.h5", "w", libver=libver) as file:
            values = np.arange(12, dtype="<i4").reshape(3, 4) + 100 * number
            file.create_dataset("data", data=values, maxshape=(None, 4), chunks=(2, 4))
    whole, one = h5s.create_simple((3, 4)), select((4,), (0,), (1,), (1,), (4,))
    row = select((3,), (0,), (GROWS,), (1,), (1,))
    frames = select((3, 4), (0, 0), (GROWS, 1), (2, 1), (1, 4))
    with h5py.File(folder / "growing.h5", "w", libver=libver) as file:
        for number in range(4):
            data = np.arange(4 + number, dtype="<i4") + 10 * number
            file.create_dataset(f"own{number}", data=data, maxshape=(None,), chunks=(2,))
        file["percent%1"] = np.arange(4, dtype="<i4") + 50
        file.create_dataset("columns", data=np.arange(8, dtype="<i4").reshape(4, 2), maxshape=(None, 2), chunks=(2, 2))
        for name, start, stride in (("files", 0, 3), ("files with gaps", 1, 5)):
            place = select((3, 4), (start, 0), (GROWS, 1), (stride, 1), (3, 4))
            create_virtual(file, name, (3, 4), [(place, "piece%b.h5", "data", whole)])
        place = select((3,), (0,), (GROWS,), (4,), (4,))
        create_virtual(file, "datasets", (3,), [(place, ".", "own%b", one)])
        create_virtual(file, "no file", (3,), [(place, "none%b.h5", "data", one)])
        create_virtual(file, "escaped", (4,), [(one, ".", "percent%%1", one)])
        places = [select((3,), (number,), (GROWS,), (4,), (1,)) for number in range(4)]
        mappings = [(place, ".", f"own{number}", row) for number, place in enumerate(places)]
        create_virtual(file, "interleaved", (3,), mappings)
        create_virtual(file, "no dataset", (3,), [(places[0], ".", "none", row)])
        block, later = (select((3,), (start,), (1,), (1,), (GROWS,)) for start in (0, 1))
        create_virtual(file, "block", (1,), [(block, ".", "own1", later)])
        fixed = select((20, 4), (7, 0), (1, 1), (1, 1), (1, 4))
        fixed.set_extent_simple((20, 4), (GROWS, 4))
        first = select((3, 4), (0, 0), (1, 1), (1, 1), (1, 4))
        partly = [(frames, "piece0.h5", "data", frames), (fixed, "piece1.h5", "data", first)]
        create_virtual(file, "partly", (20, 4), partly)
        turned = select((2, 3), (0, 0), (1, 1), (1, 1), (2, GROWS))
        rows = select((3, 2), (0, 0), (1, 1), (1, 1), (GROWS, 2))
        create_virtual(file, "turned", (2, 3), [(turned, ".", "columns", rows)])
        pairs, triples = select((3,), (1,), (GROWS,), (3,), (2,)), select((3,), (2,), (GROWS,), (4,), (3,))
        create_virtual(file, "blocks", (1,), [(pairs, ".", "own3", triples)])
    return folder / "growing.h5"
