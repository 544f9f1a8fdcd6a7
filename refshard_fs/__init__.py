"""Reference manifests and shard indexes as plain zarr chunks, for any fsspec-aware tool.

The filesystem is imported at its first use: who merely has this package installed, or catches its errors, waits for
nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from refshard_fs.errors import (
    ConflictError,
    CostlyPattern,
    DamagedIndex,
    ManifestError,
    NotListable,
    ReadOnlyError,
    ReferenceNotReachable,
    RefShardError,
    SourceNotReachable,
    TargetChanged,
    TargetNotAllowed,
    UnknownSource,
)

if TYPE_CHECKING:
    from refshard_fs.fs import RefShardFileSystem, replace_reference_filesystem
    from refshard_fs.session.tuning import tune_zarr
    from refshard_fs.sets.append import append
    from refshard_fs.sets.concat import concat
    from refshard_fs.sets.rebase import rebase, snapshot
    from refshard_fs.tools.check import check
    from refshard_fs.xarray_backend import load

__version__ = "0.1.0"

__all__ = [
    "ConflictError",
    "CostlyPattern",
    "DamagedIndex",
    "ManifestError",
    "NotListable",
    "RefShardError",
    "RefShardFileSystem",
    "ReferenceNotReachable",
    "ReadOnlyError",
    "SourceNotReachable",
    "TargetChanged",
    "TargetNotAllowed",
    "UnknownSource",
    "append",
    "check",
    "concat",
    "load",
    "rebase",
    "replace_reference_filesystem",
    "snapshot",
    "tune_zarr",
]


_MODULES = {  # of what is imported at its first use
    "RefShardFileSystem": "fs",
    "append": "sets.append",
    "check": "tools.check",
    "concat": "sets.concat",
    "load": "xarray_backend",
    "rebase": "sets.rebase",
    "replace_reference_filesystem": "fs",
    "snapshot": "sets.rebase",
    "tune_zarr": "session.tuning",
}


def _at_first_use(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as e:
        if e.name != "xarray":
            raise
        raise ImportError(f'{name} needs xarray: pip install "refshard_fs[xarray]"') from e


if not TYPE_CHECKING:  # to a type checker, a name that is not imported above is a mistake
    __getattr__ = _at_first_use


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
