"""What a check finds, as values: each finding, how many there are of each kind, and what was looked at."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from refshard_fs.errors import DamagedIndex, ManifestError, NotListable, TargetChanged, TargetNotAllowed, redacted

__all__ = ["CheckMode", "Finding", "Findings", "Report", "SHOWN"]

CheckMode = Literal["head", "read", "full"]

SHOWN: Final = 10  # findings of one kind that are reported one by one


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong (``error``) or looks wrong (``warning``); ``key`` and ``url`` say where."""

    severity: Literal["error", "warning"]
    kind: str
    key: str
    url: str
    text: str


class Report(msgspec.Struct, frozen=True):
    """What a check found. ``counts`` has all findings by kind, ``findings`` the first of each kind.

    ``missing`` chunks are no errors: readers see the fill value. ``notes`` say what could not be checked, and why.
    """

    mode: CheckMode
    findings: tuple[Finding, ...]
    counts: dict[str, int]
    keys: int = 0
    arrays: int = 0
    chunks: int = 0
    missing: int = 0
    targets: int = 0
    read: int = 0
    bytes_read: int = 0
    decoded: int = 0
    notes: tuple[str, ...] = ()

    @property
    def has_errors(self) -> bool:
        """Whether anything is wrong, not only odd."""
        return any(finding.severity == "error" for finding in self.findings)


class Findings:
    """Findings as they come: all are counted, the first of each kind are kept. Nothing that gives access is."""

    def __init__(self) -> None:
        self.shown: list[Finding] = []
        self.counts: dict[str, int] = {}

    def add_error(self, key: str, error: Exception, kind: str = "unreadable", url: str = "") -> None:
        """Take in what ``error`` says; ``kind`` where its type does not tell more."""
        match error:
            case TargetNotAllowed():
                kind, url, text = "not-allowed", error.url, f"{error.rule}. {error.remedy}"
            case TargetChanged():
                kind, url, text = "changed", error.target, error.reason
            case NotListable():
                kind, text = "not-listable", str(error)
            case DamagedIndex():
                kind, url, text = "index", error.target, error.reason
            case ManifestError():
                kind, text = "metadata" if kind == "metadata" else "reference", str(error)
            case _:
                text = f"{type(error).__name__}: {error}"
        self.add("error", kind, key, url, text)

    def add(
        self, severity: Literal["error", "warning"], kind: str, key: str = "", url: str = "", text: str = ""
    ) -> None:
        """Take in one finding; the first of each kind are kept."""
        self.count(kind, 1)
        if self.counts[kind] <= SHOWN:
            self.shown.append(Finding(severity, kind, key, redacted(url[:1000]), redacted(text)))

    def report(self, mode: CheckMode, **figures: Any) -> Report:
        """Return what was found, errors first, with the ``figures`` of what was looked at."""
        return Report(mode, tuple(sorted(self.shown, key=lambda finding: finding.severity)), self.counts, **figures)

    def count(self, kind: str, more: int) -> None:
        """Count ``more`` findings that are not kept."""
        if more > 0:
            self.counts[kind] = self.counts.get(kind, 0) + more
