"""A set on S3 grows by a day; its job is killed at random steps and repeated: the set has each day once.

    python -m pytest -m soak tests/sets/test_daily_append.py

does so for 400 days.
"""

from __future__ import annotations

import random
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refshard_fs
from tests.servers.s3 import SeaweedServer
from tests.support.appended_daily import make_options
from tests.support.killed import NEVER, DeadlyProxy, Jobs
from tests.support.set_files import make_plain_file, read_days

SCRIPT = Path(__file__).parents[1] / "support/appended_daily.py"
pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL"),
    pytest.mark.filterwarnings("ignore::refshard_fs.CostlyPattern"),
]
Append = Callable[[str, str, int], tuple[int | None, int]]


@pytest.fixture(scope="module")
def proxy(s3_server: SeaweedServer) -> Iterator[DeadlyProxy]:
    s3_server.create_bucket("daily")
    with DeadlyProxy(s3_server.endpoint_url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def appending(proxy: DeadlyProxy) -> Iterator[Append]:
    """Append in a process that is killed at a step; return the growth of the set (None: killed), and the steps."""
    with Jobs(SCRIPT, proxy) as jobs:

        def append(url: str, day: str, last: int) -> tuple[int | None, int]:
            grown, steps = jobs.run([url, day, proxy.url], last)
            assert grown in (None, 0, 1), grown
            return grown, steps

        yield append


def grow(append: Append, server: SeaweedServer, kind: str, count: int, seed: int) -> str:
    """Append ``count`` days to a set, by jobs that are killed and run again; return a summary of the run."""
    chance = random.Random(seed)
    folder = uuid.uuid4().hex
    how: Any = make_options(server.endpoint_url)
    days = [server.put(f"daily/{folder}/{n:03d}.nc", make_plain_file(n)) for n in range(count + 1)]
    url = f"s3://daily/{folder}/all.{kind}"
    first = refshard_fs.concat(days[:1], "time", lazy=kind == "refshard", **how)
    first.save(url, **how["target_options"])

    def check(number: int) -> bool:
        """Return whether the set has the day ``number``; all days before must be there, each once."""
        found = read_days_of_set()
        assert found in (list(range(number)), list(range(number + 1))), f"torn at day {number}: {found}"
        return len(found) == number + 1

    def read_days_of_set() -> list[int]:
        fs = refshard_fs.RefShardFileSystem(url, skip_instance_cache=True, **how)
        found = read_days(fs)
        last = fs.cat_file(f"t/{len(found) - 1}.0")
        assert np.frombuffer(last, ">f4")[0] == found[-1], "the chunk of the last day exists"
        return found

    steps, killed, repeated = 60, 0, 0
    for number in range(1, count + 1):
        has = False
        while not has:
            last = chance.randrange(steps) if chance.random() < 0.6 else NEVER
            grown, took = append(url, days[number], last)
            if grown is None:
                killed += 1
            elif last == NEVER:
                steps = took
            has = check(number)
            assert has or grown is None, "a job that was not killed has appended its day"
        while chance.random() < 0.3:
            grown, _ = append(url, days[chance.randrange(max(number - 2, 0), number + 1)], NEVER)
            repeated += 1
            assert grown == 0
            assert check(number)
    fs = refshard_fs.RefShardFileSystem(url, skip_instance_cache=True, **how)
    shown = [float(np.frombuffer(data, ">f4")[0]) for data in fs.cat([f"t/{n}.0" for n in range(count + 1)]).values()]
    assert sorted(shown) == list(range(count + 1))
    return f"{count} days in a .{kind} set, {killed} jobs killed, {repeated} run again for nothing"


@pytest.mark.parametrize("kind", ["refshard", "json"])
def test_killed_and_repeated_daily_job_leaves_each_day_once(
    appending: Append, s3_server: SeaweedServer, kind: str
) -> None:
    print(grow(appending, s3_server, kind, 2, 3))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["refshard", "json", "parquet"])
def test_four_hundred_days_are_appended_once_each(appending: Append, s3_server: SeaweedServer, kind: str) -> None:
    print(grow(appending, s3_server, kind, 400, 1))
