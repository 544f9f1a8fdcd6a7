"""Open bcolz directories: the result is an array, or an error of this package."""

from __future__ import annotations

from contextlib import nullcontext as set_up
from pathlib import Path

from refshard_fs.core.format import Document, OpenOptions, Probe
from refshard_fs.core.model import Facts
from refshard_fs.errors import RefShardError
from refshard_fs.formats.bcolz import COLUMNS, STORAGE
from refshard_fs.formats.bcolz.rootdir import open_
from tests.support.shards_in_memory import ROOT, Files

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = True
WORDS = tuple(
    b"""
    float64 <f8 |S3 U5 [('a','<i4'),('b','<f8',(2,))] [('a','O')] ('<i4',(3,)) "shape" "chunklen" "cparams"
    "dtype" "cname" lz4 snappy datetime64[ns] V10 object {"clevel":5,"shuffle":true} "names":["x","y"] "nbytes"
    """.split()
)
_SAMPLES = Path(__file__).parents[2] / "data/bcolz"
_MARK = b"\n--\n"
_NAMES = ("meta/storage", "meta/sizes", "__attrs__", "data/__0.blp", "data/__1.blp")


def make_seeds() -> list[bytes]:
    """Return the files of carrays; an input is all files of one carray, with `_MARK` between them."""
    roots = ["bcolz-1.2.1/i8_leftover", "bcolz-1.2.1/struct", "bcolz-1.2.1/c16", "bcolz-0.7.3/old073_f8_2d"]
    return [_MARK.join(_read(_SAMPLES / root / name)[:2000] for name in _NAMES) for root in roots]


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def check_input(data: bytes) -> None:
    parts = data.split(_MARK, len(_NAMES) - 1)
    files = Files({f"{ROOT}/{name}": part for name, part in zip(_NAMES, parts, strict=False) if part})
    documents = {STORAGE: Document(parts[0], Facts(len(parts[0])))}
    probe = Probe(ROOT, documents=documents)
    if data.startswith(b'{"names"'):
        probe = Probe(ROOT, documents={COLUMNS: documents[STORAGE]})
    try:
        keys = files.run(open_(probe, OpenOptions(zarr_format=2 + len(data) % 2)))
        for name in keys.grids:
            files.run(keys.lookup(f"{name}/.zarray"))
        grid = keys.grids["data"]
    except (RefShardError, KeyError) as e:
        assert isinstance(e, RefShardError) or e.args == ("data",)
        return
    for number in {0, grid.size - 1} if grid.size else ():
        try:
            entry = files.run(keys.lookup(f"data/{grid.tail(number)}"))
            if entry is not None and (entry.size or 0) <= 1 << 20:
                files.bytes(entry)
        except (RefShardError, ValueError, EOFError):  # the engine adds the key to these errors
            pass
