"""A writer to S3 that is killed at a request of a commit leaves the old state or the new one."""

from __future__ import annotations

import json
import random
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs

from refshard_fs import RefShardFileSystem
from tests.servers.s3 import SeaweedServer
from tests.support import overwriting
from tests.support.hierarchy_model import (
    FORMATS,
    make_array_document,
    make_group_document,
    make_path,
    parse_model,
    read_keys,
)
from tests.support.killed import NEVER, DeadlyProxy, Jobs
from tests.support.killed_on_s3 import count_chunks, count_rows, make_row, make_saved_content, make_source, open_source

SCRIPT = Path(__file__).parents[1] / "support/killed_on_s3.py"
pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills as POSIX does"),
    pytest.mark.filterwarnings("ignore::refshard_fs.CostlyPattern"),
]
ALL = (*FORMATS, "zarr-hierarchy")
ROWS = 10  # a longer hierarchy is replaced by a new one


@pytest.fixture(scope="module")
def proxy(s3_server: SeaweedServer) -> Iterator[DeadlyProxy]:
    s3_server.create_bucket("killed")
    with DeadlyProxy(s3_server.endpoint_url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def commits(proxy: DeadlyProxy) -> Iterator[Callable[..., int | None]]:
    """Return a function that commits in a process that is killed at a step.

    The function returns the number of steps, or None if the process was killed.
    """
    with Jobs(SCRIPT, proxy) as jobs:

        def commit(url: str, format: str, value: str, last: int) -> int | None:
            status, steps = jobs.run([url, format, proxy.url, value], last)
            assert not status, "a commit that is not killed succeeds"
            return None if status is None else steps

        yield commit


def content(value: str) -> dict[str, Any]:
    """Return the keys and values that a set has after a commit of ``value``."""
    count = count_chunks(value)
    model = {"zarr.json": make_group_document(), "a/zarr.json": make_array_document((count,))}
    return parse_model(model | {f"a/c/{i}": value.encode() for i in range(count)})


def rows(fs: RefShardFileSystem) -> dict[str, bytes]:
    """Return all chunks of a hierarchy, and check that each row of the array has some."""
    count = json.loads(fs.cat_file("a/zarr.json"))["shape"][0]
    keys = fs.find("a/c")
    assert {int(key.split("/")[2]) for key in keys} == set(range(count)), "each row in the shape has chunks"
    found: dict[str, bytes] = fs.cat(keys) if keys else {}
    return found


def rows_after(before: dict[str, bytes], value: str) -> dict[str, bytes]:
    """Return the chunks of a hierarchy that had the chunks ``before`` until ``value`` was appended."""
    begun = len({key.split("/")[2] for key in before})
    new = {
        f"a/c/{row}/{i}": make_row(value, row) for row in range(begun, count_rows(value)) for i in range(1 + row % 2)
    }
    return before | new


def rounds(commit: Callable[..., int | None], server: SeaweedServer, format: str, count: int, seed: int) -> None:
    """Kill ``count`` writers of one source, one after the other, each at another request of its commit."""
    chance = random.Random(seed)
    is_set = format != "zarr-hierarchy"
    name = make_path(Path(), format).name if is_set else "h.zarr"

    def made(value: str) -> str:
        url = f"s3://killed/{uuid.uuid4().hex}/{name}"
        make_source(open_source(url, format, server.endpoint_url), format, value)
        return url

    def value_of(number: int, length: int, begun: int) -> str:
        return str(number).rjust(length, "v") if is_set else f"{begun + 3}:{number}"

    now: Any = content("v" * 40) if is_set else {}
    url = made("v" * 40)
    steps = commit(made("v" * 40), format, value_of(0, 44, 0), NEVER)
    assert steps is not None
    seen = set()
    for i in range(count):
        begun = 0 if is_set else len({key.split("/")[2] for key in now})
        if begun > ROWS:
            begun, now, url = 0, {}, made("")
        value = value_of(i + 1, chance.choice((9, 43, 47)), begun)
        last = i * (steps - 1) // (count - 1)
        commit(url, format, value, last)
        fs = open_source(url, format, server.endpoint_url, mode="r")
        found: Any = read_keys(fs) if is_set else rows(fs)
        new = content(value) if is_set else rows_after(now, value)
        assert found in (now, new), f"torn at step {last} of {steps}"
        seen.add(found == new)
        now = found
    assert seen == {True, False}, "some writers are killed before their state is committed, and some afterwards"
    value = value_of(count + 1, 43, 0 if is_set else len({key.split("/")[2] for key in now}))
    commit(url, format, value, NEVER)
    fs = open_source(url, format, server.endpoint_url, mode="r")
    assert (read_keys(fs) if is_set else rows(fs)) == (content(value) if is_set else rows_after(now, value))


def overwriting_rounds(commit: Callable[..., int | None], server: SeaweedServer, count: int) -> None:
    """Kill ``count`` writers that overwrite a hierarchy, each with another state, and then write that state."""

    def made() -> str:
        url = f"s3://killed/{uuid.uuid4().hex}/o.zarr"
        overwriting.write_state(url, 1, target_options=server.storage_options)
        return url

    def found() -> dict[str, Any]:
        return overwriting.read_keys(open_source(url, "overwritten", server.endpoint_url, mode="r"))

    steps = commit(made(), "overwritten", "2", NEVER)
    assert steps is not None
    url, now = made(), 1
    for i in range(count):
        number = i + 2
        commit(url, "overwritten", str(number), i * (steps - 1) // (count - 1))
        overwriting.check_partly_committed(found(), now, number)
        commit(url, "overwritten", str(number), NEVER)
        assert found() == overwriting.make_state(number), "the next commit completes the state"
        now = number


def saving_rounds(commit: Callable[..., int | None], server: SeaweedServer, format: str, count: int) -> None:
    """Kill ``count`` saves that replace a set, each at another request; 0 means one save for each request."""
    url = f"s3://killed/{uuid.uuid4().hex}/set"
    files = s3fs.S3FileSystem(**server.storage_options, use_listings_cache=False)
    values = ["v" * n for n in (3, 8, 5, 7, 9, 4)]

    def found() -> dict[str, bytes]:
        fs = open_source(url, format, server.endpoint_url, mode="r")
        return {key: data for key, data in fs.cat(fs.find("")).items() if "/c/" in key}

    def expected_of(value: str) -> dict[str, bytes]:
        return {key: data for key, data in make_saved_content(value).items() if "/c/" in key}

    commit(url, format, values[0], NEVER)
    begun = {path.rpartition("/")[2] for path in files.find(url)}
    steps = commit(url, format, values[1], NEVER)
    assert steps is not None
    now, seen = values[1], set()
    for i in range(count or steps):
        value = values[(i + 2) % len(values)]
        commit(url, format, value, i * (steps - 1) // ((count or steps) - 1))
        there = found()
        assert there in (expected_of(now), expected_of(value)), f"torn at step {i} of {steps}"
        seen.add(there == expected_of(value))
        now = value if there == expected_of(value) else now
        if format == "saved parquet":  # other readers get the whole set, or an error
            document = json.loads(files.cat_file(f"{url}/.zmetadata"))
            assert ("record_size" in document) != ("partitions" in document["refshard"])
    assert seen == {True, False}
    commit(url, format, values[0], NEVER)
    assert found() == expected_of(values[0])
    left = {re.sub("[.][0-9a-f]{32}", "", path.rpartition("/")[2]) for path in files.find(url)}
    assert left == begun, "the last save removes the files of killed saves"


@pytest.mark.parametrize("format", ["saved parquet", "saved chunk-manifest"])
def test_save_killed_at_a_request_leaves_old_set_or_new(
    commits: Callable[..., int | None], s3_server: SeaweedServer, format: str
) -> None:
    saving_rounds(commits, s3_server, format, 4)


@pytest.mark.soak
@pytest.mark.parametrize("format", ["saved parquet", "saved chunk-manifest"])
def test_saves_killed_at_each_request_leave_old_set_or_new(
    commits: Callable[..., int | None], s3_server: SeaweedServer, format: str
) -> None:
    saving_rounds(commits, s3_server, format, 0)


def test_killed_overwriting_commit_is_finished_later(
    commits: Callable[..., int | None], s3_server: SeaweedServer
) -> None:
    overwriting_rounds(commits, s3_server, 4)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_overwriting_commits_killed_often_are_finished_later(
    commits: Callable[..., int | None], s3_server: SeaweedServer
) -> None:
    overwriting_rounds(commits, s3_server, 50)


@pytest.mark.parametrize("format", ALL)
def test_commit_killed_at_a_request_leaves_old_state_or_new(
    commits: Callable[..., int | None], s3_server: SeaweedServer, format: str
) -> None:
    rounds(commits, s3_server, format, 4, 1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("format", ALL)
def test_many_commits_killed_at_requests_leave_old_state_or_new(
    commits: Callable[..., int | None], s3_server: SeaweedServer, format: str
) -> None:
    rounds(commits, s3_server, format, 50, 2)  # more than 10 for each of the four formats
