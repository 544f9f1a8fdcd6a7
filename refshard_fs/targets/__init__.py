"""Where bytes come from. This package alone opens filesystems; all above it speak URLs and byte ranges."""

from refshard_fs.targets.answer import Answer, Target, check, hold
from refshard_fs.targets.failures import TooLarge, Unfit
from refshard_fs.targets.pool import Given, Pool, PoolOptions
from refshard_fs.targets.retry import Retry
from refshard_fs.targets.versions import Seen, Versions

__all__ = [
    "Answer",
    "Given",
    "Pool",
    "PoolOptions",
    "Retry",
    "Seen",
    "Target",
    "TooLarge",
    "Unfit",
    "Versions",
    "check",
    "hold",
]
