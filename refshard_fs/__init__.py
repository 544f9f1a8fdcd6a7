"""Reference manifests and shard indexes as plain zarr chunks, for any fsspec-aware tool."""

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
