"""Records: what is written comes back, and every fault is told with its line."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args, get_origin

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hpcenv.base.blobs import Digest
from hpcenv.base.errors import BadFile, BadInput
from hpcenv.base.known import Fact, Known, Unknown, map_fact, value_of
from hpcenv.base.record import decode, dump_json, encode, load_toml, parse_json, parse_toml
from hpcenv.base.schema import schema
from hpcenv.base.version import Version


class Colour(enum.StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True)
class Copy:
    kind: Literal["copy"]
    source: PurePosixPath


@dataclass(frozen=True)
class Run:
    kind: Literal["run"]
    script: str
    after: tuple[Copy | Run, ...] = ()  # may contain itself


NAMES = st.text("abcxyz_", min_size=1, max_size=6)
PLAIN = [bool, int, float, str, Colour, Literal["a", "b", 1], PurePosixPath, Digest, Version]


@st.composite
def types(draw: Any, depth: int = 3) -> Any:
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        return draw(st.sampled_from(PLAIN))
    inner = types(depth - 1)
    kind = draw(st.sampled_from(["each", "pair", "set", "map", "none", "fact", "record", "tagged"]))
    if kind == "each":
        return tuple[draw(inner), ...]  # type: ignore[misc]
    if kind == "pair":
        return tuple[draw(inner), draw(inner)]  # type: ignore[misc]
    if kind == "set":
        return frozenset[draw(st.sampled_from(PLAIN))]  # type: ignore[misc]
    if kind == "map":
        return Mapping[str, draw(inner)]  # type: ignore[misc]
    if kind == "none":
        return draw(inner) | None
    if kind == "fact":
        return Fact[draw(inner)]
    if kind == "tagged":
        return Copy | Run
    return draw(records(depth - 1))


@st.composite
def records(draw: Any, depth: int = 3) -> Any:
    fields: list[Any] = []
    for name in draw(st.lists(NAMES, unique=True, max_size=4)):
        kind = draw(types(depth))
        default = draw(st.one_of(st.just(dataclasses.MISSING), values(kind)))
        if default is dataclasses.MISSING:
            fields.insert(0, (name, kind))
        else:
            fields.append((name, kind, field(default_factory=lambda value=default: value)))
    return dataclasses.make_dataclass("Record", fields, frozen=True)


def values(kind: Any) -> st.SearchStrategy[Any]:
    origin, args = get_origin(kind), get_args(kind)
    if kind in (bool, int, str, Colour):
        return st.from_type(kind)
    if kind is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if kind is PurePosixPath:
        return st.text("ab/.", max_size=5).map(PurePosixPath)
    if kind is Digest:
        return st.text("0123456789abcdef", min_size=64, max_size=64).map(Digest)
    if kind is Version:
        return st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}(rc1|-2)?", fullmatch=True).map(
            Version.parse
        )
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, args))
    if origin is frozenset:
        return st.frozensets(values(args[0]), max_size=3)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(st.text("pq.", max_size=3), values(args[1]), max_size=3)
    if origin is Known:
        how = st.sampled_from(["read", "ran", "declared", "published"])
        return st.builds(Known, values(args[0]), how, st.text(max_size=3))
    if kind is Unknown:
        return st.builds(Unknown, st.text(max_size=3), st.text(max_size=3))
    if kind is Run:
        inner = st.builds(Copy, st.just("copy"), values(PurePosixPath))
        return st.builds(Run, st.just("run"), st.text(max_size=3), st.lists(inner).map(tuple))
    if dataclasses.is_dataclass(kind):
        hints = {f.name: f.type for f in dataclasses.fields(kind)}
        if kind is Copy:
            return st.builds(Copy, st.just("copy"), values(PurePosixPath))
        return st.builds(kind, **{name: values(hint) for name, hint in hints.items()})
    if kind is type(None):
        return st.none()
    return st.one_of([values(arg) for arg in args])  # a union


@st.composite
def typed_values(draw: Any) -> tuple[Any, Any]:
    kind = draw(records())
    return kind, draw(values(kind))


@settings(max_examples=120)
@given(typed_values())
def test_what_is_written_comes_back(pair: tuple[Any, Any]) -> None:
    kind, value = pair
    assert decode(kind, encode(value)) == value
    assert parse_json(kind, dump_json(value), "x.json") == value


ANY_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.sampled_from([0.5, -1.5]),  # 1.0 is an integer to JSON Schema, and not to us
        st.sampled_from(["", "a", "red", "none", "copy", "1.0", "0" * 64, "read"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["a", "kind", "value", "script"]), inner, max_size=2),
    ),
    max_leaves=4,
)


def places(data: Any) -> list[tuple[Any, Any]]:
    """Every place of some plain data: what holds it, and the key."""
    keys: Any = (
        data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    )
    found = [(data, key) for key in keys]
    return found + [place for key in keys for place in places(data[key])]


@st.composite
def changed_values(draw: Any) -> tuple[Any, Any]:
    kind, value = draw(typed_values())
    data = {"top": json.loads(json.dumps(encode(value)))}
    for _ in range(draw(st.integers(0, 3))):
        holder, key = draw(st.sampled_from(places(data)))
        if draw(st.booleans()):
            holder[key] = draw(ANY_JSON)
        elif holder is not data and isinstance(holder, dict):
            del holder[key]
        elif isinstance(holder.get("top") if isinstance(holder, dict) else None, dict):
            holder["top"][draw(NAMES)] = draw(ANY_JSON)
    return kind, data["top"]


@settings(max_examples=150)
@given(changed_values())
def test_the_schema_accepts_exactly_what_decode_accepts(pair: tuple[Any, Any]) -> None:
    kind, data = pair
    # A whole float is an integer to JSON Schema; drawn values of float fields may be whole.
    assume(not any(isinstance(h[k], float) and h[k] == math.floor(h[k]) for h, k in places([data])))
    body = schema(kind, "test")
    jsonschema.Draft202012Validator.check_schema(body)
    accepted = jsonschema.Draft202012Validator(body).is_valid(data)
    try:
        decode(kind, data)
    except Exception as error:
        assert hasattr(error, "problems") and error.problems, error
        assert not accepted, error.problems
    else:
        assert accepted


@dataclass(frozen=True)
class Inner:
    ranks: int
    colour: Colour = Colour.RED


NOT_LOOKED_FOR = Unknown("not looked for", "nvidia-smi")


@dataclass(frozen=True)
class Outer:
    schema: Literal[1]
    name: str
    inner: Inner
    several: tuple[Inner, ...] = ()
    driver: Fact[Version | None] = NOT_LOOKED_FOR
    facts: Mapping[str, float] = field(default_factory=dict)


def problems(text: str, kind: Any = Outer) -> list[str]:
    with pytest.raises(BadFile) as bad:
        parse_toml(kind, text, "f")
    return str(bad.value).splitlines()


def test_every_fault_at_once_each_with_its_line() -> None:
    text = """\
