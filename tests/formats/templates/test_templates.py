"""Templates and `gen` are expanded as by jinja2, within limits on time and memory."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs.errors import ManifestError
from refshard_fs.formats.templates.expressions import TemplateLimits
from refshard_fs.formats.templates.templates import Templates, expand_gen
from tests.support.memory import check_peak
from tests.support.template_texts import DEFINITIONS, expand_key, put_in_braces

pytestmark = pytest.mark.case(id="P17")

SHARED = Path(os.environ.get("REFSHARD_SHARED", Path(__file__).parents[4] / "shared"))


@pytest.fixture(params=[True, False], ids=["simple", "jinja"])
def simple(request: pytest.FixtureRequest) -> bool:
    if not request.param:
        pytest.importorskip("jinja2")
    return bool(request.param)


@pytest.fixture
def templates(simple: bool) -> Templates:
    return Templates(DEFINITIONS, simple=simple)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("{{my-url v1.0}}/a", "http://host/a"),  # fsspec accepts such names by default
        ("{{ my-url v1.0 }}", "http://host"),
        ("{{ u() }}", "s3://bucket/path"),
    ],
)
def test_names_with_spaces_and_calls_without_arguments_expand(text: str, expanded: str) -> None:
    assert Templates(DEFINITIONS).expand(text) == expanded


def test_text_without_placeholders_is_not_copied(templates: Templates) -> None:
    text = "http://host/{not}/a%20template"
    assert templates.expand(text) is text


def test_total_characters_of_expanded_texts_are_limited(simple: bool) -> None:
    templates = Templates({"u": "x" * 1000}, simple=simple, limits=TemplateLimits(expanded_text=10_000))
    assert [len(templates.expand("{{u}}" + str(number))) for number in range(9)] == [1001] * 9
    with pytest.raises(ManifestError, match="all its templates expand to .* expected at most 10000"):
        templates.expand("{{u}}9")


def test_total_operations_of_expanded_texts_are_limited() -> None:
    templates = Templates({"u": "x"}, limits=TemplateLimits(expanded_steps=1000))
    texts = ("{{u}}" * 50 + str(number) for number in range(100))
    with pytest.raises(ManifestError, match="operations or more: expected at most 1000"):
        list(map(templates.expand, texts))


def test_overrides_replace_and_add_templates(simple: bool) -> None:
    templates = Templates({"u": "a", "v": "{{u}}"}, {"u": "b", "w": "c"}, simple=simple)
    assert templates.expand("{{u}}{{v()}}{{w}}") == "bbc"


def test_template_does_not_see_a_variable_of_its_caller() -> None:
    templates = Templates({"t": "{{i}}"})
    assert expand_key(templates, "{{t(i=i)}}", i=3) == "3"
    with pytest.raises(
        ManifestError,
        match=r"no template or variable 'i'.*expected a template or an argument of 't': \{\{t\(i=\.\.\.\)\}\}",
    ):
        expand_key(templates, "{{t}}", i=3)


def test_template_that_uses_itself_is_refused(simple: bool) -> None:
    templates = Templates({"a": "{{b(x=1)}}", "b": "{{a(x=x)}}", "c": "{{ c(x=x) }}"}, simple=simple)
    for text in ("{{a(x=1)}}", "{{c(x=1)}}"):
        with pytest.raises(ManifestError, match=r"without a loop, found|uses itself"):
            templates.expand(text)


@pytest.mark.parametrize("seed", ["", "x" * 64])
def test_templates_that_double_each_other_are_refused(seed: str) -> None:
    definitions = {"t0": seed} | {f"t{n}": put_in_braces(f"t{n - 1}()") * 2 for n in range(1, 30)}
    definitions["t1"] = "{{t0}}{{t0}}"
    with (
        check_peak(32 << 20),
        pytest.raises(ManifestError, match=r"operations: expected at most 10000|expected at most 65536"),
    ):
        Templates(definitions).expand("{{t29()}}")


def test_templates_that_double_in_gen_are_refused() -> None:
    definitions = {"t0": "{{x}}"} | {
        f"t{n}": put_in_braces(f"t{n - 1}(x=x*2)") + put_in_braces(f"t{n - 1}(x=x)") for n in range(1, 30)
    }
    entry = {"key": "{{t29(x=i)}}", "url": "u", "dimensions": {"i": [1]}}
    with pytest.raises(ManifestError, match=r"gen\[0\].*(operations: expected at most 10000|expected at most 65536)"):
        expand_gen([entry], Templates(definitions))


def test_templates_that_nest_too_deep_are_refused() -> None:
    definitions = {"t0": "{{x}}"} | {f"t{n}": put_in_braces(f"t{n - 1}(x=x)" + " ~ 1" * 49) for n in range(1, 40)}
    templates = Templates(definitions)
    assert len(templates.expand("{{t10(x=1)}}")) == 491
    for text in ("{{t39(x=1)}}", "{{t39(x=i)}}"):
        with pytest.raises(ManifestError, match="expected at most 32 levels"):
            expand_gen([{"key": text, "url": "", "dimensions": {"i": [1]}}], templates)


def test_definition_that_is_not_text_is_refused(simple: bool) -> None:
    with pytest.raises(ManifestError, match="template 'u': expected text, found list"):
        Templates({"u": ["a"]}, simple=simple)  # type: ignore[dict-item]  # the invalid type


# Entries of gen.


def test_example_of_the_specification_is_expanded() -> None:
    templates = Templates({"u": "server.domain/path", "f": "{{c}}"})
    entry = {
        "key": "gen_key{{i}}",
        "url": "http://{{u}}_{{i}}",
        "offset": "{{(i + 1) * 1000}}",
        "length": "1000",
        "dimensions": {"i": {"stop": 5}},
    }
    expected = [(f"gen_key{i}", f"http://server.domain/path_{i}", (i + 1) * 1000, 1000) for i in range(5)]
    assert list(expand_gen([entry], templates)) == expected


def test_public_gen_set_has_its_keys_and_ranges(simple: bool) -> None:
    path = SHARED / "data/refs/cru-kc3-gen/kc3.json"
    if not path.exists():
        pytest.skip("the shared reference sets are not on this machine")
    document = json.loads(path.read_text())
    expanded = list(expand_gen(document["gen"], Templates(document.get("templates", {}), simple=simple)))
    assert expanded == [("pre/0.0.0", "pre.nc", 47534, 368880), ("pre/1.0.0", "pre.nc", 47534 + 368880, 368880)]


@given(
    st.lists(
        st.one_of(
            st.lists(st.integers(-5, 99), max_size=4),
            st.fixed_dictionaries(
                {"stop": st.integers(-3, 6)},
                optional={"start": st.integers(-3, 6), "step": st.sampled_from([-2, -1, 1, 2, 5])},
            ),
        ),
        max_size=3,
    )
)
def test_dimensions_combine_as_a_cartesian_product(specs: list[Any]) -> None:
    names = ["a", "b", "c"][: len(specs)]
    key = "k" + "".join("/" + put_in_braces(name) for name in names)
    values = [s if isinstance(s, list) else range(s.get("start", 0), s["stop"], s.get("step", 1)) for s in specs]
    expected = ["k" + "".join(f"/{value}" for value in combination) for combination in itertools.product(*values)]
    entry = {"key": key, "url": "u", "dimensions": dict(zip(names, specs, strict=True))}
    assert list(expand_gen([entry], Templates({}))) == [(key, "u", None, None) for key in expected]


def test_generated_keys_beyond_one_block_keep_their_order() -> None:
    entry = {
        "key": "{{t}}.{{'%03d' % x}}",
        "url": "f{{x % 2}}",
        "offset": "{{t * 1000 + x}}",
        "length": 7,
        "dimensions": {"t": {"stop": 100}, "x": {"stop": 300}},
    }
    expanded = list(expand_gen([entry], Templates({})))
    assert expanded == [(f"{t}.{x:03}", f"f{x % 2}", t * 1000 + x, 7) for t in range(100) for x in range(300)]


def test_generated_keys_take_little_memory() -> None:
    entry = {"key": "{{i}}", "url": "u", "dimensions": {"i": {"stop": 1_900_000}, "one": [1]}}
    with check_peak(8 << 20):
        assert next(expand_gen([entry], Templates({}))) == ("0", "u", None, None)


def test_integers_of_dimensions_are_passed_to_templates(simple: bool) -> None:
    templates = Templates({"file": "{{ '%02d' % m }}.nc"}, simple=simple)
    entry = {
        "key": "a/{{m}}",
        "url": "{{file(m=m + 1)}}",
        "offset": " {{m}} ",
        "length": 1,
        "dimensions": {"m": [8, 9]},
    }
    assert list(expand_gen([entry], templates)) == [("a/8", "09.nc", 8, 1), ("a/9", "10.nc", 9, 1)]


BAD_ENTRIES = [
    ([], r"gen\[0\]: expected `object`"),
    ({"url": "u", "dimensions": {}}, r"gen\[0\]: object missing required field `key`"),
    ({"key": "k", "dimensions": {}}, r"gen\[0\] \(key 'k'\): object missing required field `url`"),
    ({"key": "k", "url": "u"}, "required field `dimensions`"),
    ({"key": "k", "url": None, "dimensions": {}}, "in url"),
    ({"key": 5, "url": "u", "dimensions": {}}, "in key"),
    ({"key": "k", "url": "u", "dimensions": []}, "in dimensions"),
    ({"key": "k", "url": "u", "dimensions": {"i": {"start": 1}}}, "required field `stop`"),
    ({"key": "k", "url": "u", "dimensions": {"i": {"stop": "5"}}}, "expected `int`"),
    ({"key": "k", "url": "u", "dimensions": {"i": {"stop": 5.5}}}, "expected `int`"),
    ({"key": "k", "url": "u", "dimensions": {"i": [1, "2"]}}, "expected `int`"),
    ({"key": "k", "url": "u", "dimensions": {"i": [True]}}, "expected `int`"),
    ({"key": "k", "url": "u", "dimensions": {"i": "abc"}}, "expected `object | array`"),
    ({"key": "k", "url": "u", "dimensions": {"i": 5}}, "expected `object | array`"),
    ({"key": "k", "url": "u", "dimensions": {"i": {"stop": 5, "step": 0}}}, "dimension 'i': its step is 0"),
    ({"key": "k", "url": "u", "dimensions": {"i": {"stop": 2**70}}}, "64 bits"),
    ({"key": "k", "url": "u", "dimensions": {"i": [10**5000]}}, "64 bits"),
    ({"key": "k", "url": "u", "dimensions": {"u": [1]}}, "of a dimension and of a template"),
    ({"key": "k{{j}}", "url": "u", "dimensions": {"i": [1]}}, "key: .*'j'"),
    ({"key": "k", "url": "{{i.x}}", "dimensions": {"i": [1]}}, "url: .*not allowed"),
    ({"key": "{% if i %}", "url": "u", "dimensions": {"i": [1]}}, "simple_templates=False"),
    ({"key": "k", "url": "u", "offset": 1, "dimensions": {}}, "'offset' but no 'length'"),
    ({"key": "k", "url": "u", "length": "1", "dimensions": {}}, "'length' but no 'offset'"),
    ({"key": "k", "url": "u", "offset": 1.5, "length": 1, "dimensions": {}}, "in offset"),
]
BAD_VALUES = [
    ({"offset": -1, "length": 1}, "offset: expected a number from 0 .*, got -1"),
    ({"offset": 1, "length": -1}, "length: expected a number from 0 .*, got -1"),
    ({"offset": "{{3 - i}}", "length": 1}, "offset: expected a number from 0 .*, got -1 at i=4"),
    ({"offset": "{{ 9223372036854775807 + i }}", "length": 1}, "64 bits.* at i=1"),
    ({"offset": "{{ 10 // (2 - i) }}", "length": 1}, "division by zero at i=2"),
    ({"offset": "{{ 2 ** (i * 40) }}", "length": 1}, r"expected a result of 64 bits.*, got 2 \*\* 80"),
    ({"offset": "{{ 2 ** (2 - i) }}", "length": 1}, "an exponent of at least 0.* at i=3"),
    ({"offset": "{{i}}.5", "length": 1}, "offset: expected an integer, got '0.5' at i=0"),
    ({"offset": "0x10", "length": 1}, "expected an integer, got '0x10'"),
    ({"offset": "1_0", "length": 1}, "expected an integer, got '1_0'"),
    ({"offset": "", "length": 1}, "expected an integer, got ''"),
    ({"offset": "9" * 30, "length": 1}, "expected an integer, got '999"),
    ({"offset": 2**63, "length": 1}, "offset: it does not fit into 64 bits"),
    ({"offset": 0, "length": 10**5000}, "length: it does not fit into 64 bits"),
]


@pytest.mark.parametrize(("entry", "reason"), BAD_ENTRIES)
def test_malformed_entry_is_refused_before_generation(entry: object, reason: str) -> None:
    with pytest.raises(ManifestError, match=reason):
        expand_gen([entry], Templates({"u": "x"}))


@pytest.mark.parametrize(("fields", "reason"), BAD_VALUES)
def test_error_of_an_invalid_range_names_entry_and_values(fields: dict[str, Any], reason: str) -> None:
    good = {"key": "ok", "url": "u", "dimensions": {}}
    entry = {"key": "k{{i}}", "url": "u", "dimensions": {"i": {"stop": 5}}} | fields
    with pytest.raises(ManifestError, match=r"gen\[1\] \(key 'k\{\{i\}\}'\): .*" + reason):
        list(expand_gen([good, entry], Templates({})))


@pytest.mark.parametrize(
    "dimensions",
    [
        {"i": {"stop": 10_000_001}},
        {"i": {"stop": 2**63 - 1}},
        {"i": {"start": -(2**63), "stop": 2**63 - 1}},
        {name: {"stop": 1000} for name in "abcd"},
        {name: {"stop": 2**62} for name in "abcdefgh"},
    ],
)
def test_too_many_keys_are_refused_before_expansion(dimensions: dict[str, Any]) -> None:
    entry = {"key": "k", "url": "u", "dimensions": dimensions}
    with pytest.raises(ManifestError, match="expected at most 2000000"):
        expand_gen([entry], Templates({}))


def test_template_limits_apply_to_all_gen_entries_together() -> None:
    entry = {"key": "k{{i}}", "url": "u{{i}}", "dimensions": {"i": {"stop": 60}}}
    templates = Templates({})
    assert len(list(expand_gen([entry], templates, limits=TemplateLimits(generated=100)))) == 60
    with pytest.raises(ManifestError, match="120 keys"):
        expand_gen([entry, entry], templates, limits=TemplateLimits(generated=100))
    with pytest.raises(ManifestError, match="operations"):
        expand_gen([entry, entry], templates, limits=TemplateLimits(generated_steps=100))
    with pytest.raises(ManifestError, match="characters"):
        list(expand_gen([entry, entry], templates, limits=TemplateLimits(generated_text=500)))


def test_product_with_an_empty_dimension_has_no_keys() -> None:
    entry = {"key": "k", "url": "u", "dimensions": {"i": {"stop": 2**62}, "j": {"stop": 0}, "k": []}}
    assert list(expand_gen([entry], Templates({}))) == []


@pytest.mark.parametrize("entries", [[], [{"key": "a", "url": "b", "dimensions": {}, "unknown": 1}]])
def test_entry_without_dimensions_has_one_key(entries: list[object]) -> None:
    assert list(expand_gen(entries, Templates({}))) == [("a", "b", None, None)] * len(entries)
