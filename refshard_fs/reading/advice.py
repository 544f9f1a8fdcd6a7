"""What a failed read means to somebody who has never seen this package: what happened, and what can be done. No I/O."""

from __future__ import annotations

from typing import Final

from refshard_fs.targets.failures import ConnectionLost, Denied, TooLarge, Unfit

__all__ = ["READING", "said"]

READING: Final = "on reading "  # a note on an error that begins so says where, not what

_ANON: Final = "public object stores take {'anon': True}"
_CREDENTIALS: Final = f"Credentials go into remote_options= or options={{'PROTOCOL://BUCKET/': {{...}}}}; {_ANON}"
_OF_SOURCE: Final = f"Credentials of the source itself go into target_options=; {_ANON}"
_GONE: Final = (
    "The object is gone, or was never there: `refshard check` finds all that are missing, `refshard rebase` follows "
    "those that have moved"
)
_OTHER: Final = (
    "The object is not the one that the references were made for, or they are wrong: `refshard check` compares all"
)
_HOST: Final = "Is the host right, up, and reachable from here?"
_PROTOCOL: Final = "Is the package installed that adds this protocol to fsspec?"


def said(error: BaseException, *, of_source: bool = False) -> str:
    """Return what happened, and what to do, as one line; ``of_source``: to the source itself, and no target of it."""
    is_ours = type(error).__module__.startswith("refshard_fs.")  # its name says no more than its text
    text = f"{error}" if is_ours and str(error) else f"{type(error).__name__}: {error}".rstrip(": ")
    notes: list[str] = getattr(error, "__notes__", [])
    reason = "; ".join([text, *(note for note in notes if not note.startswith(READING))])
    advice = _advice(error, of_source=of_source)
    return f"{reason.rstrip('.')}. {advice}" if advice else reason


def _advice(error: BaseException, *, of_source: bool) -> str:
    text = str(error)
    match error:
        case Denied() | PermissionError():
            return _OF_SOURCE if of_source else _CREDENTIALS
        case IsADirectoryError():
            return "" if of_source else "It is a directory, and references point to files"
        case FileNotFoundError():
            return "" if of_source else _GONE
        case TooLarge(most=most):
            return f"Documents of unknown length are read up to max_manifest_bytes={most}: more if you trust it"
        case Unfit() if "the object has" in text:
            return "" if of_source else _OTHER
        case ConnectionLost():
            return _HOST
        case ValueError() if "Protocol not known" in text:
            return _PROTOCOL
    if "NoCredentialsError" in text:
        return _OF_SOURCE if of_source else _CREDENTIALS
    return _HOST if "Cannot connect to host" in text else ""
