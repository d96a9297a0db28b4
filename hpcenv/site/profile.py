"""Site profiles as TOML: written by `site detect`, read back, and completed by hand."""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import hpcenv
from hpcenv.base.errors import BadInput
from hpcenv.base.known import Known, Unknown
from hpcenv.base.record import encode, parse_toml
from hpcenv.image.facts import Mpi
from hpcenv.site.catalog import known_sites
from hpcenv.site.model import SiteMpi, SiteProfile, Slurm
from hpcenv.sources.mirrors import Mirrors

_HEADER = f"""\
# Site profile of {{name}}, written by hpcenv {hpcenv.__version__}.
# A fact is {{{{ value, how, where }}}}, or {{{{ unknown, ask }}}} with what would tell.
# To complete it, put a plain value in place of an unknown: libc = "2.36".
# "none" says that there is no such thing: driver = "none".
"""


def load_site(ref: str) -> SiteProfile:
    """Read a site profile.

    Parameters
    ----------
    ref : str
        The path of a TOML file, or a name that `hpcenv site list` shows.

    Raises
    ------
    BadFile
        With everything that is wrong in the file, each with its line.
    BadInput
        If there is no such file or name.
    """
    file = _file_of(ref)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot read it: {error.strerror}", where=str(file)) from None
    except UnicodeDecodeError:
        raise BadInput("not UTF-8 text", where=str(file)) from None
    return parse_site(text, str(file))


def parse_site(text: str, file: str) -> SiteProfile:
    """Read a profile's text; `file` is only named. A fact that it leaves out is unknown.

    Raises
    ------
    BadFile
        With everything that is wrong, each with its line.
    """
    return parse_toml(SiteProfile, text, file, fill=lambda data: _fill(SiteProfile, data))


def dump_site(profile: SiteProfile) -> str:
    """Write a profile as TOML that `parse_site` reads back as the same profile."""
    data: dict[str, Any] = encode(profile)
    unset = encode(Mirrors())
    data["mirrors"] = {k: item for k, item in data["mirrors"].items() if item != unset.get(k)}
    for mpi in data["mpis"].get("value", ()):
        # Left out, it would be read back as unknown.
        mpi["library"].setdefault("pmix", "none")
    header = _HEADER.format(name=json.dumps(profile.name, ensure_ascii=True))
    return header + "\n" + "\n".join(_table(_as_declared(data), ())) + "\n"


def _as_declared(data: Any) -> Any:
    """Write what a person declared in the profile as the plain value that they wrote."""
    if isinstance(data, list):
        return [_as_declared(item) for item in data]
    if not isinstance(data, Mapping):
        return data
    if data.get("how") == "declared" and data.get("where") == "profile":
        value = _as_declared(data["value"])
        return "none" if value is None else value
    return {key: _as_declared(item) for key, item in data.items()}


