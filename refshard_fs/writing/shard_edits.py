"""What was written to inner chunks as edits of the shards that they lie in: for sources that refer to their shards.

A set of references has no place for a shard: each that changes becomes an object (or, if it is small, a value) of its
own, which the set then refers to. One that was written in full is put without being read; of another the old one is
read once, and its other chunks are copied as they lie. The objects that the set referred to stay as they are.
"""

from __future__ import annotations

from functools import partial

from refshard_fs.core.edits import REMOVED, Edit, Edits
from refshard_fs.core.model import Inline, Load, Packed, Raw, Span, Steps
from refshard_fs.core.spool import buffers
from refshard_fs.core.zarrmeta import is_metadata
from refshard_fs.session.collect import Run
from refshard_fs.session.overlay import Overlay
from refshard_fs.sharding.layout import Buffer
from refshard_fs.sharding.view import ShardView
from refshard_fs.writing.costs import costs_of
from refshard_fs.writing.planning import Plan, ShardPlan, keys_of, packed, planned
from refshard_fs.writing.staging import Values

__all__ = ["shard_edits"]


def shard_edits(view: ShardView, edits: Edits, run: Run, overlay: Overlay, values: Values) -> Edits:
    """Return what ``edits`` of the keys of ``view`` are as edits of the keys of its base; ``values`` takes the shards.

    Raises ManifestError where the shards of an array cannot hold it as it was written, DamagedIndex for an old shard
    that is damaged.
    """

    def at_hand(key: str, edit: Edit) -> Edit:
        match edit:
            case Span() if view.is_inner(key):
                return overlay.spool.keep(run(key, partial(_bytes, edit)))
        return edit

    plan: Plan = run("", partial(planned, view, edits.resolved(at_hand)))
    made = Edits()
    for prefix in plan.prefixes:
        made.remove_below(prefix)
    for path in plan.replaced:
        for key in run(path, partial(keys_of, view.base, path)):
            if not is_metadata(key):
                made.put(key, REMOVED)
    for key in plan.removed:
        made.put(key, REMOVED)
    for key, document in plan.documents:
        made.put(key, Inline(document))
    for key, edit in plan.data.items():
        made.put(key, edit if isinstance(edit, Span) else values.stored(buffers([edit])))
    for shard in plan.shards:
        made.put(shard.key, _put(shard, view, run, overlay, values))
    return made


def _put(shard: ShardPlan, view: ShardView, run: Run, overlay: Overlay, values: Values) -> Edit:
    if shard.goes:
        return REMOVED
    url, old = run(shard.key, partial(_old, view, shard.key)) if shard.old else ("", None)
    costs_of(overlay).put(shard.key, shard.array, len(shard.changes), read=old is not None)
    parts = packed(shard, old, url)
    return REMOVED if parts is None else values.stored(parts)


def _old(view: ShardView, key: str) -> Steps[tuple[str, Buffer | None]]:
    """Return where the shard ``key`` lies, and its bytes; None if there is none."""
    entry = yield from view.base.lookup(key)
    match entry:
        case None:
            return "", None
        case Inline(data):
            return "", data
        case Span(url) | Packed(Span(url)):
            found: bytes | None = yield Load(entry, Raw())
            return url, found


def _bytes(span: Span) -> Steps[bytes]:
    found: bytes = yield Load(span, Raw())
    return found
