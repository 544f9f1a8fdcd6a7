"""Plans that print as a table of requests."""

from __future__ import annotations

from refshard_fs import RefShardFileSystem
from tests.support.notebook_views import Structure


def test_plan_prints_as_a_table_of_80_columns() -> None:
    url = "https://me:secret@host/archive/of/model/runs/air-temperature.nc"
    refs = {f"air/{n}.0.0": [url, 10**11 + n * 10**9, 10**6] for n in range(30)}
    fs = RefShardFileSystem({**refs, "text": "x", "log": ["s3://bucket/log"]})
    plan = fs.plan([*refs, "text", "log"])
    assert isinstance(plan, list)
    assert plan[0] == (url, 10**11, 10**11 + 10**6, ("air/0.0.0",))
    lines = repr(plan).splitlines()
    assert lines[0] == "31 requests for 31 keys of 2 targets: 29 MiB and 1 of unknown size"
    assert lines[1] == "https://...@host/archive/of/model/runs/air-temperature.nc"
    assert lines[2].split("  ") == ["", "100,000,000,000 to 100,001,000,000", "977 KiB", "air/0.0.0"]
    assert lines[-1] == "and 11 more"
    assert max(map(len, lines)) <= 80
    shown = Structure(plan._repr_html_())
    assert shown.tables[0][0] == ["target", "bytes", "size", "keys"]
    assert len(shown.tables[0]) == 21
    assert repr(fs.plan("log")).splitlines()[0] == "1 request for 1 key of 1 target: 1 of unknown size"
    assert "0 to the end" in repr(fs.plan("log"))
    assert repr(fs.plan("text")) == "no request: the source itself has all bytes"
