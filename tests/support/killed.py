"""Run jobs that write to S3 in processes, and kill each at a request, with a proxy that counts requests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from aiobotocore.session import AioSession

from tests.servers.log import Request
from tests.servers.models import share_models
from tests.servers.proxy import CountingProxy
from tests.servers.wire import Answer, Head, failure

__all__ = ["NEVER", "DeadlyProxy", "Jobs", "serve", "wait_to_begin"]

NEVER = 10**6  # a request that no job reaches, so that it is not killed


class DeadlyProxy(CountingProxy):
    """Kills the process ``victim`` at the request number ``last`` // 2: before it is passed on, or, if odd, after."""

    victim: int | None = None
    last = 0
    count = 0

    def aim(self, victim: int, last: int) -> None:
        self.victim, self.last, self.count = victim, last, 0

    async def answer(self, head: Head, body: bytes, request: Request) -> Answer:
        number, victim = self.count, self.victim
        self.count += 1
        if victim is None or number < self.last // 2:
            return await super().answer(head, body, request)
        if number == self.last // 2 and self.last % 2:
            await super().answer(head, body, request)
        if number == self.last // 2:
            os.kill(victim, signal.SIGKILL)
        return failure(503)  # concurrent requests of the killed process must not arrive


class Jobs:
    """Runs jobs, each in a process that ``script`` forks, and that ``proxy`` kills at a step. See `serve`."""

    def __init__(self, script: Path, proxy: DeadlyProxy) -> None:
        self._script = script
        self._proxy = proxy

    def __enter__(self) -> Self:
        command = [sys.executable, str(self._script)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(self, arguments: list[str], last: int) -> tuple[int | None, int]:
        """Run a job until it ends, or until its step ``last``; return its status (None: killed) and its steps."""
        victim = self._say(json.dumps(arguments))
        assert victim.isdigit(), victim
        self._proxy.aim(int(victim), last)
        said = self._say("go")
        steps, self._proxy.victim = 2 * self._proxy.count, None
        assert said == "dead" or said.startswith("done "), said
        return (None if said == "dead" else int(said.removeprefix("done "))), steps

    def _say(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()


def serve(job: Callable[..., int]) -> None:
    """Be a script: for each line of standard input, a JSON list of arguments, call ``job`` with them in a fork.

    Each fork prints its process id. At its end, this process prints "done" and its status, or "dead" if it was killed.
    """
    warnings.simplefilter("ignore")
    share_models(pytest.MonkeyPatch())
    asyncio.run(_make_a_client())  # so that forks have botocore's service models in memory
    while line := sys.stdin.readline():
        child = os.fork()
        if not child:
            status = 100
            try:
                status = job(*json.loads(line))
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print("dead" if os.WIFSIGNALED(status) else f"done {os.WEXITSTATUS(status)}", flush=True)


def wait_to_begin() -> None:
    """Print the process id, and wait for a line of standard input."""
    print(os.getpid(), flush=True)
    os.read(sys.stdin.fileno(), 100)


async def _make_a_client() -> None:
    async with AioSession().create_client("s3", region_name="us-east-1"):
        pass
