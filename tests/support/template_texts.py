"""Reference sets with templates, and their expansions."""

from __future__ import annotations

from refshard_fs.formats.templates.templates import Templates, expand_gen

DEFINITIONS = {
    "u": "s3://bucket/path",
    "f": "{{c}}",
    "year": "{{u}}/{{y}}.nc",
    "padded": "{{ 'f%03d' % i }}",
    "both": "{{ year(y=a + 1) }}?{{f(c='x')}}",
    "my-url v1.0": "http://host",
    "empty": "",
    "braces": "a{b}c}}",
}


def _hole(expression: str) -> str:
    return "{{" + expression + "}}"


def generated(templates: Templates, text: str, **variables: int) -> str:
    """Return what ``text`` expands to as a key of a `gen` with dimensions of one value each."""
    entry = {"key": text, "url": "u", "dimensions": {name: [value] for name, value in variables.items()}}
    return next(expand_gen([entry], templates))[0]
