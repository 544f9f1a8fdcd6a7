"""Run code in another process, with a pickled filesystem of this process."""

from __future__ import annotations

import multiprocessing
import pickle
import warnings

from refshard_fs import RefShardFileSystem

# Where forks are possible, each new process is forked from a server that has imported large packages.
FRESH = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
multiprocessing.get_context(FRESH).set_forkserver_preload([__name__, "pytest", "numpy", "refshard_fs.writing.commit"])


def run_in_process(fs: RefShardFileSystem, code: str) -> None:
    """Run ``code`` in a new process, in which ``fs`` is the unpickled filesystem."""
    process = multiprocessing.get_context(FRESH).Process(target=_run_code, args=(pickle.dumps(fs), code))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def _run_code(pickled: bytes, code: str) -> None:
    warnings.simplefilter("error")
    fs = pickle.loads(pickled)
    assert fs.mode in ("a", "w")
    exec(code, {"fs": fs})
