"""Find the code blocks of a Markdown document, and, as a program, run them in order.

    python tests/support/documents.py README.md '{"https://host/": "http://127.0.0.1:1234/"}'

The program runs the Python blocks in one namespace (with ``await`` at the top level, as in a notebook) and the shell
blocks in the working directory. It writes a block after a comment ``<!-- file: NAME -->`` to this file. For each block
it prints a line. The mapping replaces placeholders in the document. A block in an unknown language is an error.
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

__all__ = ["Block", "list_blocks", "is_run_in_clone"]

_FENCED = re.compile(r"^(?:<!-- file: (\S+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, its text, the first line of the text in the document, and the file to write."""

    language: str
    text: str
    line: int
    file: str | None


def list_blocks(markdown: str) -> list[Block]:
    """Return the fenced blocks of a document in order."""
    return [
        Block(found[2], found[3], markdown.count("\n", 0, found.start(3)) + 1, found[1])
        for found in _FENCED.finditer(markdown)
    ]


def is_run_in_clone(block: Block) -> bool:
    """Return whether the block installs into a new virtual environment; ``.ci/run`` runs such blocks in clones."""
    return block.language == "sh" and " -m venv " in block.text


def main(document: Path, places: dict[str, str]) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    loop = asyncio.new_event_loop()
    for block in list_blocks(document.read_text()):
        text = block.text
        for placeholder, place in places.items():
            text = text.replace(placeholder, place)
        where = f"{document.name}:{block.line}"
        if block.file is not None:
            Path(block.file).write_text(text)
        match block.language:
            case "sh" if is_run_in_clone(block):
                print(f"{where}: left to .ci/run", flush=True)
                continue
            case "sh":
                subprocess.run(["bash", "-euo", "pipefail", "-c", text], check=True)
            case "python":
                lines = "\n" * (block.line - 1) + text  # a traceback then names the line of the document
                code = compile(lines, document.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                result = eval(code, namespace)
                if inspect.iscoroutine(result):
                    loop.run_until_complete(result)
            case "json":
                json.loads(text)
            case "text":
                pass  # a drawing, or printed output
            case other:
                raise SystemExit(f"{where}: expected a block in sh, python, json or text, found {other!r}")
        print(f"{where}: ran", flush=True)
    loop.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
