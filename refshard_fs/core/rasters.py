"""Images as arrays of a group: their dimensions and pyramids, as all formats show them. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from refshard_fs.core.array_group import ArrayGroupBuilder
from refshard_fs.core.keys import join, parent

_KINDS: Final = {"t": "time", "c": "channel", "band": "channel"}  # types of axes in OME-NGFF; others are "space"


class RasterGroupBuilder(ArrayGroupBuilder):
    """Collect the images of a file, and describe their pyramids."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._extents: dict[str, int] = {}  # lengths of dimensions, by group and name

    def name_dimensions(self, path: str, axes: Sequence[str], shape: Sequence[int]) -> dict[str, str]:
        """Return the names of an array's dimensions by its ``axes``.

        An axis of another length than the first of its name in the group gets the name of the array, too.
        """
        group, name = parent(path)
        names = {}
        for axis, extent in zip(axes, shape, strict=True):
            is_shared = self._extents.setdefault(join(group, axis), extent) == extent
            names[axis] = axis if is_shared else f"{axis}_{name}"
        return names

    def add_pyramids(
        self,
        group: str,
        pyramids: Sequence[tuple[str, Sequence[str]]],
        sizes: Mapping[str, tuple[float, str]],
    ) -> None:
        """Describe pyramids in ``group`` as OME-NGFF 0.4 does.

        Each pyramid has a title and the names of its arrays, full resolution first. ``sizes`` are physical sizes of a
        step along an axis, with units.
        """
        found = []
        for title, names in pyramids:
            full, datasets = self.arrays[join(group, names[0])], []
            bare = [axis.partition("_")[0] for axis in full.dimensions]
            for name in names:
                shape = self.arrays[join(group, name)].shape
                steps = [sizes.get(axis, (1.0, ""))[0] for axis in bare]
                scale = [step * most / extent for step, most, extent in zip(steps, full.shape, shape, strict=True)]
                datasets.append({"path": name, "coordinateTransformations": [{"type": "scale", "scale": scale}]})
            axes = [{"name": axis, "type": _KINDS.get(axis, "space")} for axis in bare]
            for axis in axes:
                if axis["name"] in sizes:
                    axis["unit"] = sizes[axis["name"]][1]
            found.append({"version": "0.4", "name": title, "axes": axes, "datasets": datasets})
        self.groups[group] = {"multiscales": found} if found else {}
