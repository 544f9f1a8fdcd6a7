"""Apply a choice to the nodes of a source: keep, drop, shorten, squeeze and rename them. No I/O here."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial

from refshard_fs.core.keys import find_nearest, join, parent
from refshard_fs.cubes.choice import COORDINATES, AssignedArray, Attributes, Choice
from refshard_fs.cubes.nodes import Node, Nodes
from refshard_fs.cubes.rename import iter_paths_to, list_describing_variables, rename_nodes
from refshard_fs.errors import ManifestError


def choose(nodes: Nodes, choice: Choice) -> dict[str, Node]:
    """Apply ``choice`` to ``nodes``, which are changed; return the shown nodes by their new paths.

    ManifestError, with the names that exist, for a name that the source does not have and that ``choice`` requires.
    """

    def find(name: str, argument: str) -> list[str]:
        return nodes.find_all(name) if choice.lenient else nodes.find(name, argument)

    if choice.zarr_format == 3:
        for node in nodes.values():
            node.convert_to_version_3()
    kept = set(nodes)
    if choice.keep is not None:
        paths = {path for name in choice.keep for path in find(name, "keep")}
        if choice.keep and not paths:
            nodes.find(choice.keep[0], "keep")
        kept = _find_paths_to_keep(nodes, paths)
    dropped = {path for name in choice.drop for path in find(name, "drop")}
    kept = {path for path in kept if not _is_in(path, dropped)}
    shown = {path: node for path, node in nodes.items() if path in kept}
    _shorten(shown, nodes, choice.isel, choice.squeeze)
    if len(shown) < len(nodes):
        _mend_coordinates(shown, nodes)
    if choice.squeeze:
        _squeeze(shown, nodes, choice.squeeze)
    for name, values in choice.attrs.items():
        for path in find(name, "attrs") if name.strip("/") else [""]:
            if path in shown:
                shown[path].edit_attributes(partial(_update_attributes, values))
    named = rename_nodes(shown, nodes, choice.rename, lenient=choice.lenient) if choice.rename else shown
    for path, added in choice.assign.items():
        group, name = parent(path.strip("/"))
        if group not in named:
            raise nodes.make_unknown_error(f"assign= names {path!r}, whose group the source does not have")
        named.pop(join(group, name), None)
        _check_lengths(added, join(group, name), group, named, choice.assign)
        if added.dims != (name,):
            _add_coordinates(named[group], [name])
    return named


def _check_lengths(
    added: AssignedArray, path: str, group: str, named: Mapping[str, Node], assigned: Mapping[str, AssignedArray]
) -> None:
    """Raise ManifestError if the array ``added`` at ``path`` has another length along a dimension than its group."""
    lengths: dict[str | None, dict[int, str]] = {}  # the path of one array, by length, by dimension
    known = [(other, zip(node.dims, node.shape, strict=True)) for other, node in named.items() if node.is_array]
    known += [(other.strip("/"), zip(array.dims, array.shape, strict=False)) for other, array in assigned.items()]
    for other, sizes in known:
        if parent(other)[0] == group and other != path:
            for axis, (dim, length) in enumerate(sizes):
                if other not in named or axis not in named[other].dropped:
                    lengths.setdefault(dim, {}).setdefault(length, other)
    for dim, length in zip(added.dims, added.shape, strict=False):
        if length not in lengths.get(dim, {length: ""}):
            expected = ", or ".join(f"{each:,}, as in {other!r}" for each, other in lengths[dim].items())
            raise ManifestError(f"assign= of {path!r} has {length:,} values along {dim!r}: expected {expected}")


def _add_coordinates(group: Node, names: Iterable[str]) -> None:
    """Add names of variables to the attribute ``coordinates`` of their group."""
    words = dict.fromkeys([*_list_words(group), *names])
    group.edit_attributes(partial(_update_attributes, {COORDINATES: " ".join(words) or None}))


def _squeeze(shown: Mapping[str, Node], nodes: Nodes, dims: Sequence[str] | bool) -> None:
    """Mark axes of length 1 as dropped; the coordinates of these dimensions become scalar coordinates."""
    lengths: dict[str | None, set[int]] = {}
    for node in shown.values():
        for dim, length in zip(node.dims, node.shape, strict=True):
            lengths.setdefault(dim, set()).add(length)
    if isinstance(dims, bool):
        dims = [dim for dim, known in lengths.items() if dim is not None and known == {1}]
    for dim in dims:
        if dim not in lengths:
            raise nodes.make_unknown_error(f"squeeze= names {dim!r}, which is not a dimension of the source", dims=True)
        if lengths[dim] != {1}:
            raise ManifestError(
                f"{dim!r} has the length {', '.join(map(str, sorted(lengths[dim])))}, and squeeze= drops dimensions of "
                f"length 1: isel={{{dim!r}: 0}} takes one element"
            )
    for path, node in shown.items():
        node.dropped = tuple(axis for axis, dim in enumerate(node.dims) if dim in dims)
        if node.dropped and node.shown_dims == [parent(path)[1]]:
            _add_coordinates(shown[parent(path)[0]], [parent(path)[1]])


def _update_attributes(values: Attributes, before: Attributes) -> Attributes:
    """Return the attributes ``before`` updated with ``values``; a value of None removes the attribute."""
    return {name: value for name, value in {**before, **values}.items() if value is not None}


def _is_in(path: str, paths: Container[str]) -> bool:
    """Return whether ``path`` is one of ``paths``, or lies below one."""
    return path in paths or find_nearest(path, paths) is not None


def _find_paths_to_keep(nodes: Nodes, paths: set[str]) -> set[str]:
    """Return ``paths``, all paths below them, the groups above them, and the coordinates of their arrays.

    Also return the arrays that describe these arrays and coordinates, if they have no other dimensions, as xarray keeps
    them after decode_coords="all".
    """
    kept = {"", *(path for path in nodes if _is_in(path, paths))}
    arrays: dict[str, list[Node]] = {}
    for path in filter(None, list(kept)):
        if nodes[path].is_array:
            arrays.setdefault(parent(path)[0], []).append(nodes[path])
    for group, members in arrays.items():
        dims = {dim for node in members for dim in node.dims}
        words = {word for node in members for word in _list_words(node)}
        arrays_above = [(above, nodes.by_group.get(above, {})) for above in ["", *iter_paths_to(group)]]
        shown = list(members)
        for above, known in arrays_above:
            names = {name for name, node in known.items() if node.shown_dims == [name]}
            names |= _find_coordinate_names(nodes, above, known)
            names = {name for name in names if name in words or dims.issuperset(known[name].shown_dims)}
            kept |= {join(above, name) for name in names}
            shown += [known[name] for name in names]
        describing = {name for node in shown for name in list_describing_variables(node.attributes)}
        for above, known in arrays_above:
            names = {name for name in describing & known.keys() if dims.issuperset(known[name].shown_dims)}
            kept |= {join(above, name) for name in names}
    return kept.union(*(map(iter_paths_to, kept)))


def _list_words(node: Node) -> list[str]:
    """Return the names of variables in the attribute ``coordinates``."""
    value = node.attributes.get(COORDINATES)
    return value.split() if isinstance(value, str) else []


def _find_coordinate_names(nodes: Mapping[str, Node], group: str, arrays: Mapping[str, Node]) -> set[str]:
    """Return the ``arrays`` of a group that the attribute ``coordinates`` of an array, or of the group, names."""
    return {word for node in [*arrays.values(), nodes[group]] for word in _list_words(node) if word in arrays}


def _mend_coordinates(shown: Mapping[str, Node], nodes: Nodes) -> None:
    """Remove variables that are not shown from the attributes ``coordinates``; keep all other coordinates there."""
    for group, before in nodes.by_group.items():
        after = {name: node for name, node in before.items() if join(group, name) in shown}
        if group not in shown or len(after) == len(before):
            continue
        named = _find_coordinate_names(nodes, group, before) & after.keys()
        for node in [*after.values(), shown[group]]:
            words = _list_words(node)
            left = [word for word in words if word in after or word not in before]
            if left != words:
                node.edit_attributes(partial(_update_attributes, {COORDINATES: " ".join(left) or None}))
        lost = named - _find_coordinate_names(shown, group, after)
        if lost:  # only attributes of variables that are not shown named these: let the group's attribute name them
            words = [*_list_words(shown[group]), *sorted(lost)]
            shown[group].edit_attributes(partial(_update_attributes, {COORDINATES: " ".join(words)}))


def _shorten(
    shown: Mapping[str, Node],
    nodes: Nodes,
    isel: Mapping[str, tuple[int | None, int | None]],
    squeezed: Sequence[str] | bool,
) -> None:
    """Change the shapes and starts of arrays to the elements that ``isel`` takes.

    ManifestError if a single element, whose dimension is ``squeezed``, does not exist.
    """
    known = {dim for node in nodes.values() for dim in node.dims}
    for name in isel:
        if name not in known:
            raise nodes.make_unknown_error(f"isel= names {name!r}, which is not a dimension of the source", dims=True)
    for node in shown.values():
        dims = node.dims
        if not any(dim in isel for dim in dims):
            continue
        starts, shape = list(node.starts), node.shape
        for axis, dim in enumerate(dims):
            if dim is not None and dim in isel:
                first, last = isel[dim]
                start, stop, _ = slice(first, last).indices(shape[axis])
                if start >= stop and first is not None and (squeezed is True or dim in (squeezed or ())):
                    expected = f"expected an element from {-shape[axis]} to {shape[axis] - 1}"
                    raise ManifestError(
                        f"isel={{{dim!r}: {first}}}: {dim!r} has the length {shape[axis]:,}: {expected}"
                    )
                starts[axis] += start
                shape[axis] = max(stop - start, 0)
        node.starts = tuple(starts)
        for name in {"zarr.json", ".zarray"} & node.documents.keys():
            node.documents[name]["shape"] = shape
