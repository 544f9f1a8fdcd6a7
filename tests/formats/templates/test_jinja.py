"""Templates of a trusted set, expanded by jinja2: its features, and the limits of its sandbox."""

from __future__ import annotations

import pytest

from refshard_fs.errors import ManifestError
from refshard_fs.formats.templates.expressions import TemplateLimits
from refshard_fs.formats.templates.templates import Templates, expand_gen

pytest.importorskip("jinja2")

DEFINITIONS = {"u": "s3://bucket/path", "f": "{{c}}", "month": "{% if m < 10 %}0{% endif %}{{m}}", "empty": ""}


@pytest.fixture
def templates() -> Templates:
    return Templates(DEFINITIONS, simple=False)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("{{ 7 / 2 }} {{ 4 / 2 }} {{ 2 ** -1 }} {{ 1.5 + 1 }}", "3.5 2.0 0.5 2.5"),
        ("{{ u|upper }} {{ u.upper() }} {{ u[5:11] }} {{ u[0] }}", "S3://BUCKET/PATH S3://BUCKET/PATH bucket s"),
        ("{{ '%04d' % 3 }} {{ '%04d'|format(3) }} {{ '3'.zfill(4) }} {{ 3|string|length }}", "0003 0003 0003 1"),
        ("{{ 'a' if 1 < 2 else 'b' }}{{ not 1 }}{{ 1 and 2 or 3 }}", "aFalse2"),
        ("{{ month(m=3) }} {{ month(m=11) }} {{ f(c=f(c='x')) }}", "03 11 x"),
        ("{% set a = 3 %}{{ a + 1 }}{% if a is odd %}!{% endif %}", "4!"),
        (
            "{% for i in range(2) %}{{ loop.index }}:{{ i }}{{ ',' if not loop.last else '' }}{% endfor %}{{''}}",
            "1:0,2:1",
        ),
        ("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('ab') }}", "abab"),
        ("{{- 'a' -}} {# comment #}{% raw %}{{u}}{% endraw %}\n", "a{{u}}\n"),
    ],
)
def test_jinja_expressions_and_statements_are_expanded(templates: Templates, text: str, expanded: str) -> None:
    assert templates.expand(text) == expanded


def test_gen_with_statements_is_expanded(templates: Templates) -> None:
    entry = {
        "key": "{% if i %}x{% endif %}/{{i}}",
        "url": "{{u}}/{{ month(m=i + 9) }}",
        "offset": "{{ i * 10 }}",
        "length": "{{ '%d' % i }}",
        "dimensions": {"i": {"stop": 3}},
    }
    assert list(expand_gen([entry], templates)) == [
        ("/0", "s3://bucket/path/09", 0, 0),
        ("x/1", "s3://bucket/path/10", 10, 1),
        ("x/2", "s3://bucket/path/11", 20, 2),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ u['__class__'].x }}",
        "{{ u|attr('__class__')() }}",
        "{{ f.__globals__.x }}",
        "{{ f.__code__.co_code }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ lipsum.__globals__['os'].popen('id') }}",
        "{{ '{0.__class__.__mro__}'.format(u) }}",
        "{{ environ }}",
        "{% include '/etc/passwd' %}{{ u }}",
        "{% import 'os' as o %}{{ o }}",
        "{{ missing }}",
        "{{ f() }}",
        "{{ 1 // 0 }}",
        "{{ u + 1 }}",
        "{{ ",
        "{{ range(10 ** 9) }}",
    ],
)
@pytest.mark.case(id="P13")
def test_jinja_errors_are_manifest_errors(templates: Templates, text: str) -> None:
    with pytest.raises(ManifestError) as caught:
        templates.expand(text)
    assert len(str(caught.value)) < 700


def test_expanded_text_is_limited(templates: Templates) -> None:
    with pytest.raises(ManifestError, match="expected at most 65536"):
        templates.expand("{{ 'x' * 70000 }}")
    with pytest.raises(ManifestError, match="expected at most 10"):
        Templates(DEFINITIONS, simple=False, limits=TemplateLimits(output=10)).expand("{{u}}")
