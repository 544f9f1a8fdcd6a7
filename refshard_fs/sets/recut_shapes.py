"""Choose the shape of the chunks in which a cube shows arrays that must be recut. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from refshard_fs.cubes.placement import Placement
from refshard_fs.cubes.recutting import find_commonest_shape
from refshard_fs.sets.variables import NamedSet


def choose_recut_shapes(
    sets: Sequence[NamedSet],
    dim: str,
    chunks: Mapping[str, int],
    subchunks: Mapping[str, int],
    places: Sequence[Mapping[str, Placement]],
) -> dict[str, tuple[int, ...]]:
    """Return, by path, the new chunk shapes of arrays along ``dim`` that must be recut.

    An array is recut if its sets have different chunk shapes, or if a set begins inside a chunk. The length of its new
    chunks along a dimension is that in ``chunks``, or else the length of the chunks of most elements; but at most that
    in ``subchunks``. ``places`` has, for each set, the places of its elements along other dimensions.
    """
    recut = {}
    placements = {item for own in places for item in own.items()}
    coordinate = sets[0].find_coordinate(dim)  # the document has its values; other groups keep theirs in the sets
    for path, first in sets[0].variables.items():
        if dim not in first.dims or first is coordinate:
            continue
        axis = first.dims.index(dim)
        metas = [part.variables[path].meta for part in sets if path in part.variables]
        shapes = [(m.chunks, m.shape[axis]) for m in metas if m.chunks is not None and len(m.shape) == len(first.dims)]
        if len(shapes) < len(sets):
            continue  # `check_joinable` raises the error, with its reason

        def chunks_of(shape: Sequence[int], dims: Sequence[str | None] = first.dims) -> tuple[int, ...]:
            most = [chunks.get(name or "", size) for name, size in zip(dims, shape, strict=True)]
            return tuple(min(size, subchunks.get(name or "", size)) for name, size in zip(dims, most, strict=True))

        whole = chunks_of(shapes[0][0])
        begins = [part.take[0] for part in sets if part.take is not None and path in part.variables]
        are_aligned = whole[axis] and all(length % whole[axis] == 0 for _, length in shapes[:-1])
        are_aligned = are_aligned and all(begin % whole[axis] == 0 for begin in begins)
        for name, placement in placements:
            if name in first.dims:
                k = first.dims.index(name)
                are_aligned = are_aligned and placement.convert_to_chunks(whole[k], first.meta.shape[k]) is not None
        if not are_aligned or any(theirs != whole for theirs, _ in shapes):
            recut[path] = chunks_of(find_commonest_shape(shapes, axis))
    return recut