def _file_of(ref: str) -> Path:
    if "/" in ref or ref.endswith(".toml"):
        return Path(ref)
    sites = known_sites()
    if ref in sites:
        return sites[ref]
    near = difflib.get_close_matches(ref, list(sites), 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    known = ", ".join(sites) or "none"
    raise BadInput(
        f"there is no site {ref!r}; {hint}known: {known}",
        remedy="describe this machine: hpcenv site detect -o site.toml, then --site site.toml",
    )


# -- what a person left out ----------------------------------------------------------------------

_ASK: Mapping[type, Mapping[str, str]] = {
    SiteProfile: {
        "arch": "uname -m",
        "cpu_features": "grep -m1 flags /proc/cpuinfo",
        "cpus": "nproc",
        "os": "cat /etc/os-release",
        "kernel": "uname -r",
        "libc": "ldd --version",
        "mpis": "mpirun --version; ompi_info --parsable or mpichversion",
        "slurm": "srun --version; srun --mpi=list",
        "driver": "nvidia-smi",
        "gpus": "nvidia-smi -L",
        "fabrics": "ibstat; fi_info; ls /sys/class/net",
        "engines": "apptainer --version; podman --version; docker --version",
        "privileged": "apptainer config: is there a suid starter, and do users run it?",
    },
    SiteMpi: {"launcher": "command -v mpirun", "needs": "readelf -V on the library"},
    Mpi: {
        "family": "mpirun --version",
        "version": "ompi_info --parsable or mpichversion",
        "abi": "readlink -f on libmpi.so",
        "pmi": "ompi_info --parsable or mpichversion",
        "pmix": "ompi_info --parsable | grep pmix, and pmix_info --version",
        "transports": "ompi_info --parsable or mpichversion",
    },
    Slurm: {
        "version": "srun --version",
        "mpi_types": "srun --mpi=list",
        "pmix": "the version of the libpmix that Slurm's mpi_pmix plug-in loads",
    },
}
_PLAIN: Mapping[type, Mapping[str, object]] = {
    SiteProfile: {"mirrors": {}},
    SiteMpi: {"prefix": "", "library": {}},
    Mpi: {"soname": "", "file": ""},
}


def _fill(kind: Any, data: Any) -> Any:
    """Complete plain data with unknown facts, wherever a fact of `kind` was left out."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if data == "none" and type(None) in args and str not in args:
            return None
        some = [arg for arg in args if arg not in (type(None), Unknown)]
        return _fill(some[0], data) if len(some) == 1 else data
    if origin is Known:
        if isinstance(data, dict) and {"value", "how", "where"} <= set(data):
            return {**data, "value": _fill(args[0], data["value"])}
        return data if isinstance(data, dict) and "unknown" in data else _fill(args[0], data)
    if origin is tuple and isinstance(data, list):
        return [_fill(args[0], item) for item in data]
    if kind not in _ASK or not isinstance(data, dict):
        return data
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    unknown = {
        name: {"unknown": "the profile does not say", "ask": ask}
        for name, ask in _ASK[kind].items()
    }
    full = {**_PLAIN.get(kind, {}), **unknown, **data}
    return {key: _fill(hints[key], item) if key in names else item for key, item in full.items()}


# -- TOML ----------------------------------------------------------------------------------------

_WIDTH = 100


def _table(data: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """The lines of a table: first what stands in one line or one list, then its own tables."""
    later = []
    for key, value in data.items():
        if _is_inline(value):
            yield f"{_key(key)} = {_inline(value, len(_key(key)) + 3)}"
        else:
            later.append((key, value))
    for key, value in later:
        here = (*path, key)
        name = ".".join(_key(part) for part in here)
        if isinstance(value, Mapping):
            yield f"\n[{name}]"
            yield from _table(value, here)
        else:
            for item in value:
                yield f"\n[[{name}]]"
                yield from _table(item, here)


def _is_inline(value: Any) -> bool:
    if isinstance(value, Mapping) and "how" in value and "where" in value:
        return _is_row(value["value"]) or _is_rows(value["value"])
    return _is_row(value) or _is_rows(value)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and all(_is_row(item) for item in value)


def _is_row(value: Any) -> bool:
    if isinstance(value, Mapping):
        return not any(_has_table(item) for item in value.values())
    return not _has_table(value)


def _has_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list) and any(isinstance(item, Mapping) for item in value)
    )


def _inline(value: Any, used: int) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        if not value:
            return "{}"
        pairs = (f"{_key(key)} = {_inline(item, used)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    items = [_inline(item, 4) for item in value]
    line = f"[{', '.join(items)}]"
    if used + len(line) <= _WIDTH or not items:
        return line
    return "[\n" + "".join(f"    {row},\n" for row in _rows(items)) + "]"


def _rows(items: list[str]) -> Iterator[str]:
    row = ""
    for item in items:
        if row and len(row) + len(item) + 6 > _WIDTH:
            yield row
            row = ""
        row = f"{row}, {item}" if row else item
    yield row


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else _string(name)


def _string(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL; half a surrogate pair cannot be written at all.
    whole = text.encode("utf-8", errors="replace").decode("utf-8")
    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")