schema = 2
nmae = "x"

[inner]
ranks = "four"
colour = "gren"

[[several]]
ranks = 1

[[several]]
# a comment
ranks = true

[facts]
a = 1
b = [
  1,
]
"""
    assert problems(text) == [
        "f: 'name' is missing",
        "f:1: schema: 2 is none of 1",
        "f:2: nmae: unknown key; did you mean 'name'?",
        'f:5: inner.ranks: should be a whole number, is "four"',
        "f:6: inner.colour: 'gren' is none of 'red', 'green'; did you mean 'green'?",
        "f:13: several[1].ranks: should be a whole number, is true",
        "f:17: facts.b: should be a number, is [1]",
    ]


def test_a_missing_key_is_told_where_its_table_begins() -> None:
    assert problems('schema = 1\nname = "x"\n\n[inner]\n') == ["f:4: inner: 'ranks' is missing"]


def test_a_dash_is_no_underscore() -> None:
    @dataclass(frozen=True)
    class Dashed:
        cpu_features: str = ""

    assert problems("cpu-features = 'x'", Dashed) == [
        "f:1: cpu-features: unknown key; did you mean 'cpu_features'?"
    ]


def test_facts_in_short() -> None:
    text = 'schema = 1\nname = "x"\ndriver = {}\n[inner]\nranks = 1\n'
    known = parse_toml(Outer, text.format('"450.80"'), "f").driver
    assert known == Known(Version.parse("450.80"), "declared", "profile")
    assert value_of(parse_toml(Outer, text.format('"none"'), "f").driver) is None
    unknown = parse_toml(Outer, text.format('{ unknown = "w", ask = "a" }'), "f").driver
    assert unknown == Unknown("w", "a") and value_of(unknown) is None
    full = '{ value = "1", how = "ran", where = "x", more = 1 }'
    assert problems(text.format(full))[0].startswith("f:3: driver: should be")
    assert problems(text.format('{ unknown = "w" }')) == [
        "f:3: driver: an unknown fact has the keys 'unknown' and 'ask'"
    ]


def test_map_fact_keeps_where_it_was_learnt() -> None:
    assert map_fact(Known(2, "ran", "nproc"), str) == Known("2", "ran", "nproc")
    assert map_fact(Unknown("w", "a"), str) == Unknown("w", "a")


STATEMENTS = st.sampled_from(
    [
        ("{} = 1", 1),
        ("  {} = 'x = 1' # y = 2", 1),
        ('"{}" = [', 4),  # an array over four lines
        ('{} = """', 3),  # a text over three
        ("{}.deep.down = 1", 1),
        ("{} = {{ a = 1, b = [2] }}", 1),
        ("[{}]", 1),
        ("[[{}]]", 1),
        ("[ {} . deep ]", 1),
    ]
)
REST = {4: "\n  { z = 1 },\n  # ]\n]", 3: '\nq = 1\n[no.table]"""'}


