"""Rename nodes and dimensions, also in attributes that name them. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import is_within, join, parent
from refshard_fs.cubes.choice import COORDINATES, Attributes
from refshard_fs.cubes.nodes import Node, Nodes
from refshard_fs.errors import ManifestError

# Attributes of CF that name variables. A word with a colon at its end is a variable in `_NAMES`, a role in `_ROLES`.
_GEOMETRY: Final = ("geometry", "node_coordinates", "node_count", "part_node_count", "interior_ring")
_NAMES: Final = (COORDINATES, "bounds", "climatology", "grid_mapping", "ancillary_variables", *_GEOMETRY)
_ROLES: Final = ("cell_measures", "formula_terms")
# The attributes whose variables xarray makes coordinates with decode_coords="all".
_DESCRIBING: Final = ("bounds", "climatology", "grid_mapping", *_GEOMETRY, *_ROLES)


def rename_nodes(
    kept: Mapping[str, Node], nodes: Nodes, rename: Mapping[str, str], *, lenient: bool = False
) -> dict[str, Node]:
    """Rename nodes, dimensions, and variables in attributes; return the nodes by their new paths.

    ManifestError for a name that does not exist, unless the selection is ``lenient``.
    """
    names: dict[str, str] = {}  # new names, by path
    dims: list[tuple[str, str, str]] = []  # for each dimension: the group in which it is renamed, the old and new name
    for old, new in rename.items():
        group, bare = parent(old.strip("/"))
        own = new.strip("/")
        if "/" in own and parent(own)[0] != group:
            raise ManifestError(f"rename= moves {old!r} to {new!r}: expected a name in the same group")
        own = parent(own)[1]
        if not zarrmeta.is_node_name(own):
            raise ManifestError(
                f"rename= gives {old!r} the name {new!r}: expected a name that zarr accepts for a variable"
            )
        found = nodes.find_all(old)
        is_dim = any(bare in node.dims for path, node in nodes.items() if is_within(path, group))
        if not found and not is_dim and not lenient:
            raise nodes.make_unknown_error(
                f"rename= names {old!r}: expected a variable, group or dimension of the source"
            )
        names |= dict.fromkeys(found, own)
        if is_dim:
            dims.append((group, bare, own))
    shown: dict[str, Node] = {}
    for path, node in kept.items():
        own_dims = {old: new for group, old, new in dims if is_within(path, group)}
        if any(dim in own_dims for dim in node.dims):
            after = [own_dims.get(dim, dim) if dim else None for dim in node.dims]
            if len(set(filter(None, after))) < len(set(filter(None, node.dims))):
                raise ManifestError(f"rename= makes {after} the dimensions of {path!r}: expected different names")
            node.rename_dimensions(own_dims)
        if names:
            group = parent(path)[0] if node.is_array else path
            node.edit_attributes(partial(_rename_in_attributes, partial(_find_new_name, names, nodes, group)))
        new_path = "/".join(names.get(above, parent(above)[1]) for above in iter_paths_to(path))
        if new_path in shown:
            raise ManifestError(
                f"rename= gives {shown[new_path].source!r} and {path!r} the same name, {new_path!r}: rename both, or "
                "drop one of them"
            )
        shown[new_path] = node
    return shown


def list_describing_variables(attributes: Attributes) -> list[str]:
    """Return the names of the variables that describe a variable with these ``attributes``.

    Those in ``coordinates`` and ``ancillary_variables`` are left out.

    In "crs: x y", the attribute ``grid_mapping`` names the variable crs, and its coordinates x and y.
    """
    found: list[str] = []
    for name in _DESCRIBING:
        value = attributes.get(name)
        words = value.replace(" :", ":").split() if isinstance(value, str) else []
        if name == "grid_mapping" and len(words) > 1:
            words = [word[:-1] for word in words if word.endswith(":")]
        found += [word for word in words if not word.endswith(":")]
    return found


def iter_paths_to(path: str) -> Iterator[str]:
    """Yield the paths of the groups in which ``path`` lies, the outermost first, and at the end ``path`` itself."""
    parts = path.split("/") if path else []
    return ("/".join(parts[: depth + 1]) for depth in range(len(parts)))


def _find_new_name(names: Mapping[str, str], nodes: Nodes, group: str, word: str) -> str:
    """Return the new name of the variable that an attribute in ``group`` calls ``word``.

    The variable is looked up in ``group``, then in the groups above it. Return ``word`` if none of them has it.
    """
    for above in [*reversed([*iter_paths_to(group)]), ""]:
        if join(above, word) in nodes:
            return names.get(join(above, word), word)
    return word


def _rename_in_attributes(rename: Callable[[str], str], attributes: Attributes) -> Attributes:
    """Return attributes in which the names of variables are replaced by the results of ``rename``."""
    found = dict(attributes)
    for name in (*_NAMES, *_ROLES):
        value = attributes.get(name)
        words = value.split() if isinstance(value, str) else []
        after = [_rename_word(word, rename, has_roles=name in _ROLES) for word in words]
        if after != words:
            found[name] = " ".join(after)
    return found


def _rename_word(word: str, rename: Callable[[str], str], *, has_roles: bool) -> str:
    if not word.endswith(":"):
        return rename(word)
    return word if has_roles else rename(word[:-1]) + ":"
