"""Reference sets, NetCDF and other files of arrays, archives and shards as plain zarr chunks.

`RefShardFileSystem` is an fsspec filesystem, ``engine="refshard"`` opens sources in xarray, and `concat`, `append`,
`snapshot`, `rebase` and `check` make and check sets. Names are imported at their first use, so that having this package
installed, or catching its errors, costs no time.
"""

import importlib
from typing import TYPE_CHECKING, Any

from refshard_fs.errors import (
    ConflictError,
    CostlyPattern,
    DamagedIndex,
    DivisionByZero,
    ManifestError,
    NoSuchSource,
    NotListable,
    NotYetThere,
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
    from refshard_fs.obspec_store import ObspecStore
    from refshard_fs.serving import asgi
    from refshard_fs.sets.append import append
    from refshard_fs.sets.concat import concat
    from refshard_fs.sets.cube import cube, open
    from refshard_fs.sets.lazy_set import LazySet
    from refshard_fs.sets.made_set import MadeSet
    from refshard_fs.sets.rebase import rebase
    from refshard_fs.sets.snapshot import snapshot
    from refshard_fs.tools.check import Finding, Report, check
    from refshard_fs.tools.diff import Changes, Difference, DocumentChange
    from refshard_fs.tools.info import ArraySummary, Node, Summary, Target, Targets
    from refshard_fs.tools.picture import Picture
    from refshard_fs.tuning import tune_zarr
    from refshard_fs.universal_path import RefShardPath
    from refshard_fs.xarray_backend import RefShardBackend, load
    from refshard_fs.zarr_store import Store

__version__ = "0.1.0"

__all__ = [
    "ArraySummary",
    "Changes",
    "ConflictError",
    "CostlyPattern",
    "DamagedIndex",
    "Difference",
    "DivisionByZero",
    "DocumentChange",
    "Finding",
    "LazySet",
    "MadeSet",
    "ManifestError",
    "NoSuchSource",
    "Node",
    "NotListable",
    "NotYetThere",
    "ObspecStore",
    "Picture",
    "ReadOnlyError",
    "RefShardBackend",
    "RefShardError",
    "RefShardFileSystem",
    "RefShardPath",
    "ReferenceNotReachable",
    "Report",
    "SourceNotReachable",
    "Store",
    "Summary",
    "Target",
    "TargetChanged",
    "TargetNotAllowed",
    "Targets",
    "UnknownSource",
    "append",
    "asgi",
    "check",
    "concat",
    "cube",
    "load",
    "open",
    "rebase",
    "replace_reference_filesystem",
    "snapshot",
    "tune_zarr",
]


_NAMES = {  # the names that are imported at their first use, by module
    "fs": "RefShardFileSystem replace_reference_filesystem",
    "tuning": "tune_zarr",
    "obspec_store": "ObspecStore",
    "serving": "asgi",
    "sets.append": "append",
    "sets.concat": "concat",
    "sets.cube": "cube open",
    "sets.lazy_set": "LazySet",
    "sets.made_set": "MadeSet",
    "sets.rebase": "rebase",
    "sets.snapshot": "snapshot",
    "tools.check": "Finding Report check",
    "tools.diff": "Changes Difference DocumentChange",
    "tools.info": "ArraySummary Node Summary Target Targets",
    "tools.picture": "Picture",
    "universal_path": "RefShardPath",
    "xarray_backend": "RefShardBackend load",
    "zarr_store": "Store",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

_EXTRAS = {
    "xarray": '"refshard_fs[xarray]"',
    "starlette": '"refshard_fs[serve]"',
    "upath": '"refshard_fs[upath]"',
    "zarr": '"refshard_fs[zarr]"',
    "zarr.abc": '"zarr>=3.1"',
}  # the arguments of "pip install", by the name of the module that cannot be imported


def _import_name(name: str) -> Any:
    if name == "virtualizarr":  # a public module
        return importlib.import_module(f"{__name__}.{name}")
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as e:
        if e.name not in _EXTRAS:
            raise
        raise ImportError(f"{name} needs {e.name}: pip install {_EXTRAS[e.name]}") from e


if not TYPE_CHECKING:  # a type checker must report names that are not imported above
    __getattr__ = _import_name


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
