"""Open bloscpack files: chunks lie in the file and have the right length, or an error of this package is raised."""

from __future__ import annotations

from contextlib import nullcontext as set_up
from pathlib import Path

from refshard_fs.core.format import HEAD, OpenOptions, Probe
from refshard_fs.core.model import Facts
from refshard_fs.errors import RefShardError
from refshard_fs.formats.bcolz.bloscpack import open_
from tests.support.shards_in_memory import ROOT, Files

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (b"blpk\3", b"JSON\0\0\0\0", b'"shape"', b'"order": "F"', b"'<f8'", b"\2\1", b"[1]", b"numpy")
_SAMPLES = Path(__file__).parents[2] / "data/bcolz/bloscpack-0.16.0"
_LARGEST = 1 << 20  # bytes of a chunk that is read


def make_seeds() -> list[bytes]:
    return [path.read_bytes() for path in sorted(_SAMPLES.glob("*.blp")) if path.stat().st_size < 5000]


def check_input(data: bytes) -> None:
    files = Files({ROOT: data})
    for verify in (False, True):
        probe = Probe(ROOT, Facts(len(data)), data[:HEAD])
        try:
            keys = files.run(open_(probe, OpenOptions(verify=verify)))
        except RefShardError:
            return
        grid = keys.grids["data"]
        for number in {0, grid.size // 2, grid.size - 1} if grid.size else ():
            try:
                entry = files.run(keys.lookup(f"data/{grid.tail(number)}"))
                if entry is not None and (entry.size or 0) <= _LARGEST:
                    files.bytes(entry)
            except (RefShardError, ValueError, EOFError):  # the engine adds the key to these errors
                pass
