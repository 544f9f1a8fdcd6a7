"""Open rules of archives with sidecars and messages: values have the right size, or an error is raised."""

from __future__ import annotations

import base64
import json
import struct
from contextlib import nullcontext as set_up

from refshard_fs.core.model import Inline, Packed
from refshard_fs.errors import RefShardError
from refshard_fs.formats.grib2.rule import Rule, open_, parse_lines
from tests.fuzz.array_files import choose_chunks, open_file
from tests.fuzz.parsers import grib2_file
from tests.support.shards_in_memory import ROOT

__all__ = ["IS_TEXT", "WORDS", "set_up", "check_input", "make_seeds"]

IS_TEXT = False
WORDS = tuple(
    b"""
    "refshard" "rule" "url" {time:%Y} {step:03} {number} {level} {begin} "wgrib2" "ecmwf" [0,48,1] "stop" "last"
    "covers" "bucket 6" "levels" :anl: 0-1 fcst "_offset" 1e999 null
    """.split()
)
_END = b"\n--\n"


def make_seeds() -> list[bytes]:
    found = []
    message = grib2_file.make_seeds()[0].removesuffix(grib2_file.END)
    grid = message[37:109]
    assert struct.unpack(">IB", grid[:5]) == (72, 3)
    for dialect, line, text in (
        ("wgrib2", {"name": "TMP", "level": "{level} mb"}, b"1:0:d=2024020304:TMP:500 mb:6 hour fcst:\n"),
        ("ecmwf", {"param": "t", "levelist": "{level}"},
         b'{"date": "20240203", "time": "0400", "step": "6", "param": "t", "levelist": "500", "_offset": 0, '
         b'"_length": %d}' % len(message)),
    ):  # fmt: skip
        kind = {"parameter": [0, 0, 0], "surfaces": [[100]]}
        variable = {"line": line, "message": kind, "level": "isobaricInhPa", "levels": [500]}
        rule = {
            "refshard": "rule", "url": f"{ROOT}.grib2", "sidecar": f"{ROOT}.idx", "dialect": dialect,
            "time": {"start": "2024-02-03T04", "every": 6, "stop": "2024-02-03T04"},
            "step": {"values": [6, [12, 18, 6]], "last": {"10": 12}}, "grids": [base64.b64encode(grid).decode()],
            "variables": {"t": variable, "tp": {**variable, "covers": "bucket 6"}},
        }  # fmt: skip
        found.append(_END.join([json.dumps(rule).encode(), text, message]))
    return found


def check_input(data: bytes) -> None:
    document, _, rest = data.partition(_END)
    sidecar, _, message = rest.partition(_END)
    for dialect in ("wgrib2", "ecmwf"):
        try:
            found = parse_lines(sidecar, dialect)
        except ValueError:
            continue
        assert all(start >= 0 and (stop is None or start < stop) for start, stop in found.lines.values())
    try:
        rule = Rule.parse(document, "it")
    except RefShardError:
        return
    assert Rule.parse(rule.dumps(), "again") == rule
    there = open_file(open_, document, {f"{ROOT}.idx": sidecar, f"{ROOT}.grib2": message})
    if there is None:
        return
    files, keys = there
    for key in choose_chunks(keys):
        try:
            entry = files.run(keys.lookup(key))
            if isinstance(entry, Packed):
                stop = entry.source.stop if entry.source.stop is not None else len(message)
                made = entry.recipe.make(message[entry.source.start : stop])
                assert len(made) == entry.made
            else:
                assert entry is None or isinstance(entry, Inline)
        except (RefShardError, ValueError):
            continue
