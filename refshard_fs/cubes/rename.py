"""Give nodes and dimensions other names, in attributes too. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import is_within, join, parent
from refshard_fs.cubes.choice import COORDINATES, Attributes
from refshard_fs.cubes.nodes import Node, Nodes
from refshard_fs.errors import ManifestError

# Attributes of CF that name variables. A word that ends in a colon is a variable in some, and a role in others.
_NAMES: Final = (COORDINATES, "bounds", "climatology", "grid_mapping", "ancillary_variables")
_ROLES: Final = ("cell_measures", "formula_terms")


def rename_nodes(kept: Mapping[str, Node], nodes: Nodes, rename: Mapping[str, str]) -> dict[str, Node]:
    """Return the nodes by their new paths, with the new names of dimensions, and of variables that attributes name."""
    names: dict[str, str] = {}  # new names, by path
    dims: list[tuple[str, str, str]] = []  # the group in which a dimension has a new name, the old name and the new one
    for old, new in rename.items():
        group, bare = parent(old.strip("/"))
        own = new.strip("/")
        if "/" in own and parent(own)[0] != group:
            raise ManifestError(f"rename= moves {old!r} to {new!r}: expected a name in the same group")
        own = parent(own)[1]
        if not zarrmeta.is_node_name(own):
            raise ManifestError(f"rename= gives {old!r} the name {new!r}: expected the name of a variable")
        found = nodes.named(old)
        is_dim = any(bare in node.dims for path, node in nodes.items() if is_within(path, group))
        if not found and not is_dim:
            raise nodes.unknown(f"rename= names {old!r}: expected a variable, group or dimension of the source")
        names |= dict.fromkeys(found, own)
        if is_dim:
            dims.append((group, bare, own))
    shown: dict[str, Node] = {}
    for path, node in kept.items():
        own_dims = {old: new for group, old, new in dims if is_within(path, group)}
        if any(dim in own_dims for dim in node.dims):
            after = [own_dims.get(dim, dim) if dim else None for dim in node.dims]
            if len(set(filter(None, after))) < len(set(filter(None, node.dims))):
                raise ManifestError(f"rename= gives two dimensions of {path!r} one name: {after}")
            node.rename_dimensions(own_dims)
        if names:
            group = parent(path)[0] if node.is_array else path
            node.edit_attributes(partial(_rename_in_attributes, partial(_find_new_name, names, nodes, group)))
        new_path = "/".join(names.get(above, parent(above)[1]) for above in iter_paths_to(path))
        if new_path in shown:
            raise ManifestError(f"rename= gives {shown[new_path].source!r} and {path!r} one name, {new_path!r}")
        shown[new_path] = node
    return shown


def iter_paths_to(path: str) -> Iterator[str]:
    """Yield the paths of the groups that ``path`` lies in, the outermost first, and ``path``."""
    parts = path.split("/") if path else []
    return ("/".join(parts[: depth + 1]) for depth in range(len(parts)))


def _find_new_name(names: Mapping[str, str], nodes: Nodes, group: str, word: str) -> str:
    """Return the new name of the variable that attributes in ``group`` call ``word``: of it, or of a group above."""
    for above in [*reversed([*iter_paths_to(group)]), ""]:
        if join(above, word) in nodes:
            return names.get(join(above, word), word)
    return word


def _rename_in_attributes(renamed: Callable[[str], str], attributes: Attributes) -> Attributes:
    """Return attributes in which variables are called what ``renamed`` returns for their names."""
    found = dict(attributes)
    for name in (*_NAMES, *_ROLES):
        value = attributes.get(name)
        words = value.split() if isinstance(value, str) else []
        after = [_rename_word(word, renamed, has_roles=name in _ROLES) for word in words]
        if after != words:
            found[name] = " ".join(after)
    return found


def _rename_word(word: str, renamed: Callable[[str], str], *, has_roles: bool) -> str:
    if not word.endswith(":"):
        return renamed(word)
    return word if has_roles else renamed(word[:-1]) + ":"
