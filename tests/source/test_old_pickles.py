"""Pickles of earlier versions, with module names below ``session``, can be loaded."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path

from refshard_fs import RefShardFileSystem, concat

# RefShardFileSystem("memory://old-pickle.json", mode="a", data_url="memory://old-pickle.data"), with "b/0" written
WRITING = (
    "gASVTAEAAAAAAACMC2Zzc3BlYy5zcGVjlIwNbWFrZV9pbnN0YW5jZZSTlIwOcmVmc2hhcmRfZnMuZnOUjBJSZWZTaGFyZEZpbGVT"
    "eXN0ZW2Uk5SMGG1lbW9yeTovL29sZC1waWNrbGUuanNvbpSFlH2UKIwEbW9kZZSMAWGUjAhkYXRhX3VybJSMGG1lbW9yeTovL29s"
    "ZC1waWNrbGUuZGF0YZSMB292ZXJsYXmUjBtyZWZzaGFyZF9mcy5zZXNzaW9uLm92ZXJsYXmUjAtPdmVybGF5Q29weZSTlCiMIGVi"
    "OTZjMWNkMGQ4YjRkYjE4ZWFhMDNkZGNlNGEyMGZjlEsBSwBDGXgBmzRh4qTFSfoGR9jLizJLSlLzAEd8B4KUdJRSlIwHc2Vzc2lv"
    "bpSMIDEzMmY5ZjAzMWQ3YzQ2MmM4NTgzMWMzYWQ0MjcxNzFllHWHlFKULg=="
)

# concat(["/tmp/sets/0.json"], dim="time") of a set of two times, before ``session`` became ``source``
MADE = (
    "gASVGgQAAAAAAACMF3JlZnNoYXJkX2ZzLnNldHMucmViYXNllIwGX2FnYWlulJOUjCRyZWZzaGFyZF9mcy5zZXNzaW9uLmluX21lbW9y"
    "eV9zb3VyY2WUjApfdW5waWNrbGVklJOUjEA1NDI2YjA1MWU4MWM0YzE0Mzg4YjBmM2Q2ZDRjYjYzNDJhMzk3NDk5MjViOWI2MjhiMjk3"
    "YmQzMDVhODFjNTlklEJvAwAAcmVmc2hhcmQgaW5kZXgHAG8DAAAAAAAAVwAAAJncABIAAAAAAADNAlsKCgoKzQKVAAAAAAAA3AASkJCQ"
    "kJCQkWSRZJE8kWSRZJHNASOQkJCQkJCQgM9UJYFoFm700QDCxBAvdG1wL3NldHMvMC5qc29ugAAAAAAAAAAAAAAAAAASN1iqAgGQAVsC"
    "AABbAgAAYAAAABQAAABIAAAAKLUv/WBbAfUBAHQCLnpncm91cAB0aW1lLy56YXJyYXl0dHJzMAB4eC8wAHZ2di8wLjAACAD9OFVA352l"
    "Pi9aGghKDzAIKCYTnQuoaAIBkwhQAAAAUAAAAGAAAAAHAAAAAAAAAA0AAAAAAAAADQAAAAAAAAAHAAAAAAAAAAoAAAAAAAAACgAAAAAA"
    "AAAEAAAAAAAAAAoAAAAAAAAACgAAAAAAAAAGAAAAAAAAAJZphncCAZMEKAAAACgAAAA4AAAA/////wAAAAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAAAAAAAAAAAAAAAAAAADM+08gCAZMIUAAAAFAAAABgAAAAAAAAAAAAAAARAAAAAAAAAIYAAAAAAAAAWQAAAAAAAAATAAAAAAAAAIcA"
    "AAAAAAAAHAAAAAAAAAAfAAAAAAAAAI0AAAAAAAAAJAAAAAAAAAD0xNQ4AgGTCFAAAABQAAAAYAAAABEAAAAAAAAAhgAAAAAAAABZAAAA"
    "AAAAABMAAAAAAAAAhwAAAAAAAAAcAAAAAAAAAB8AAAAAAAAAjQAAAAAAAAAkAAAAAAAAAB8AAAAAAAAAYWmExQIBkAGVAgAAlQIAAB8B"
    "AAAUAAAABwEAACi1L/1glQHtBwBiTi8kIIs6B/hzn1E+vN6zwfEXmwk42tUwEGs5HrqDOzSDJhQCECJwDMMG3DDzgIMtuNk2bWOwBZaA"
    "vvCnnwdMDDOzw24BgLQRsr/ZT3al/SSMjUgOiOSwKImyUJIUXRrp93WnlZLXt0GHFVXvWPfGU6BoPA6BIhEdMIPB0RsyeMVWiCKdsEZq"
    "+rYYL7nu06IUTkhlSd/25us+4ZvWt32hBB6pjybI6yF9G6Q41h1C+kG/TdlMca9dTWuK5myGNwQWAIybkalJ9F0hlkYEAXS9C0aNC3QJ"
    "wcXXaM6FnMnDbhYdgGLUjRR4Cw4TCPThxpuZCZoHgbojmcVI3QQDlIaUhpRSlC4="
)
# concat(["/tmp/sets/0.json"], dim="time", lazy=True)
JOINED = (
    "gASVbwEAAAAAAACMGXJlZnNoYXJkX2ZzLnNldHMubGF6eV9zZXSUjAdMYXp5U2V0lJOUKEOHeyJyZWZzaGFyZCI6ImNvbmNhdCIsImRp"
    "bSI6InRpbWUiLCJheGVzIjp7InRpbWUiOjAsInYiOjB9LCJjb29yZGluYXRlIjoidGltZSIsInNldHMiOlsKWyIvdG1wL3NldHMvMC5q"
    "c29uIiwyLCJiYXNlNjQ6QUFBQUFBRUFBQUE9Il0KXX0KlIxAYTZiNjI2MmIwMTlhODczODQxM2YxYmM5MzU2NWUyOTgxZjViMDQxOGZl"
    "NTA3MjJmY2JkN2ViZTRmMjYyMmRkMZSMV29ubHkgcmVmc2hhcmQgcmVhZHMgaXQ7IGNvbmNhdCB3aXRob3V0IGxhenk9VHJ1ZSBtYWtl"
    "cyByZWZlcmVuY2VzIHRoYXQgb3RoZXJzIHJlYWQsIHRvb5SMFzEgc2V0IGpvaW5lZCBhbG9uZyB0aW1llHSUUpQu"
)


def test_old_pickle_with_writes_is_loaded() -> None:
    fs = pickle.loads(base64.b64decode(WRITING))
    assert isinstance(fs, RefShardFileSystem)
    assert (fs.fo, fs.mode) == ("memory://old-pickle.json", "a")
    assert fs.cat_file("b/0") == b"written"
    assert fs.find("") == ["b/0"]


def test_pickles_with_earlier_module_names_are_loaded() -> None:
    """Pickles of mappers and of sources in memory name modules that have been renamed since."""
    fs = RefShardFileSystem({"a/0": "x"})
    for now, before in ((b"source.files", b"session.files"), (b"source.in_memory_source", b"session.in_memory_source")):
        data = pickle.dumps(fs.get_mapper("a"), protocol=0)
        assert now in data
        assert pickle.loads(data.replace(b"refshard_fs." + now, b"refshard_fs." + before))["0"] == b"x"


def test_pickles_of_joined_sets_may_lack_later_members(tmp_path: Path) -> None:
    meta = {"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|u1", "order": "C", "compressor": None}
    refs = {
        ".zgroup": '{"zarr_format": 2}',
        "a/.zarray": json.dumps({**meta, "fill_value": None, "filters": None}),
        "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["t"]}',
        "a/0": "x",
    }
    one = tmp_path / "one.json"
    one.write_text(json.dumps(refs))
    for lazy, count in ((False, 2), (True, 3)):
        make, members = concat([one, one], dim="t", lazy=lazy).__reduce__()
        assert RefShardFileSystem(make(*members[:count])).cat(["a/0", "a/1"]) == {"a/0": b"x", "a/1": b"x"}


def test_old_pickles_of_sets_are_loaded() -> None:
    made = pickle.loads(base64.b64decode(MADE))
    assert RefShardFileSystem(made).cat_file("time/0") == b"\0\0\0\0\1\0\0\0"
    joined = pickle.loads(base64.b64decode(JOINED))
    assert (len(joined), joined.urls) == (1, ["/tmp/sets/0.json"])
