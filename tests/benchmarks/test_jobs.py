"""Jobs compare the values of both sides and count requests; the picture shows losses too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("h5netcdf")
pytest.importorskip("s3fs")
running = pytest.importorskip("benchmarks.jobs.running", reason="zarr 3", exc_type=ImportError)

from benchmarks import bars, record  # noqa: E402  # after what may be missing
from benchmarks.jobs.job import JOBS, Job  # noqa: E402  # after importorskip
from benchmarks.record import Case  # noqa: E402  # after importorskip

ROOT = Path(__file__).parents[2]


def make_case(title: str, theirs: float, ours: float) -> Case:
    return Case("jobs", title, "s", {"xarray": theirs, "refshard": ours}, ("refshard",), "xarray")


def test_job_compares_and_counts_both_sides(tmp_path: Path) -> None:
    kept, picture = tmp_path / "cases", tmp_path / "picture.svg"
    command = [sys.executable, "-m", "benchmarks.jobs", "--quick", "--only", "OpenOne", "--picture", str(picture)]
    environment = {**os.environ, record.FILE: str(kept)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = record.read_cases(kept)
    assert found.case == "1 daily file: joined and opened, 20 ms"
    assert set(found.values) == {"open_mfdataset", "refshard"}
    assert all(0 < count < 10 for count in found.requests.values())
    assert "1 daily file: joined and opened" in picture.read_text()


def test_values_that_differ_fail() -> None:
    running.compare(np.array([1.0, np.nan]), np.array([1.0 + 1e-9, np.nan]))
    with pytest.raises(AssertionError):
        running.compare(np.array([1.0, np.nan]), np.array([1.0, 0.0]))
    with pytest.raises(AssertionError):
        running.compare(np.array([1, 2]), np.array([1, 3]))


def test_jobs_are_chosen_by_pattern() -> None:
    assert running.choose_jobs(["point"]) == [JOBS["point"]]
    assert running.choose_jobs(["Cold*", "small"]) == [
        JOBS[n] for n in ("small", "coldstore2", "coldstore3", "coldshards")
    ]
    assert running.choose_jobs([]) == list(JOBS.values())


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_job_has_a_docstring_and_a_short_title(job: Job) -> None:
    assert job.__doc__
    assert job.__doc__ != Job.__doc__
    for size in ("quick", "usual", "large"):
        title = running.make_title(job, size)
        assert "{" not in title.replace("{}", "")
        assert len(title) <= 54  # as many letters as fit beside the bars


def test_job_lists_missing_packages() -> None:
    job = SimpleNamespace(needs=("json", "no_such_package"), store="http")
    assert Job.list_missing(job) == ["no_such_package"]  # type: ignore[arg-type]


def test_picture_shows_losses_after_wins() -> None:
    cases = [
        make_case("slow & <new>, 20 ms", 1.0, 4.0),
        make_case("fast, 20 ms", 12.0, 1.0),
        make_case("on S3, 30 ms", 2.0, 1.0),
    ]
    svg = bars.draw([*cases, make_case("fast, 50 ms", 1.0, 9.0)], {"zarr": "3.4"})
    texts = [node.text for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("text")]
    assert "Times as fast as what people use today: 3 jobs, 1 of them slower" in texts
    assert [text for text in texts if text in ("fast", "on S3", "slow & <new>")] == ["fast", "on S3", "slow & <new>"]
    assert {"12×", "2.0×", "0.25×", "zarr 3.4"} <= set(texts)
    assert svg.count(bars.SLOWER) == 1
