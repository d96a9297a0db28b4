"""Frozen dataclasses to and from plain data, strictly, with every problem told at once.

Recipes, site profiles and trainer settings (TOML), locks, manifests and results (JSON) are all
dataclasses. This module is the one way in and out: unknown keys are problems that name the
nearest known key, and types are not bent.

Understood types: bool, int, float, str, None, `Path`, `PurePosixPath`, enumerations of strings,
`Literal`, dataclasses, `tuple[T, ...]`, fixed tuples, `frozenset[T]`, `Mapping[str, T]`, unions,
`Fact[T]`, and any class with ``parse(str)`` whose ``str`` gives the text back (`Version`); its
``PATTERN``, a regular expression, says to the schema what it takes.
A union of dataclasses is told apart by their `Literal` field ``kind``.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import json
import re
import tomllib
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeVar, Union, get_args, get_origin

from hpcenv.base.errors import BadFile, BadInput, Problem
from hpcenv.base.known import Known, Unknown

T = TypeVar("T")


class _Bad(Exception):
    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems


# -- files ---------------------------------------------------------------------------------------


def load_toml(
    kind: type[T],
    file: Path,
    fill: Callable[[dict[str, Any]], dict[str, Any]] = lambda data: data,
) -> T:
    """Read a TOML file into a dataclass.

    `fill` may complete what a person left out, before the data is judged.

    Raises
    ------
    BadFile
        With all its problems, each with its line.
    BadInput
        If the file cannot be read.
    """
    return parse_toml(kind, _text(file), str(file), fill)


def parse_toml(
    kind: type[T],
    text: str,
    file: str,
    fill: Callable[[dict[str, Any]], dict[str, Any]] = lambda data: data,
) -> T:
    """Like `load_toml`, for text that was read already; `file` is only named."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"line (\d+)", str(error))
        line = int(match[1]) if match else len(text.rstrip().split("\n"))  # "end of document"
        raise BadFile(file, [Problem("", f"not TOML: {error}", line)]) from None
    except RecursionError:
        raise BadFile(file, [Problem("", "nested too deeply")]) from None
    return _checked(kind, fill(data), file, lambda: lines_of(text))


def load_json(kind: type[T], file: Path) -> T:
    """Read a JSON file into a dataclass; raises like `load_toml`."""
    return parse_json(kind, _text(file), str(file))


def parse_json(kind: type[T], text: str, file: str) -> T:
    """Like `load_json`, for text that was read already; `file` is only named."""
    try:
        data = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise BadFile(file, [Problem("", f"not JSON: {error.msg}", error.lineno)]) from None
    except _Bad as bad:
        raise BadFile(file, bad.problems) from None
    except RecursionError:
        raise BadFile(file, [Problem("", "nested too deeply")]) from None
    return _checked(kind, data, file, dict)


def dump_json(value: object) -> str:
    """Write a dataclass as JSON: sorted keys, two spaces, a newline at the end."""
    return json.dumps(encode(value), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot read it: {error.strerror}", where=str(file)) from None
    except UnicodeDecodeError:
        raise BadInput("not UTF-8 text", where=str(file)) from None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    data = dict(pairs)
    if len(data) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _Bad([Problem(twice, "the key is there twice")])
    return data


def _checked(kind: type[T], data: object, file: str, lines: Callable[[], dict[str, int]]) -> T:
    try:
        value: T = decode(kind, data)
        return value
    except _Bad as bad:
        known = lines()
        problems = [
            dataclasses.replace(problem, line=_line_of(problem.path, known))
            for problem in bad.problems
        ]
        raise BadFile(file, sorted(problems, key=lambda p: p.line or 0)) from None


def _line_of(path: str, lines: Mapping[str, int]) -> int | None:
    # Of what lies deeper than a line tells, the line of the nearest that holds it.
    around = [known for known in lines if f"{path}.".startswith((f"{known}.", f"{known}["))]
    return lines[max(around, key=len)] if around else None


def lines_of(text: str) -> dict[str, int]:
    """Map the dotted path of each key of a TOML text to the line where its statement begins.

    The text is taken line by line: where it is whole again, the statement that ended there is
    responsible for the paths that are new.
    """
    found: dict[str, int] = {}
    lines = text.split("\n")
    begun = 0
    for end in range(1, len(lines) + 1):
        try:
            data = tomllib.loads("\n".join(lines[:end]) + "\n")
        except tomllib.TOMLDecodeError:
            continue
        for path in _paths(data):
            found.setdefault(path, begun + 1)
        begun = end
    return found


def _paths(data: object, path: str = "") -> Iterator[str]:
    inner: Iterable[tuple[str, object]] = ()
    if isinstance(data, Mapping):
        inner = ((_join(path, key), item) for key, item in data.items())
    elif isinstance(data, list):
        inner = ((f"{path}[{i}]", item) for i, item in enumerate(data))
    for name, item in inner:
        yield name
        yield from _paths(item, name)


# -- decoding ------------------------------------------------------------------------------------


def decode(kind: Any, data: object, path: str = "") -> Any:
    """Make a value of type `kind` from plain data, or raise with every problem in it."""
    origin = get_origin(kind)
    if kind is Any:
        return data
    if origin is typing.Literal:
        if data in get_args(kind) and type(data) in {type(a) for a in get_args(kind)}:
            return data
        raise _bad(path, f"{_show(data)} is none of {_listed(get_args(kind))}", data, kind)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(kind), data, path)
    if origin is tuple:
        return _decode_tuple(get_args(kind), data, path)
    if origin is frozenset:
        return frozenset(_decode_each(get_args(kind)[0], data, path))
    if origin is not None and issubclass(origin, Mapping):
        return _decode_mapping(get_args(kind)[1], data, path)
    if origin is Known:
        return _decode_known(get_args(kind)[0], data, path)
    if kind is Unknown:
        return _decode_unknown(data, path)
    if dataclasses.is_dataclass(kind) and not hasattr(kind, "parse"):
        return _decode_dataclass(kind, data, path)
    return _decode_plain(kind, data, path)


