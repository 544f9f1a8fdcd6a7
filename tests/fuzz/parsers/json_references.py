"""Parse JSON reference sets by blocks, and compare the result with that of a plain JSON reader."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from functools import partial
from unittest import mock

from refshard_fs.core import zarrmeta
from refshard_fs.errors import ManifestError
from refshard_fs.formats.kerchunk_json import blocks as json_blocks
from refshard_fs.formats.kerchunk_json import source as kerchunk_json
from refshard_fs.formats.kerchunk_json.source import JsonIndex, parse_document
from refshard_fs.formats.templates.expressions import TemplateLimits
from refshard_fs.formats.templates.templates import expand_gen
from refshard_fs.references import builder
from refshard_fs.references.reference_set import References, ReferenceSet

IS_TEXT = True
WORDS = (b'"templates"', b'"gen"', b'"a/0.0"', b'"b/c/1/1"', b'"{{u}}"', b'["s3://b/k",0,10]', b',"a/1.1":["u",5,5]')

_INDEX = JsonIndex("refs.json")
_LIMITS = TemplateLimits(generated=500, generated_steps=100_000)
_ARRAY = {"zarr_format": 2, "shape": [4, 6], "chunks": [1, 2], "dtype": "<f4", "compressor": None, "fill_value": 0}
_ARRAY |= {"order": "C", "filters": None}
_ARRAY_3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4, 4],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "codecs": [{"name": "bytes"}],
    "fill_value": 0,
}


def make_seeds() -> list[bytes]:
    chunks: dict[str, object] = {f"a/{i // 3}.{i % 3}": [f"s3://b/{i // 5}", 100 * i, 90 + i] for i in range(12)}
    refs: dict[str, object] = {".zgroup": '{"zarr_format":2}', "a/.zarray": json.dumps(_ARRAY), **chunks}
    other: dict[str, object] = {
        "b/zarr.json": _ARRAY_3,
        **{f"b/c/{i // 2}/{i % 2}": ["u"] for i in range(4)},
        "t": "base64:AAEC",
    }
    mixed: dict[str, object] = {
        **chunks,
        "x": [None, 1, 2],
        "y": "text",
        "a/0.0": "inline",
        "z": {"a": [1.5, None]},
        "é": [],
        "0.0": ["v"],
    }
    short = {"u": "s3://b", "f": "{{u}}/{{c}}.nc"}
    gen: dict[str, object] = {"key": "g/{{i}}.{{j}}", "url": "{{f(c='x')}}", "offset": "{{(i+1)*10}}", "length": "5"}
    gen |= {"dimensions": {"i": {"stop": 3}, "j": [0, 2]}}
    documents: list[dict[str, object]] = [refs, other, {**mixed, "a/.zarray": _ARRAY}, {"version": 1, "refs": refs}]
    documents += [{"version": 1, "templates": short, "gen": [gen], "refs": {"k": ["{{f(c='k')}}", 0, 1], **other}}]
    spelled = [json.dumps(d, separators=(",", ":"), ensure_ascii=False) for d in documents]
    spelled += [json.dumps(documents[2]), json.dumps(documents[4], indent=1)]
    return [text.encode() for text in spelled]


@contextlib.contextmanager
def set_up() -> Iterator[None]:
    """Divide documents into small blocks, so that many block borders lie within a value."""
    with (
        mock.patch.multiple(json_blocks, BLOCK=256, PART=64),
        mock.patch.multiple(builder, FEW=2, BATCH=8, SMALL=0),
        mock.patch.object(kerchunk_json, "expand_gen", partial(expand_gen, limits=_LIMITS)),
    ):
        yield


def check_input(data: bytes) -> None:
    quick = _outcome(lambda: _INDEX.decode(data))
    with mock.patch.multiple(builder, MANY_DOCUMENTS=0, MANY_MEMBERS=10**9):
        by_key = _outcome(lambda: _INDEX.decode(data))
    assert quick is None or quick == by_key, (quick, by_key)  # by_key reads no metadata, so it may accept more
    plain = _outcome(lambda: parse_document(_object(data), "refs.json", {}))
    if quick == plain:
        return
    # If a key has several values, the last one counts. The reader of blocks also parses the others, and raises an error
    # if one is damaged; the plain reader never sees them. The results may differ only for this reason.
    assert quick is None, (quick, plain)
    assert any(_outcome(partial(parse_document, other, "refs.json", {})) is None for other in _twins(data)), plain


def _object(data: bytes) -> dict[str, object]:
    try:
        document = zarrmeta.loads(data)
    except ValueError as e:
        raise ManifestError(str(e)) from e
    if not isinstance(document, dict):
        raise ManifestError("expected an object of JSON")
    return document


def _twins(data: bytes) -> Iterator[dict[str, object]]:
    """Yield the document with an earlier value of a repeated key in place of its last value, for each such value."""
    text = data.decode().removeprefix("\ufeff")
    number = 0
    while True:
        left = number

        def look(pairs: list[tuple[str, object]]) -> dict[str, object]:
            nonlocal left
            out = dict(pairs)
            for place, (key, value) in enumerate(pairs):
                if any(key == later for later, _ in pairs[place + 1 :]):
                    if left == 0:
                        out[key] = value
                    left -= 1
            return out

        document = json.loads(text, strict=False, object_pairs_hook=look)
        if left >= 0:
            return
        yield document
        number += 1


def _outcome(parse: object) -> bytes | None:
    try:
        refs: ReferenceSet = parse()  # type: ignore[operator]  # one of the two above
    except ManifestError:
        return None
    return zarrmeta.dumps(sorted(References(refs).items()))
