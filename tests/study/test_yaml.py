import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tune_speed.core.errors import ConfigError
from tune_speed.study.yaml import Place, dump_yaml, parse_yaml, read_yaml, scan_yaml

SCALARS = {
    "1e-3": 1e-3,
    "1E5": 1e5,
    ".5": 0.5,
    "5.": 5.0,
    "-1.5e+2": -150.0,
    "12": 12,
    "-3": -3,
    "010": 10,
    "0o17": 15,
    "0x1F": 31,
    "true": True,
    "False": False,
    "~": None,
    "null": None,
    "": None,
    "yes": "yes",
    "off": "off",
    "1:30": "1:30",
    "1_000": "1_000",
    "2026-11-20": "2026-11-20",
    "0b11": "0b11",
    "'1e-3'": "1e-3",
    '"true"': "true",
}


@pytest.mark.parametrize("text", SCALARS)
def test_scalars_mean_what_the_core_schema_says(text):
    value = parse_yaml(f"a: {text}").tree["a"]
    assert value == SCALARS[text]
    assert type(value) is type(SCALARS[text])


REFUSED = {
    "a: .inf": (1, "finite"),
    "a: 1\nb: -.INF": (2, "finite"),
    "a: .nan": (1, "finite"),
    "a: 1e999": (1, "finite"),
    "a: 9223372036854775808": (1, "64 bits"),
    f"a: {'9' * 5000}": (1, "64 bits"),
    f"a: 0x{'f' * 5000}": (1, "64 bits"),
    f"{'k' * 201}: 1": (1, "keys of at most 200 characters"),
    "[a]: 2": (1, "keys must be text"),
    "a: !!python/name:os.system x": (1, "must have no tag"),
    "a: !!binary aGk=": (1, "must have no tag"),
    "a: 1\nb: 2\na: 3": (3, "given once; the first is on line 1"),
    "a:\n  1: x": (2, "keys must be text"),
    "true: x": (1, "keys must be text"),
    "? {a: 1}\n: x": (1, "keys must be text"),
    "a: &x {b: 1}\nc:\n  <<: *x": (3, "merge keys"),
    "a: !!python/object/apply:os.system [ls]": (1, "tag"),
    "a: 1\nb: !mine {c: 1}": (2, "tag"),
    "a: ! 12": (1, "tag"),
    'a: "\\ud800"': (1, "Unicode"),
    'a: "\\0"': (1, "Unicode"),
    "a: 1\n--- \nb: 2": (2, "one document"),
    "a:\n\t- 1": (2, "Indent with spaces"),
    "a: [1, 2": (1, "must be YAML"),
    "a: b: c": (1, "must be YAML"),
    "a: *b": (1, "must name an anchor"),
    "a: &b [*b]": (1, "must name an anchor"),
    'a: 1\nb: "\\UFFFFFFFF"': (2, "out of range"),
    "a: 1\nb: \x07": (2, "U+0007"),
    "a: " + "[" * 50 + "]" * 50: (1, "40 deep"),
    "": (None, "empty"),
    "# nothing\n": (None, "empty"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_unfit_yaml_is_refused_with_its_line(text):
    line, must = REFUSED[text]
    with pytest.raises(ConfigError, match=must.replace("+", r"\+")) as caught:
        parse_yaml(text, file="f.yaml")
    assert [(p.file, p.line) for p in caught.value.problems] == [("f.yaml", line)]


def test_aliases_that_multiply_are_stopped():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(ConfigError, match="at most 20000 values"):
        parse_yaml("\n".join(lines))


def test_alias_repeats_its_anchor():
    assert parse_yaml("a: &x {b: [1]}\nc: *x").tree == {"a": {"b": [1]}, "c": {"b": [1]}}


def test_every_value_knows_its_line():
    source = parse_yaml("# top\na:\n  b: 1\n  c: [2,\n    3]\nd: 4\n", file="f.yaml")
    assert source.place(("a",)).line == 2
    assert source.place(("a", "b")).line == 3
    assert source.place(("a", "c", 1)).line == 5
    assert source.place(("a", "missing", "deeper")) == Place("f.yaml", 2)


def test_scan_collects_what_parse_refuses():
    source = scan_yaml("a: .nan\nb: 1\nb: 2\nc: !x 3", file="f.yaml")
    assert source.tree == {"a": None, "b": 1, "c": None}
    assert [(p.line, p.path) for p in source.problems] == [(1, "a"), (3, "b"), (4, "c")]


def test_replaced_value_has_its_own_place():
    source = parse_yaml("a:\n  b: {c: 1}\n", file="f.yaml")
    changed = source.with_value(("a", "b"), {"d": 2}, place=Place("--set a.b", None))
    assert changed.tree == {"a": {"b": {"d": 2}}}
    assert source.tree == {"a": {"b": {"c": 1}}}
    assert changed.place(("a", "b", "d")) == Place("--set a.b", None)
    assert changed.place(("a",)) == Place("f.yaml", 1)


@pytest.mark.parametrize(
    ("content", "line", "must"),
    [
        (b"a: 1\nb: \xff\n", 2, "UTF-8"),
        (b"a: 1 #" + b"x" * (1 << 20), None, "1024 KiB"),
        (None, None, "readable file"),
    ],
)
def test_unreadable_file_is_named(tmp_path, content, line, must):
    path = tmp_path / "f.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=must) as caught:
        read_yaml(path)
    assert (caught.value.problems[0].file, caught.value.problems[0].line) == (str(path), line)


def test_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: \xc3\xa9\r\nb: 1\r\n")
    assert read_yaml(path).tree == {"a": "é", "b": 1}


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
    | st.sampled_from([*SCALARS, "<<", "=", "---", "- a", "a: b", "#", "&a", "*a", "!a", "%a"])
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS.filter(lambda t: t != "<<"), inner),
)


@settings(max_examples=50)
@given(TREES)
@example({"a": 5e-324, "b": -0.0, "c": 1e22, "d": 0.1 + 0.2})
@example({"k" * 200: "\x85\u2028\ufeff \n"})
def test_dumped_tree_reads_back_equal(tree):
    read = parse_yaml(dump_yaml(tree)).tree
    assert repr(read) == repr(tree)


@given(st.text())
def test_any_text_gives_a_tree_or_a_config_error(text):
    try:
        parse_yaml(text)
    except ConfigError as error:
        assert error.problems


@pytest.mark.parametrize("tree", [{"a": math.inf}, {"a": math.nan}, {"a": "\0"}, {"a": 1 << 63}])
def test_what_no_file_can_hold_is_not_dumped(tree):
    with pytest.raises(ValueError):
        dump_yaml(tree)


def test_changed_tree_does_not_change_the_next_reading() -> None:
    parse_yaml("a: {b: [1]}").tree["a"]["b"].append(2)
    assert parse_yaml("a: {b: [1]}").tree == {"a": {"b": [1]}}
