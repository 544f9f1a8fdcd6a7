"""Recognise Icechunk repositories: directories with ``snapshots``, and ``repo`` or (in version 1) ``refs``."""

from __future__ import annotations

from refshard_fs.core.format import Format, Probe

REPO = "repo"  # an object that lists snapshots, branches and tags
MAIN = "refs/branch.main/ref.json"  # an object that every repository of version 1 has


def _recognises(probe: Probe) -> bool:
    names = probe.names
    if names and names <= {REPO, MAIN}:
        return True  # the target cannot be listed, so other objects are not searched
    return "snapshots" in names and not names.isdisjoint((REPO, "refs"))


FORMAT = Format(
    "icechunk",
    _recognises,
    "refshard_fs.formats.icechunk.source",
    markers=(REPO, MAIN),
    has_versions=True,
    opens_unseen=True,
)
