"""What a committer is given."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from refshard_fs.collecting import Run
from refshard_fs.edits import Edits
from refshard_fs.held import Held
from refshard_fs.overlay import Base, Overlay
from refshard_fs.targets import Given
from refshard_fs.writes.interrupts import Stop
from refshard_fs.writes.options import WriteOptions
from refshard_fs.writes.values import Values

__all__ = ["Committing"]


class Committing(msgspec.Struct, frozen=True, eq=False):
    """What a committer has at hand: the source as it was opened, the edits, and what opens its URLs."""

    source: str | Held
    base: Base
    edits: Edits  # a savepoint: it does not change
    overlay: Overlay
    run: Run
    given: Callable[[str], Given]
    options: WriteOptions
    values: Values  # what makes objects of values
    stop: Stop  # whether it is to be stopped; asked where it can be undone
