"""Show the images of TIFF and JPEG 2000 files as arrays, with the same kind of dimensions and pyramids. No I/O here."""

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
        """Return the names of an array's dimensions, by the names of its ``axes``.

        A dimension is named after its axis. If an earlier array of the group has another length along this axis, the
        name of the array is appended.
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

        Each pyramid has a title and the names of its arrays, full resolution first. ``sizes`` has, by axis, the
        physical size of a step along it, and the unit.
        """
        found = []
        for title, names in pyramids:
            full, datasets = self.arrays[join(group, names[0])], []
            bare = [axis.partition("_")[0] for axis in full.dimensions]
            for name in names:
                shape = self.arrays[join(group, name)].shape
                steps = [sizes.get(axis, (1.0, ""))[0] for axis in bare]
                scale = [step * whole / extent for step, whole, extent in zip(steps, full.shape, shape, strict=True)]
                datasets.append({"path": name, "coordinateTransformations": [{"type": "scale", "scale": scale}]})
            axes = [{"name": axis, "type": _KINDS.get(axis, "space")} for axis in bare]
            for axis in axes:
                if axis["name"] in sizes:
                    axis["unit"] = sizes[axis["name"]][1]
            found.append({"version": "0.4", "name": title, "axes": axes, "datasets": datasets})
        self.groups[group] = {"multiscales": found} if found else {}
