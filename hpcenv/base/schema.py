"""The JSON Schema of a type that `record` understands: it accepts what `record.decode` accepts."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin

from hpcenv.base.known import Known, Unknown
from hpcenv.base.record import may_be_none, required


def schema(kind: Any, title: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a type."""
    writer = _Writer()
    body = writer.of(kind)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **body,
        "$defs": {name: writer.definitions[kind] for kind, name in writer.names.items()},
    }


class _Writer:
    """The definitions of the dataclasses met so far, each under a name of its own."""

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}
        self.definitions: dict[Any, dict[str, Any]] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of one type."""
        origin, args = get_origin(kind), get_args(kind)
        if kind is Any:
            return {}
        if origin is typing.Literal:
            return {"enum": list(args)}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(arg) for arg in args]}
        if origin is tuple and (len(args) != 2 or args[1] is not Ellipsis):
            items = [self.of(arg) for arg in args]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
        if origin in (tuple, frozenset):
            return {"type": "array", "items": self.of(args[0])}
        if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(args[1])}
        if origin is Known:
            return self._known(args[0])
        if kind is Unknown:
            return _object({"unknown": {"type": "string"}, "ask": {"type": "string"}})
        if dataclasses.is_dataclass(kind) and not hasattr(kind, "parse"):
            return self._reference(kind)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"enum": [member.value for member in kind]}
        if pattern := getattr(kind, "PATTERN", None):
            return {"type": "string", "pattern": pattern}
        plain = {bool: "boolean", int: "integer", float: "number", type(None): "null"}
        return {"type": plain.get(kind, "string")}

    def _known(self, kind: Any) -> dict[str, Any]:
        value = self.of(kind)
        if may_be_none(kind):
            value = {"anyOf": [value, {"const": "none"}]}
        how = {"enum": list(get_args(typing.get_type_hints(Known)["how"]))}
        full = _object({"value": value, "how": how, "where": {"type": "string"}})
        return {"anyOf": [full, value]}

    def _reference(self, kind: Any) -> dict[str, Any]:
        if kind not in self.names:
            same = sum(other.__name__ == kind.__name__ for other in self.names)
            # Before its fields: a type may contain itself.
            self.names[kind] = f"{kind.__name__}_{same + 1}" if same else kind.__name__
            hints = typing.get_type_hints(kind)
            fields = [field for field in dataclasses.fields(kind) if field.init]
            needed = [f.name for f in fields if required(f) and not _optional(hints[f.name])]
            self.definitions[kind] = _object(
                {f.name: self.of(hints[f.name]) for f in fields}, needed
            )
        return {"$ref": f"#/$defs/{self.names[kind]}"}


def _optional(kind: Any) -> bool:
    return type(None) in get_args(kind)


def _object(properties: dict[str, Any], needed: list[str] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if needed is None else needed,
        "additionalProperties": False,
    }
