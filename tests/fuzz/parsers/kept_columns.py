"""Read columns from pickles and cache files: the result has consistent columns, or a ValueError is raised."""

from __future__ import annotations

import io
import json
import struct
from contextlib import nullcontext as set_up
from functools import cache

from refshard_fs.core.checksums import crc32c
from refshard_fs.formats.kerchunk_json.source import parse
from refshard_fs.reading import index_cache
from refshard_fs.references import binary as compiled
from refshard_fs.references import binary as pickled
from refshard_fs.references.reference_set import ReferenceSet
from tests.fuzz.parsers.json_references import _ARRAY

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = (b"refshard index", b"\xc0", b"\xff", b"\xdd\xff\xff\xff\xff", b"\xcf" + b"\xff" * 8, b"\x93", b"\x02\x01\x01")


@cache
def make_seeds() -> list[bytes]:
    """Return inputs: a byte with the kind (packed, pickled or a cache file), and the stored columns."""
    refs: dict[str, object] = {"a/.zarray": json.dumps(_ARRAY), "t": "text", "o": {"x": [1, None]}, "w": ["u"]}
    refs |= {f"a/{i}.{i % 3}": ["s3://b/k", i, 10] for i in range(4)}
    found = []
    for document in (refs, {**refs, "r": ["v", 1, 2], "é": "base64:AAEC"}):
        columns = parse(json.dumps(document).encode(), "refs", {})
        packed = b"".join(compiled.pack(columns))
        end = index_cache._END.pack(index_cache._MAGIC, len(packed), crc32c(packed, crc32c(b"x")))
        found += [b"\0" + packed, b"\1" + pickled.pack_compressed(columns), b"\2" + packed + end]
    return found


def check_input(data: bytes) -> None:
    kind, kept = data[:1], data[1:]
    try:
        match kind:
            case b"\0":
                if len(kept) > 24:  # correct the length: otherwise parsing would end there
                    kept = kept[:16] + struct.pack("<Q", len(kept)) + kept[24:]
                _look(compiled.unpack(memoryview(kept)))
            case b"\1":
                _look(pickled.unpack_compressed(kept))
            case _:
                whole = index_cache._read_checked(io.BytesIO(kept), len(kept), "x")  # type: ignore[arg-type]  # a file
                assert whole is None or kept in {seed[1:] for seed in make_seeds()}
    except ValueError:
        pass


def _look(refs: ReferenceSet) -> None:
    """Check the lengths of columns, and not their values, which only a checksum protects."""
    for table in refs.tables.values():
        count = table.grid.size if table.numbers is None else len(table.numbers)
        assert {len(column) for column in table.ranges} == {count}
