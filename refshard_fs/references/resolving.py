"""What the URLs of a manifest mean: absolute ones, of what is written. No I/O here."""

from __future__ import annotations

from collections.abc import Callable

from refshard_fs.core.format import OpenOptions
from refshard_fs.errors import ManifestError
from refshard_fs.security import policy

__all__ = ["resolver"]


def resolver(options: OpenOptions, directory: str | None) -> Callable[[str | None], str]:
    """Return how URLs of a manifest that lies in ``directory`` become absolute."""
    base = options.base_url if options.base_url is not None else directory

    def resolve(url: str | None) -> str:
        if url is None:
            if options.target is None:
                raise ManifestError("a reference without a URL needs target=, the URL it stands for")
            url = options.target
        if options.bare_as_is and options.base_url is None:
            return url
        if options.base_url is not None and policy.protocol_of(url) is None and not policy.is_absolute(url):
            return policy.relative_to(base or "", url)
        return policy.resolve(url, base, options.protocol)

    return resolve
