"""Read objects by URL and byte range. Only this package opens filesystems."""

from refshard_fs.targets.answer import Answer, Target, check, check_size
from refshard_fs.targets.credentials import InstanceOrOptions, PoolOptions
from refshard_fs.targets.failures import Retry, TooLarge, Unfit
from refshard_fs.targets.obspec import ObjectStore, Registry, StoreFileSystem, is_store, root_url_of, stores_of
from refshard_fs.targets.pool import Pool, arguments_of
from refshard_fs.targets.versioned import IGNORES_RANGES, Versions, parse_time, strong_etag

__all__ = [
    "IGNORES_RANGES",
    "Answer",
    "InstanceOrOptions",
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
    "parse_time",
    "stores_of",
    "strong_etag",
    "root_url_of",
]
