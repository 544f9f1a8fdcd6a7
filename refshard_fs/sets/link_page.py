"""List a folder of a web server by its page of links, as Apache, nginx and other servers make it. No I/O here."""

from __future__ import annotations

import html
import re
from typing import Final
from urllib.parse import unquote, urljoin

from refshard_fs.core.model import Listed

_LINK: Final = re.compile(rb"""<a\s[^>]*?\bhref\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)


def parse_link_page(page: bytes, folder: str) -> tuple[Listed, ...] | None:
    """Return the members of ``folder``, whose URL ends with a slash, that its HTML ``page`` links to.

    The result is None if the page is not HTML. Only links to direct members count: none to other servers and other
    folders, and none with a query, which sort the page. A link that ends with a slash is a folder. Names are spelled as
    in URLs.

    >>> parse_link_page(b'<a href="../">up</a> <a href="?C=N;O=D">Name</a> <a href="a%20b.nc">a b</a>', "https://h/d/")
    (Listed(name='a%20b.nc', size=None, is_directory=False, etag=None, last_modified=None),)
    """
    if page.lstrip()[:1] != b"<":
        return None
    found: dict[str, Listed] = {}
    for match in _LINK.finditer(page):
        link = html.unescape((match[1] or match[2] or match[3] or b"").decode("utf-8", "replace")).strip()
        try:
            url = urljoin(folder, link)
        except ValueError:  # the brackets of a host contain no address
            continue
        name, slash, rest = url.removeprefix(folder).partition("/")
        is_member = url.startswith(folder) and not rest and name and not re.search(r"[?#]", name)
        if is_member and unquote(name) not in (".", ".."):
            found[name] = Listed(name, None, bool(slash))
    return tuple(found.values())
