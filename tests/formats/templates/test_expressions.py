"""Expressions in templates have the values of jinja2, and other syntax is refused."""

from __future__ import annotations

import contextlib
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refshard_fs.errors import ManifestError
from refshard_fs.formats.templates.templates import Templates
from tests.support.template_texts import DEFINITIONS, expand_key, put_in_braces


@pytest.fixture(params=[True, False], ids=["simple", "jinja"])
def simple(request: pytest.FixtureRequest) -> bool:
    if not request.param:
        pytest.importorskip("jinja2")
    return bool(request.param)


@pytest.fixture
def templates(simple: bool) -> Templates:
    return Templates(DEFINITIONS, simple=simple)


BOTH_MODES = [
    ("no holes", "no holes"),
    ("a { b } c %7B}}", "a { b } c %7B}}"),
    ("{{u}}", "s3://bucket/path"),
    ("{{ u }}/{{u}}x", "s3://bucket/path/s3://bucket/pathx"),
    ("http://{{f(c='text')}}", "http://text"),
    ('{{ f( c = "te\'x\\"t" ) }}', "te'x\"t"),
    ("{{ f(c=u) }}", "s3://bucket/path"),
    ("{{ f(c=3*4) }}", "12"),
    ("{{ f(c=f(c=f(c='deep'))) }}", "deep"),
    ("{{ f(c=1, d=2,) }}", "1"),
    ("{{ year(y=1999) }}", "s3://bucket/path/1999.nc"),
    ("{{ both(a=6) }}", "s3://bucket/path/7.nc?x"),
    ("{{ padded(i=7) }}", "f007"),
    ("{{ '%04d' % 12 }} {{ '%4d%%' % 12 }} {{'%d'%1}} {{ 'a%02db' % -5 }}", "0012   12% 1 a-5b"),
    ("{{ u ~ '/' ~ 4 ~ 'x' }}", "s3://bucket/path/4x"),
    ("{{ u + '/x' }}", "s3://bucket/path/x"),
    ("{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ 7 % 4 }} {{ 2 ** 10 }}", "7 9 3 3 1024"),
    ("{{ -7 // 2 }} {{ -7 % 4 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 1 ~ 2 * 3 }}", "-4 1 64 4 16"),
    ("{{ 1_000 + 00 }}{{empty}}{{ '' }}", "1000"),
    ("{{ '}}' }}{{ '{{' }}", "}}{{"),
    ("{{ 'a\\n\\t\\\\' }}", "a\n\t\\"),
    ("{{braces}}", "a{b}c}}"),
    ("é {{ 'ü' }} 日本", "é ü 日本"),
    ("{{ 9223372036854775807 }}", "9223372036854775807"),
    ("{{\n  u\n}}\n", "s3://bucket/path\n"),
]


@pytest.mark.parametrize(("text", "expanded"), BOTH_MODES)
def test_texts_expand_alike_with_and_without_jinja(templates: Templates, text: str, expanded: str) -> None:
    assert templates.expand(text) == expanded
    assert templates.expand(text) == expanded


