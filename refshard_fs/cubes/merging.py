"""Sources shown as one, each with arrays that the others lack, and selections of what is shown. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from refshard_fs.core.keys import parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Steps, read_once, run_together
from refshard_fs.cubes.choice import Choice
from refshard_fs.cubes.nodes import group_by_node
from refshard_fs.cubes.read_all_documents import read_all_documents
from refshard_fs.cubes.selection import Selection


def merge(base: KeySpace, others: Sequence[KeySpace]) -> Steps[KeySpace]:
    """Return ``base`` with those arrays and groups of ``others`` that it, and the others before, lack.

    All are read for their metadata. Keys that belong to no array or group are not shown.
    """
    spaces = [base, *others]
    owners: dict[str, KeySpace] = {}  # sources by the path of an array or a group
    shown: dict[str, dict[str, Any]] = {}
    for space, documents in zip(spaces, (yield from run_together(list(map(read_all_documents, spaces)))), strict=True):
        nodes = {parent(key)[0] for key in documents} - owners.keys()
        owners |= dict.fromkeys(nodes, space)
        shown |= {key: document for key, document in documents.items() if parent(key)[0] in nodes}
    return Selection(base, group_by_node(shown), owners)


def open_selected(steps: Steps[KeySpace], choices: Iterable[Choice]) -> Steps[KeySpace]:
    """Open a source by ``steps``, and take each of ``choices``; metadata documents are read once."""

    def all_steps() -> Steps[KeySpace]:
        return (yield from apply_choices((yield from steps), choices))

    return read_once(all_steps())


def apply_choices(base: KeySpace, choices: Iterable[Choice]) -> Steps[KeySpace]:
    """Apply ``choices`` to ``base`` in order, each to the result of the one before."""
    for choice in choices:
        base = yield from Selection.of(base, choice)
        if choice.assign:
            is_version_3 = any(key.endswith("zarr.json") for key in (yield from base.documents()))
            base = yield from merge(base, [choice.make_source(3 if is_version_3 else 2)])
    return base
