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


def put_in_braces(expression: str) -> str:
    """Return a template of one expression."""
    return "{{" + expression + "}}"


def expand_key(templates: Templates, text: str, **variables: int) -> str:
    """Expand ``text`` as the key of an entry of `gen`, whose dimensions have one value each."""
    entry = {"key": text, "url": "u", "dimensions": {name: [value] for name, value in variables.items()}}
    return next(expand_gen([entry], templates))[0]
