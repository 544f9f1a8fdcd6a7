"""The code blocks of a Markdown document: what they are, and, as a program, all of them run in order.

    python tests/support/documents.py README.md '{"https://host/": "http://127.0.0.1:1234/"}'

runs the Python blocks in one namespace (with ``await`` at the top level, as in a notebook) and the shell blocks in the
working directory, writes those as files that a comment (``<!-- file: NAME -->``) names, and prints a line for each.
The mapping says what stands behind the placeholders of the document. A block of a language that it does not know
is an error: none is passed over in silence.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Block", "blocks", "made_by_ci"]

_FENCED = re.compile(r"^(?:<!-- file: (\S+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, its text, the line of the document that this begins at, and the file that it is."""

    language: str
    text: str
    line: int
    file: str | None


def blocks(markdown: str) -> list[Block]:
    """Return the fenced blocks of a document in their order."""
    return [
        Block(found[2], found[3], markdown.count("\n", 0, found.start(3)) + 1, found[1])
        for found in _FENCED.finditer(markdown)
    ]


def made_by_ci(block: Block) -> bool:
    """Whether the block makes an environment of its own and installs into it: ``.ci/run`` runs these in clones."""
    return block.language == "sh" and " -m venv " in block.text


def main(document: Path, places: dict[str, str]) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    loop = asyncio.new_event_loop()
    for block in blocks(document.read_text()):
        text = block.text
        for placeholder, place in places.items():
            text = text.replace(placeholder, place)
        where = f"{document.name}:{block.line}"
        if block.file is not None:
            Path(block.file).write_text(text)
        match block.language:
            case "sh" if made_by_ci(block):
                print(f"{where}: left to .ci/run", flush=True)
                continue
            case "sh":
                subprocess.run(["bash", "-euo", "pipefail", "-c", text], check=True)
            case "python":
                lines = "\n" * (block.line - 1) + text  # so that a traceback names the document's line
                code = compile(lines, document.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                result = eval(code, namespace)
                if inspect.iscoroutine(result):
                    loop.run_until_complete(result)
            case "json":
                json.loads(text)
            case "text":
                pass  # a drawing, or what is printed
            case other:
                raise SystemExit(f"{where}: nobody knows how to run {other!r}")
        print(f"{where}: ran", flush=True)
    loop.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
