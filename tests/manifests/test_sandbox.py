"""Full jinja2 in a manifest's templates: what works, and that nothing gets out, hangs, or takes the memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refshard_fs.errors import ManifestError
from refshard_fs.formats.templates.templates import TemplateLimits, Templates, expand_gen
from tests.memory import taking

pytest.importorskip("jinja2")

DEFINITIONS = {"u": "s3://bucket/path", "f": "{{c}}", "month": "{% if m < 10 %}0{% endif %}{{m}}", "empty": ""}


@pytest.fixture
def templates() -> Templates:
    return Templates(DEFINITIONS, simple=False)


@pytest.fixture
def memory() -> Iterator[None]:
    """Fails a test that takes more than 64 MB."""
    with taking(64 << 20):
        yield


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("{{ 7 / 2 }} {{ 4 / 2 }} {{ 2 ** -1 }} {{ 1.5 + 1 }}", "3.5 2.0 0.5 2.5"),
        ("{{ u|upper }} {{ u.upper() }} {{ u[5:11] }} {{ u[0] }}", "S3://BUCKET/PATH S3://BUCKET/PATH bucket s"),
        ("{{ '%04d' % 3 }} {{ '%04d'|format(3) }} {{ '3'.zfill(4) }} {{ 3|string|length }}", "0003 0003 0003 1"),
        ("{{ '5'|int + 1 }} {{ (0 - 5)|abs }} {{ ' x '|trim }} {{ u.replace('/', '-') }}", "6 5 x s3:--bucket-path"),
        ("{{ 'a' if 1 < 2 else 'b' }}{{ 'c' if 1 > 2 }}{{ not 1 }}{{ 1 and 2 or 3 }}", "aFalse2"),
        ("{{ month(m=3) }} {{ month(m=11) }} {{ f(c=f(c='x')) }}", "03 11 x"),
        ("{% set a = 3 %}{{ a + 1 }}{% if a is odd %}!{% endif %}", "4!"),
        ("{% for i in [1, 2] %}{{ loop.index }}:{{ i }}{{ ',' if not loop.last }}{% endfor %}{{''}}", "1:1,2:2"),
        ("{% for c in 'abc' if c != 'b' %}{{ c }}{% endfor %}{{''}}", "ac"),
        ("{{ 'a' in ('a', 'b') }} {{ 'pa' in u }} {{ x is defined }} {{ x|default('y') }}", "True True False y"),
        ("{{- 'a' -}} {# comment #}{% raw %}{{u}}{% endraw %}\n", "a{{u}}\n"),
        ("{{ true }} {{ none is none }} {{ 4 is divisibleby(2) }} {{ '' |default('d', true) }}", "True True True d"),
    ],
)
def test_jinja_s_expressions_and_statements_work(templates: Templates, text: str, expanded: str) -> None:
    assert templates.expand(text) == expanded


def test_gen_may_have_statements(templates: Templates) -> None:
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


def test_all_of_a_gen_s_steps_are_bounded(templates: Templates) -> None:
    entry = {"key": "{{i}}{% for a in 'abcdefgh' %}{% endfor %}", "url": "u", "dimensions": {"i": {"stop": 100}}}
    assert len(list(expand_gen([entry], templates))) == 100
    held = Templates(DEFINITIONS, simple=False, limits=TemplateLimits(generated_steps=5_000))
    with pytest.raises(ManifestError, match="generated_steps"):
        list(expand_gen([entry], held))


ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ u['__class__'] }}",
    "{{ u[u] }}",
    "{{ 3[0] }}",
    "{{ u|attr('__class__') }}",
    "{{ u|map(attribute='__class__')|list }}",
    "{{ (1).__class__ }}",
    "{{ f.__globals__ }}",
    "{{ f.compiler }}",
    "{{ f.__call__.__globals__ }}",
    "{{ f }}",
    "{{ f ~ '' }}",
    "{{ f == f.compiler }}",
    "{{ self }}",
    "{{ self._TemplateReference__context }}",
    "{{ self['x'] }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ lipsum.__globals__['os'].popen('id') }}",
    "{{ joiner() }}",
    "{{ namespace(a=1) }}",
    "{{ range(3) }}",
    "{{ dict(a=1) }}",
    "{{ url_for() }}",
    "{{ get_flashed_messages }}",
    "{{ config }}",
    "{{ context }}",
    "{{ environment }}",
    "{{ caller() }}",
    "{{ super() }}",
    "{{ x.y }}",
    "{{ x() }}",
    "{{ '{0.__class__}'.format(u) }}",
    "{{ '{0.__class__}'|format(u) }}",
    "{{ '{a.__class__}'.format_map(f) }}",
    "{{ u.format }}",
    "{{ '%s' % f }}",
    "{{ '%(a)s' % {'a': 1} }}",
    "{{ u.encode() }}",
    "{{ u.join('ab') }}",
    "{{ u.translate(u) }}",
    "{{ u|safe }}",
    "{{ u|tojson }}",
    "{{ u|pprint }}",
    "{{ u|xmlattr }}",
    "{{ u|random }}",
    "{{ u|urlize }}",
    "{{ u|list }}",
    "{{ [u] }}",
    "{{ (u, u) }}",
    "{{ {'a': u} }}",
    "{{ [u] + [u] }}",
    "{{ [u] == [u] }}",
    "{{ f(*u) }}",
    "{{ f(**u) }}",
    "{{ f('a') }}",
    "{{ f(c=f) }}",
    "{{ u is filter }}",
    "{{ u is callable }}",
    "{% for i in u recursive %}{{ loop(u) }}{% endfor %}",
    "{% for i in u %}{{ loop }}{% endfor %}",
    "{% for i in u %}{{ loop._iterable }}{% endfor %}",
    "{% for i in u %}{{ loop.cycle(1) }}{% endfor %}",
    "{% for a, b in u %}{{ a }}{% endfor %}",
    "{% for i in f %}{{ i }}{% endfor %}",
    "{% for i in 5 %}{{ i }}{% endfor %}",
    "{% set a, b = u %}{{ a }}",
    "{% set f.x = 1 %}{{ u }}",
    "{% set a %}{{ u }}{% endset %}{{ a }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% call f() %}{% endcall %}{{ u }}",
    "{% filter upper %}{{ u }}{% endfilter %}",
    "{% block b %}{{ u }}{% endblock %}",
    "{% with a = 1 %}{{ a }}{% endwith %}",
    "{% autoescape true %}{{ u }}{% endautoescape %}",
    "{% include 'x' %}{{ u }}",
    "{% include ['/etc/passwd'] %}{{ u }}",
    "{% import '/etc/passwd' as o %}{{ o }}",
    "{% from 'os' import environ %}{{ environ }}",
    "{% extends '/etc/passwd' %}{{ u }}",
    "{% do u.x %}{{ u }}",
    "{% debug %}{{ u }}",
]


@pytest.mark.parametrize("text", ESCAPES)
def test_nothing_but_values_can_be_had(templates: Templates, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("REFSHARD_TEST_SECRET", "hunter2")
    with pytest.raises(ManifestError) as caught:
        templates.expand(text)
    assert os.environ["REFSHARD_TEST_SECRET"] not in str(caught.value)


RUNAWAYS = [
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ 9**9**9**9 }}",
    "{{ 2**64 }}",
    "{{ 9223372036854775807 + 1 }}",
    "{{ 2.0**5000 }}",
    "{{ (0-8)**0.5 }}",
    "{{ 1 // 0 }}",
    "{{ 0x" + "f" * 60_000 + " }}",
    "{{ " + "9" * 60_000 + " }}",
    "{{ '" + "9" * 60_000 + "'|int }}",
    "{{ '" + "9" * 40 + "'|int }}",
    "{{ '%999999999d' % 3 }}",
    "{{ '%999999999d'|format(3) }}",
    "{{ '%999999999d' is even }}",
    "{{ '%999999999d' is divisibleby(3) }}",
    "{{ '%.999999999f' % 3 }}",
    "{{ 'a'.rjust(10**9) }}",
    "{{ 'a'|center(10**9) }}",
    "{{ '3'.zfill(10**12) }}",
    "{{ ('a' * 3)|replace('', 'b') }}",
    "{% set a = '" + "x" * 300 + "' %}{{ a.replace('x', a).replace('x', a) }}",
    "{% set a = 'xxxxxxxx' %}" + "{% set a = a ~ a %}" * 40 + "{{ a }}",
    "{% set a = 'xxxxxxxx' %}" + "{% set a = a + a %}" * 40 + "{{ a }}",
    "{% set a = [1] %}" + "{% set a = [a, a] %}" * 60 + "{{ a }}",
    "{% for a in u %}" * 8 + "{% endfor %}" * 8 + "{{ u }}",
    "{% for a in u %}{% for b in u %}{{ u ~ u }}{% for c in u %}{{ u ~ u }}{% endfor %}{% endfor %}{% endfor %}",
    "{% set s = 'a' %}" + "{% set s = s ~ s %}" * 15 + "{% for a in s %}{{ s }}{% endfor %}",
    "{% set s = 'a' %}" + "{% set s = s ~ s %}" * 15 + "{% for a in s %}{{ s.upper()[0] }}{% endfor %}",
    "{% for a in u %}" * 30 + "{{ 1 }}" + "{% endfor %}" * 30,
    "{% if 1 %}" * 300 + "{{ 1 }}" + "{% endif %}" * 300,
    "{{" + "(" * 5_000 + "1" + ")" * 5_000 + "}}",
    "{{" + " not " * 5_000 + "1}}",
    "{{ " + "-" * 5_000 + "1}}",
    "{{" + "1+" * 5_000 + "1}}",
    "{{" + "u|" + "upper|" * 5_000 + "lower}}",
    "{{" + "1 if 1 else " * 5_000 + "1}}",
    "{{" + "[" * 5_000 + "]" * 5_000 + "}}",
    "{{" + "u~" * 20_000 + "u}}",
    "{{ u in (" + "1," * 20_000 + ") }}",
    "{{" + "1<" * 20_000 + "1}}",
    "{{ '" + "\\" * 9_999,
    "{%" * 10_000 + "{{",
    "{#" * 10_000 + "{{",
    "{{u}}" * 5_000,
    "{{u}}" + "x" * 66_000,
]


@pytest.mark.usefixtures("memory")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", RUNAWAYS, ids=[text[:40] for text in RUNAWAYS])
def test_nothing_runs_away(templates: Templates, text: str) -> None:
    with pytest.raises(ManifestError) as caught:
        templates.expand(text)
    assert len(str(caught.value)) < 700


def test_the_budget_has_no_name(templates: Templates) -> None:
    for name in ("the budget", "budget", "BUDGET"):
        with pytest.raises(ManifestError):
            templates.expand("{{ " + name + " }}")
    entry = {"key": "k", "url": "{{u}}", "dimensions": {"the budget": [1], "self": [2], "loop": [3]}}
    assert next(expand_gen([entry], templates))[1] == "s3://bucket/path"


WORDS = [
    *(
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "u",
        "f",
        "c",
        "x",
        "(",
        ")",
        "[",
        "]",
        ".",
        ",",
        "=",
        "==",
        "|",
        "~",
        "'",
        '"',
    ),
    *("+", "-", "*", "**", "/", "//", "%", "for", "in", "if", "else", "endif", "endfor", "set", "not", "is", "loop"),
    *("upper", "replace", "default", "1", "0", "9999999999", "'a'", "'%03d'", "__class__", "format", "f(c=1)"),
]


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(WORDS),
        max_size=25,
    ).map(" ".join)
)
def test_any_text_expands_or_is_a_manifest_error(text: str) -> None:
    with contextlib.suppress(ManifestError):
        assert isinstance(Templates(DEFINITIONS, simple=False).expand("{{ u }}" + text), str)
