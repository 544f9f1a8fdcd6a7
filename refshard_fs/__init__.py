"""Reference manifests and shard indexes as plain zarr chunks, for any fsspec-aware tool.

The filesystem is imported at its first use: who merely has this package installed, or catches its errors, waits for
nothing.
"""

from typing import TYPE_CHECKING, Any

from refshard_fs.errors import (
    ConflictError,
    DamagedIndex,
    ManifestError,
    NotListable,
    ReferenceNotReachable,
    RefShardError,
    SourceNotReachable,
    TargetChanged,
    TargetNotAllowed,
    UnknownSource,
)

if TYPE_CHECKING:
    from refshard_fs.fs import RefShardFileSystem, replace_reference_filesystem
    from refshard_fs.tuning import tune_zarr

__version__ = "0.1.0"

__all__ = [
    "ConflictError",
    "DamagedIndex",
    "ManifestError",
    "NotListable",
    "RefShardError",
    "RefShardFileSystem",
    "ReferenceNotReachable",
    "SourceNotReachable",
    "TargetChanged",
    "TargetNotAllowed",
    "UnknownSource",
    "replace_reference_filesystem",
    "tune_zarr",
]


def __getattr__(name: str) -> Any:
    match name:
        case "RefShardFileSystem" | "replace_reference_filesystem":
            from refshard_fs import fs as module  # at first use: see above
        case "tune_zarr":
            from refshard_fs import tuning as module
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