def _decode_plain(kind: Any, data: object, path: str) -> Any:
    if kind is None or kind is type(None):
        if data is None:
            return None
    elif kind is bool:
        if isinstance(data, bool):
            return data
    elif kind is int:
        if isinstance(data, int) and not isinstance(data, bool):
            return data
    elif kind is float:
        if isinstance(data, (int, float)) and not isinstance(data, bool):
            return float(data)
    elif kind is str or isinstance(kind, typing.NewType):
        if isinstance(data, str):
            return data
    elif isinstance(data, str):
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            values = [member.value for member in kind]
            if data in values:
                return kind(data)
            raise _bad(path, f"{data!r} is none of {_listed(values)}", data, kind)
        if isinstance(kind, type) and issubclass(kind, PurePath):
            return kind(data)
        if hasattr(kind, "parse"):
            try:
                return kind.parse(data)
            except ValueError as error:
                raise _Bad([Problem(path, str(error))]) from None
    raise _Bad([Problem(path, f"should be {_name(kind)}, is {_show(data)}")])


def _decode_dataclass(kind: Any, data: object, path: str) -> Any:
    if not isinstance(data, Mapping):
        raise _Bad([Problem(path, f"should be a table, is {_show(data)}")])
    hints = _hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for key in data:
        if key not in fields:
            near = difflib.get_close_matches(key, list(fields), 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {_listed(fields)}"
            problems.append(Problem(_join(path, key), f"unknown key{hint}"))
    for name, field in fields.items():
        if name in data:
            try:
                values[name] = decode(hints[name], data[name], _join(path, name))
            except _Bad as bad:
                problems.extend(bad.problems)
        elif required(field):
            if type(None) in get_args(hints[name]):
                values[name] = None  # as `encode` leaves it out
            else:
                problems.append(Problem(path, f"{name!r} is missing"))
    if problems:
        raise _Bad(problems)
    try:
        return kind(**values)
    except ValueError as error:
        # A dataclass may check its own values together in __post_init__.
        raise _Bad([Problem(path, str(error))]) from None


def _decode_union(kinds: tuple[Any, ...], data: object, path: str) -> Any:
    if data is None and type(None) in kinds:
        return None
    some = [kind for kind in kinds if kind is not type(None)]
    if any(kind is Unknown for kind in some):
        known = next(kind for kind in some if kind is not Unknown)
        if isinstance(data, Mapping) and "unknown" in data:
            return _decode_unknown(data, path)
        return decode(known, data, path)
    tagged = [kind for kind in some if dataclasses.is_dataclass(kind) and _tag(kind)]
    if isinstance(data, Mapping) and len(tagged) > 1:
        for kind in tagged:
            if data.get("kind") == _tag(kind):
                return decode(kind, data, path)
        tags = [_tag(kind) for kind in tagged]
        said = f"'kind' is {_show(data.get('kind'))}, none of {_listed(tags)}"
        raise _Bad([Problem(path, said)])
    if len(some) == 1:
        return decode(some[0], data, path)
    problems: list[Problem] = []
    for kind in some:
        try:
            return decode(kind, data, path)
        except _Bad as bad:
            problems.extend(bad.problems)
    names = " or ".join(_name(kind) for kind in some)
    inner = [problem for problem in problems if problem.path != path]
    raise _Bad(inner or [Problem(path, f"should be {names}, is {_show(data)}")])


def _decode_tuple(kinds: tuple[Any, ...], data: object, path: str) -> tuple[Any, ...]:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_decode_each(kinds[0], data, path))
    if not isinstance(data, list) or len(data) != len(kinds):
        raise _Bad([Problem(path, f"should be a list of {len(kinds)}, is {_show(data)}")])
    return tuple(_decode_all(((f"{path}[{i}]", kinds[i], item) for i, item in enumerate(data))))


