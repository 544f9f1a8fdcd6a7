"""Show several sources with different arrays as one, and apply choices to a source. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from refshard_fs.core.keys import parent
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Steps, read_once, run_together
from refshard_fs.cubes.choice import Choice
from refshard_fs.cubes.nodes import group_by_node, parse_documents
from refshard_fs.cubes.selection import Selection


def merge(base: KeySpace, others: Sequence[KeySpace]) -> Steps[KeySpace]:
    """Return ``base`` with the arrays and groups of ``others`` that neither ``base`` nor an earlier source has.

    The metadata of all sources are read. Keys outside of arrays and groups are not shown.
    """
    spaces = [base, *others]
    owners: dict[str, KeySpace] = {}  # sources by the path of an array or a group
    shown: dict[str, dict[str, Any]] = {}
    read = yield from run_together([space.documents() for space in spaces])
    for space, documents in zip(spaces, map(parse_documents, read), strict=True):
        nodes = {parent(key)[0] for key in documents} - owners.keys()
        owners |= dict.fromkeys(nodes, space)
        shown |= {key: document for key, document in documents.items() if parent(key)[0] in nodes}
    return Selection(base, group_by_node(shown), owners)


def open_selected(steps: Steps[KeySpace], choices: Iterable[Choice]) -> Steps[KeySpace]:
    """Open a source by ``steps``, and apply ``choices`` in order; metadata documents are read once."""

    def open_and_select() -> Steps[KeySpace]:
        return (yield from apply_choices((yield from steps), choices))

    return read_once(open_and_select())


def apply_choices(base: KeySpace, choices: Iterable[Choice]) -> Steps[KeySpace]:
    """Apply ``choices`` to ``base`` in order, each to the result of the previous one."""
    for choice in choices:
        base = yield from Selection.of(base, choice)
        if choice.assign:
            is_version_3 = any(key.endswith("zarr.json") for key in (yield from base.documents()))
            base = yield from merge(base, [choice.make_source(3 if is_version_3 else 2)])
    return base