@given(st.lists(st.tuples(STATEMENTS, st.integers(0, 2)), min_size=1, max_size=8))
def test_every_statement_has_its_line(statements: list[tuple[tuple[str, int], int]]) -> None:
    """An empty table knows no key, so each top-level key is a problem, with a line to be right."""

    @dataclass(frozen=True)
    class Nothing:
        pass

    text, expected, number, in_table = "", set(), 1, False
    for i, ((form, height), blank) in enumerate(statements):
        number += blank
        text += "# nothing here\n" * blank
        in_table = in_table or form.lstrip().startswith("[")
        if form.lstrip().startswith("[") or not in_table:
            expected.add((f"k{i}", number))
        text += form.format(f"k{i}") + REST.get(height, "") + "\n"
        number += height
    with pytest.raises(BadFile) as bad:
        parse_toml(Nothing, text, "f")
    assert {(problem.path, problem.line) for problem in bad.value.problems} == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = ", "f:1: not TOML"),
        ("a 1\nb = 2", "f:1: not TOML"),
        ("ok = 1\na = [1,\n\n", "f:2: not TOML"),
        ("a = " + "[" * 5000, "f: nested too deeply"),
    ],
)
def test_not_toml(text: str, says: str) -> None:
    assert says in problems(text)[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{\n"a": }', "f:2: not JSON"),
        ('{"a": 1, "a": 2}', "f: a: the key is there twice"),
        ("[" * 100_000, "f: nested too deeply"),
    ],
)
def test_not_json(text: str, says: str) -> None:
    with pytest.raises(BadFile) as bad:
        parse_json(Outer, text, "f")
    assert says in str(bad.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        load_toml(Outer, tmp_path / "none.toml")
    with pytest.raises(BadInput, match="Is a directory"):
        load_toml(Outer, tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    with pytest.raises(BadInput, match="not UTF-8"):
        load_toml(Outer, tmp_path / "latin.toml")


def test_two_types_of_one_name_are_told_apart_in_a_schema() -> None:
    first = dataclasses.make_dataclass("Same", [("a", int)], frozen=True)
    second = dataclasses.make_dataclass("Same", [("b", str)], frozen=True)
    both = dataclasses.make_dataclass("Both", [("x", first), ("y", second)], frozen=True)
    body = schema(both, "both")
    assert jsonschema.Draft202012Validator(body).is_valid({"x": {"a": 1}, "y": {"b": "t"}})
    assert not jsonschema.Draft202012Validator(body).is_valid({"x": {"b": "t"}, "y": {"a": 1}})
