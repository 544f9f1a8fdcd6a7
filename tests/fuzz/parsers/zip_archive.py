"""Open ZIP archives: members lie in the archive and have the size in its directory, or an error is raised."""

from __future__ import annotations

import io
import zipfile
from contextlib import nullcontext as set_up

from refshard_fs.core.format import HEAD, OpenOptions, Probe
from refshard_fs.core.keys import join
from refshard_fs.core.keyspace import KeySpace
from refshard_fs.core.model import Facts
from refshard_fs.errors import RefShardError
from refshard_fs.formats.zip.source import open_
from tests.support.shards_in_memory import ROOT, Files

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (
    b"PK\1\2",
    b"PK\3\4",
    b"PK\5\6",
    b"PK\6\6",
    b"PK\6\7",
    b"../",
    b"\\",
    b"\xff\xff",
    b"\1\0\x10\0",
    b"a/b",
    b"//",
)
_READ = 12  # members that are read


class _Unseekable(io.BytesIO):
    def seekable(self) -> bool:
        return False

    def seek(self, *args: object) -> int:
        raise OSError("expected a file that can seek, found a pipe")

    def tell(self) -> int:
        raise OSError("expected a file that can seek, found a pipe")


def make_seeds() -> list[bytes]:
    return [
        _archive(),
        _archive(method=zipfile.ZIP_DEFLATED),
        _archive(out=_Unseekable()),
        _archive(zip64=True),
        _archive(b"c"),
    ]


def _archive(comment: bytes = b"", method: int = 0, out: io.BytesIO | None = None, *, zip64: bool = False) -> bytes:
    out = out or io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.comment = comment
        for name, content in {"a/.zarray": b"{}" * 9, "a/0.0": b"data" * 20, "b": b"", "é/x": b"\0" * 50}.items():
            with archive.open(name, "w", force_zip64=zip64) as member:
                member.write(content)
    return out.getvalue()


def check_input(data: bytes) -> None:
    files = Files({ROOT: data})
    try:
        keys = files.run(open_(Probe(ROOT, Facts(len(data)), data[:HEAD]), OpenOptions()))
        found = _walk(files, keys)
    except RefShardError:
        return
    for key, size in found:
        assert ".." not in key.split("/")
        assert not key.startswith("/")
        assert "\0" not in key
        try:
            content = files.read(keys, key)
        except (RefShardError, ValueError, EOFError):  # the engine adds the key to these errors
            continue
        assert content is not None
        assert size is None or len(content) == size


def _walk(files: Files, keys: KeySpace) -> list[tuple[str, int | None]]:
    found: list[tuple[str, int | None]] = []
    folders = [""]
    while folders and len(found) < _READ:
        folder = folders.pop()
        for listed in files.run(keys.children(folder)) or ():
            name = join(folder, listed.name)
            if listed.is_directory:
                folders.append(name)
            else:
                found.append((name, listed.size))
    return found[:_READ]
