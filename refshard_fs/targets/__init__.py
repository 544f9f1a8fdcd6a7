"""Where bytes come from. This package alone opens filesystems; all above it speak URLs and byte ranges."""

from refshard_fs.targets.answer import Answer, Target, check, check_size
from refshard_fs.targets.credentials import Given, PoolOptions
from refshard_fs.targets.failures import Retry, TooLarge, Unfit
from refshard_fs.targets.obspec import ObjectStore, Registry, StoreFileSystem, is_store, stores_of, urls_of
from refshard_fs.targets.pool import Pool, arguments_of
from refshard_fs.targets.versioned import IGNORES_RANGES, Versions, seconds, strong

__all__ = [
    "IGNORES_RANGES",
    "Answer",
    "Given",
    "ObjectStore",
    "Pool",
    "PoolOptions",
    "Registry",
    "Retry",
    "StoreFileSystem",
    "Target",
    "TooLarge",
    "Unfit",
    "Versions",
    "arguments_of",
    "check",
    "check_size",
    "is_store",
    "seconds",
    "stores_of",
    "strong",
    "urls_of",
]
