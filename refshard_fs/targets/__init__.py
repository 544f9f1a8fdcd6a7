"""Read objects by URL and byte range. Only this package opens filesystems."""

from refshard_fs.targets.answer import Answer, Target, check, check_size
from refshard_fs.targets.credentials import InstanceOrOptions, PoolOptions
from refshard_fs.targets.failures import Retry, TooLarge, Unfit
from refshard_fs.targets.obspec import ObjectStore, Registry, StoreFileSystem, find_root_url, find_stores, is_store
from refshard_fs.targets.pool import Pool, list_argument_names
from refshard_fs.targets.versioned import IGNORES_RANGES, Versions, get_strong_etag, parse_time

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
    "list_argument_names",
    "check",
    "check_size",
    "is_store",
    "parse_time",
    "find_stores",
    "get_strong_etag",
    "find_root_url",
]