REFUSED = [
    ("{{missing}}", "no template or variable 'missing'; expected one of: both, "),
    ("{{f}}", "no template or variable 'c'; expected a template or an argument"),
    ("{{f()}}", r"template 'f' '\{\{c\}\}', column 3: there is no template or variable 'c'"),
    ("{{u.upper()}}", r"column 4: '\.upper' is not allowed"),
    ("{{u.__class__}}", "column 4: .*not allowed"),
    ("{{''.__class__.__mro__}}", "not allowed"),
    ("{{f.__globals__}}", "not allowed"),
    ("{{u[0]}}", r"'\[' is not allowed"),
    ("{{u|upper}}", r"'\|' is not allowed"),
    ("{{u!r}}", "'!' is not allowed"),
    ("{{u:>9999999999}}", "':' is not allowed"),
    ("{{0.5}}", "not allowed"),
    ("{{1e9}}", "not allowed"),
    ("{{007}}", "not allowed"),
    ("{{ {'a': 1} }}", "not allowed"),
    ("{{ lambda: 1 }}", "not expected|not allowed"),
    ("{{ a b }}", "unexpected 'b'"),
    ("{{ range(9) }}", "expected a keyword argument"),
    ("{{ __import__(name='os') }}", "no template or variable '__import__'"),
    ("{{ cycler }}{{ lipsum }}{{ self }}", "no template or variable 'cycler'"),
    ("{{f('a')}}", "expected a keyword argument"),
    ("{{f(c='a', c='b')}}", "twice"),
    ("{{f(c=)}}", "unexpected"),
    ("{{f(c='a'", "expected '}}' after"),
    ("{{f(c='a'}}", "ends too early"),
    ("{{}}", "column 3: an expression ends too early"),
    ("{{ ", "expected '}}' after"),
    ("{{ 1", "expected '}}' after"),
    ("{{ 'a }}", "at the end of a quoted text"),
    ("{{ 'a\\x41' }}", "expected one of the escapes"),
    ("{{-1}}", "put a space"),
    ("{{+1}}", "put a space"),
    ("{{ 1 +}}", "too early"),
    ("{{ (1 }}", "too early"),
    ("{{ 1) }}", r"unexpected '\)'"),
    ("{{ i = 1 }}", "unexpected '='"),
    ("{{ u + 1 }}", "'~' joins texts"),
    ("{{ -u }}", "expected two integers"),
    ("{{ 'a' * 1000000000 }}", "expected two integers"),
    ("{{ 1 / 2 }}", "use '//'"),
    ("{{ 1 // 0 }}", "division by zero"),
    ("{{ 1 % 0 }}", "division by zero"),
    ("{{ 2 ** -1 }}", "an exponent of at least 0"),
    ("{{ 2 ** 63 }}", "64 bits"),
    ("{{ 9 ** 9 ** 9 ** 9 }}", "64 bits"),
    ("{{ 9223372036854775807 + 1 }}", "64 bits"),
    ("{{ 99999999999999999999 }}", "64 bits"),
    ("{{ " + "9" * 60_000 + " }}", "64 bits"),
    ("{{ '%s' % 1 }}", "expected one %d"),
    ("{{ '%999d' % 1 }}", "expected one %d"),
    ("{{ '%d %d' % 1 }}", "expected one %d"),
    ("{{ '%(a)d' % 1 }}", "expected one %d"),
    ("{{ '%*d' % 1 }}", "expected one %d"),
    ("{{ '%d' % u }}", "expected two integers"),
    ("{{ u % 1 }}", "expected one %d"),
    ("{% for i in u %}{{u}}{% endfor %}", "only with simple_templates=False"),
    ("{{u}}{# comment #}", "only with simple_templates=False"),
    ("{{" + "(" * 100 + "1" + ")" * 100 + "}}", "nested too deeply"),
    ("{{ " + "- " * 1000 + "1}}", "nested too deeply"),
    ("{{ " + "1+" * 1000 + "1}}", "operands and operators"),
    ("{{ " + "f(c=" * 100 + "1" + ")" * 100 + "}}", "nested too deeply"),
    ("{{u}}" + "x" * 70_000, "expected at most 65536"),
    ("{{u}}" * 5_000, "expected at most 65536"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED, ids=[text[:40] for text, _ in REFUSED])
def test_error_of_unsupported_syntax_has_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ManifestError, match=reason) as caught:
        Templates(DEFINITIONS).expand(text)
    assert len(str(caught.value)) < 600


def test_errors_quote_long_texts_in_part() -> None:
    name = "n" * 5_000
    for text in (put_in_braces(name), put_in_braces(f"f(c={name})"), "{{" + name):
        with pytest.raises(ManifestError) as caught:
            Templates({"f": "{{c}}", name + "x": "{{ 1"}).expand(text)
        assert len(str(caught.value)) < 1000


def test_error_without_jinja2_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"refshard_fs\[jinja\]"):
        Templates({}, simple=False)
    assert Templates({"u": "a"}).expand("{{u}}") == "a"


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> str:
    form = draw(st.integers(0, 8 if depth else 3))
    if form == 0:
        return str(draw(st.integers(0, 50)))
    if form == 1:
        text = draw(st.text("ab%'\\\"\n {}", max_size=4))
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
    if form <= 3:
        return draw(st.sampled_from(["i", "j", "u"]))
    inner = draw(expressions(depth - 1))
    if form == 4:
        return f"({inner})"
    if form == 5:
        return f"- {inner}"
    if form == 6:
        return f"f(c={inner})"
    if form == 7:
        return f"'%03d' % {inner}"
    operator = draw(st.sampled_from(["+", "-", "*", "//", "%", "**", "~"]))
    return f"{inner} {operator} {draw(expressions(depth - 1))}"


@given(st.lists(st.one_of(expressions().map(lambda text: "{{ " + text + " }}"), st.just("lit/")), max_size=3))
@example(["{{ - 1 ** j }}"])
def test_expansion_equals_jinja2(parts: list[str]) -> None:
    sandbox = pytest.importorskip("jinja2.sandbox")
    text = "".join(parts)
    definitions = {"u": "s3://b", "f": "{{c}}"}
    try:
        simple = expand_key(Templates(definitions), text, i=3, j=-4)
    except ManifestError:
        simple = None
    try:
        by_jinja = expand_key(Templates(definitions, simple=False), text, i=3, j=-4)
    except ManifestError:
        by_jinja = None
    # jinja's optimizer turns - 1 into -1 without parentheses, so that - 1 ** j differs from - i ** j if i is 1.
    for expanded, optimized in ((simple, False), (by_jinja, True)):
        if expanded is not None:
            environment = sandbox.SandboxedEnvironment(optimized=optimized)
            called = environment.from_string(definitions["f"]).render
            assert expanded == environment.from_string(text).render(u="s3://b", i=3, j=-4, f=called)


@given(st.text("{}()'\"%~+-*/= ,.ifcu0129_\\\n|[]é", max_size=40))
def test_random_texts_expand_or_are_manifest_errors(text: str) -> None:
    for definitions in ({"u": text, "f": "{{c}}"}, {"u": "x", "f": "{{" + text + "}}"}):
        for wanted in ("{{u}}", "{{" + text + "}}", "{{f(c=1)}}"):
            with contextlib.suppress(ManifestError):
                assert isinstance(expand_key(Templates(definitions), wanted, i=1), str)