def _decode_each(kind: Any, data: object, path: str) -> list[Any]:
    if not isinstance(data, list):
        raise _Bad([Problem(path, f"should be a list, is {_show(data)}")])
    return _decode_all((f"{path}[{i}]", kind, item) for i, item in enumerate(data))


def _decode_mapping(kind: Any, data: object, path: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise _Bad([Problem(path, f"should be a table, is {_show(data)}")])
    values = _decode_all((_join(path, key), kind, item) for key, item in data.items())
    return dict(zip(data, values, strict=True))


def _decode_all(parts: Iterable[tuple[str, Any, object]]) -> list[Any]:
    values, problems = [], []
    for path, kind, data in parts:
        try:
            values.append(decode(kind, data, path))
        except _Bad as bad:
            problems.extend(bad.problems)
    if problems:
        raise _Bad(problems)
    return values


def _decode_known(kind: Any, data: object, path: str) -> Known[Any]:
    if isinstance(data, Mapping) and set(data) == {"value", "how", "where"}:
        how = decode(_hints(Known)["how"], data["how"], _join(path, "how"))
        where = decode(str, data["where"], _join(path, "where"))
        return Known(_decode_value(kind, data["value"], _join(path, "value")), how, where)
    # What a person wrote without saying how it was learnt is declared by that person.
    return Known(_decode_value(kind, data, path), "declared", "profile")


def _decode_value(kind: Any, data: object, path: str) -> Any:
    return None if data == "none" and may_be_none(kind) else decode(kind, data, path)


def _decode_unknown(data: object, path: str) -> Unknown:
    if not isinstance(data, Mapping) or set(data) != {"unknown", "ask"}:
        raise _Bad([Problem(path, "an unknown fact has the keys 'unknown' and 'ask'")])
    return Unknown(
        decode(str, data["unknown"], _join(path, "unknown")),
        decode(str, data["ask"], _join(path, "ask")),
    )


# -- encoding ------------------------------------------------------------------------------------


def encode(value: Any) -> Any:
    """Make plain data of a value; fields that are None are left out where decoding brings them."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Known):
        return {"value": encode(value.value), "how": value.how, "where": value.where}
    if isinstance(value, Unknown):
        return {"unknown": value.why, "ask": value.ask}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, PurePath) or hasattr(type(value), "parse"):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: encode(item)
            for field in dataclasses.fields(value)
            if field.init
            and ((item := getattr(value, field.name)) is not None or not _none_if_left_out(field))
        }
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (frozenset, set)):
        return sorted((encode(item) for item in value), key=str)
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no plain form")


# -- words ---------------------------------------------------------------------------------------


def may_be_none(kind: Any) -> bool:
    """Whether a known value of this type may be written ``"none"``.

    TOML has no null: so a fact known to be nothing (no GPU, no scheduler) is written.
    """
    return type(None) in get_args(kind) and str not in get_args(kind)


def required(field: dataclasses.Field[Any]) -> bool:
    """Whether a dataclass's field has no default."""
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _none_if_left_out(field: dataclasses.Field[Any]) -> bool:
    return required(field) or field.default is None


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    # Evaluating a type's annotations costs more than all the rest of decoding it.
    return typing.get_type_hints(kind)


def _tag(kind: Any) -> str | None:
    hint = _hints(kind).get("kind")
    return get_args(hint)[0] if get_origin(hint) is typing.Literal else None


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _bad(path: str, says: str, data: object, kind: Any) -> _Bad:
    if isinstance(data, str) and kind is not None:
        known = get_args(kind) or [member.value for member in kind]
        near = difflib.get_close_matches(data, [str(item) for item in known], 1)
        says += f"; did you mean {near[0]!r}?" if near else ""
    return _Bad([Problem(path, says)])


def _listed(items: Any) -> str:
    return ", ".join(repr(item) for item in items)


def _show(data: object) -> str:
    text = "nothing" if data is None else json.dumps(data, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def _name(kind: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    if kind in names:
        return names[kind]
    if kind is PurePosixPath or kind is Path:
        return "a path"
    if get_origin(kind) in (tuple, frozenset):
        return "a list"
    if dataclasses.is_dataclass(kind) and not hasattr(kind, "parse"):
        return "a table"
    return f"a {getattr(kind, '__name__', str(kind)).lower()}"
