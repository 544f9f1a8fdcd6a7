"""Expand templates and `gen`: time and output are bounded. The lines of an input are definitions and texts."""

from __future__ import annotations

import json
from contextlib import nullcontext as set_up
from itertools import islice
from typing import Any

from refshard_fs.errors import ManifestError
from refshard_fs.formats.templates.expressions import TemplateLimits
from refshard_fs.formats.templates.templates import Templates, expand_gen

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = True
WORDS = tuple(
    b"""
    {{ }} {% %} {# #} {{u}} {{f(c=i)}} u f t i j c x ( ) [ ] . , = == | ~ ' '' 'a' + - * ** / // % %d %04d %s
    '%03d' '%99d' __class__ __globals__ format upper f(c=1) t(x=j) \\\\ \\n 9999999999 63 64 2 -1 (u) c= i%2
    2**62 i*i {"stop":3} {"i":[0]} {"i":{"stop":1000000000000,"step":-1}} {"start":-5,"stop":5}
    """.split()
)
_LIMITS = TemplateLimits(text=4096, output=4096, generated=64, generated_steps=100_000, generated_text=1 << 20)


def make_seeds() -> list[bytes]:
    lines = [
        [
            "s3://bucket",
            "{{u}}/{{c}}.nc",
            "{{f(c=x)}}-{{x}}",
            "a/{{i}}.{{j}}",
            "{{t(x=i)}}",
            "{{(i*3+j)*100}}",
            "{{50+j}}",
        ],
        ["{{ 1 + 2 }}", "{{c ~ '.x'}}", "{{ '%04d' % x }}", "{{u}}{{i//2}}", "{{t(x=i*2)}}", "{{i%7}}", "10"],
        ["u", "{{-c}}", "{{ f( c = ((x)) ) }}", "k{{2**i}}", '{{ "a\\"b" }}{{j}}', "{{i}}", "{{ 7 }}"],
        ["", "x", "y", "plain", "url", "", ""],
    ]
    dimensions: list[Any] = [
        {"i": {"stop": 3}, "j": [0, 2]},
        {"i": [5, -1]},
        {"i": {"start": 9, "stop": 0, "step": -3}},
        {},
    ]
    texts = ["\n".join([*line, json.dumps(d)]) for line, d in zip(lines, dimensions, strict=True)]
    return [text.encode() for text in texts]


def check_input(data: bytes) -> None:
    lines = data.decode("utf-8", "replace").split("\n", 7)
    u, f, t, key, url, offset, length, last = lines + [""] * (8 - len(lines))
    try:
        templates = Templates({"u": u, "f": f, "t": t}, limits=_LIMITS)
        for text in (key, url):
            made = templates.expand(text)
            assert len(made) <= 8 * _LIMITS.output or made == text
    except ManifestError as e:
        assert len(str(e)) < 2000
    entry: dict[str, Any] = {"key": key, "url": url, "dimensions": _json(last)}
    if offset or length:
        entry |= {"offset": offset, "length": length}
    try:
        templates = Templates({"u": u, "f": f, "t": t}, limits=_LIMITS)
        for made_key, made_url, start, _ in islice(expand_gen([entry], templates), 1000):
            assert isinstance(made_key, str)
            assert isinstance(made_url, str)
            assert start is None or 0 <= start < 2**63
    except ManifestError as e:
        assert len(str(e)) < 2000


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"i": [0, 1]}
