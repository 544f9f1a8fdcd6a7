"""The command ``rule``: a new document reads its archive, and `check` names differences."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from refshard_fs.cli import main
from tests.servers.http import RangeServer
from tests.support.forecast_archive import ARCHIVES, fill, publish

xr = pytest.importorskip("xarray")
START = datetime(2026, 11, 1, tzinfo=UTC)


def make_rule(path: Path, server: RangeServer, name: str, *more: str) -> int:
    archive = ARCHIVES[name]
    arguments = ["--url", f"{server.url}/{archive.url}", "--dialect", archive.dialect, "--start", "2026-11-01"]
    arguments += ["--stop", "2026-11-01T06", "--every", "6", "--steps", "0-14", *more]
    return main(["rule", "new", str(path), *arguments])


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("hrrr", ()),
        ("gfs", ()),
        ("gefs", ("--members", "0-2", "--names", "c00,p01,p02")),
        ("ifs", ()),
        ("ifs-ens", ("--members", "0-2")),
    ],
)
def test_new_rule_reads_the_archive(
    name: str, more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, path = ARCHIVES[name], tmp_path / "rule.json"
    with RangeServer() as server:
        members = (0, 1, 2) if more else ()
        values = {}
        for step in (0, 5, 6, 7, 8):
            found = publish(server, archive, START + timedelta(hours=6), step, members)
            values |= {(1, step, *key): value for key, value in found.items()}
        assert make_rule(path, server, name, *more) == 0
        assert path.stat().st_size < 3000
        got = xr.open_dataset(path, engine="refshard", decode_timedelta=True)
        covers = {"": "t2m", "run": "tp", "last 1": "tp_last1", "bucket 6": "tp_bucket6"}
        assert set(got.data_vars) == {"t", "gh", *(covers[one.covers] for one in archive.fields)}
        assert got["t"].attrs["long_name"] == "Temperature"
        steps = sorted({step for _, step, *_ in values})
        read = got.isel(time=[1], step=steps).load()  # at once, because a request for each field takes far longer
        for (run, step, short, level, cover, member), want in values.items():
            variable = {"TMP": "t", "HGT": "gh"}[short] if level.endswith("mb") else covers[cover]
            one = read[variable][run - 1, steps.index(step)]
            one = one.sel(number=member) if members else one
            one = one.sel(isobaricInhPa=int(level.split()[0])) if level.endswith("mb") else one
            np.testing.assert_array_equal(one.values, want)
        assert capsys.readouterr().out.startswith(f"{path}: {len(got.data_vars)} variables")


def test_rule_check_names_differences_from_the_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rule.json"
    with RangeServer() as server:
        for step in (0, 5, 6, 7, 8):
            publish(server, ARCHIVES["hrrr"], START, step)
        make_rule(path, server, "hrrr", "--run", "2026-11-01")
        rule = json.loads(path.read_text())
        rule["step"] = {"values": [0, 5, 7, 8, 9]}
        rule["variables"]["t2m"]["message"]["surfaces"] = [[103, 3]]
        rule["variables"]["gh"]["line"]["name"] = "NONE"
        path.write_text(json.dumps(rule))
        capsys.readouterr()
        assert main(["rule", "check", str(path), "--run", "2026-11-01"]) == 1
        missing = fill(ARCHIVES["hrrr"].sidecar, START, 9, "")
        lines = capsys.readouterr().out.splitlines()
        assert lines[:3] == [
            "run 2026-11-01T00Z: 24 fields found",
            f"sidecar that does not exist: {server.url}/{missing}",
            "variable without a line: gh",
        ]
        assert ": expected parameter 0.0.0 at 3 of kind 103" in lines[3]
        assert lines[4] == "line of no variable: HGT 1000 mb 2026110100 0 0"
        assert lines[14:] == ["line of no variable: 2 more"]
        assert main(["rule", "check", str(path), "--run", "2026-11-01", "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["unfound"] == ["gh"]


def test_new_rule_without_a_url_or_a_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rule", "new", str(tmp_path / "a.json")]) == 2
    assert "needs --url and --start" in capsys.readouterr().err
    with RangeServer() as server:
        assert make_rule(tmp_path / "a.json", server, "hrrr") == 2
        assert "expected a file and its sidecar, found nothing at" in capsys.readouterr().err
