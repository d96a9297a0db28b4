"""Environment modules, read as text: which of them put a folder on PATH, and which folder.

Modulefiles are programs, in Tcl or Lua. Nearly all that install an MPI are written by a tool
(EasyBuild, Spack, OpenHPC, a distribution's package) and do no more than set variables and prepend
paths; that much is read here, without a module system and without running anything. A line that
needs more is passed over.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from hpcenv.site.host import Host

MAX_FILES = 4000
MAX_SECONDS = 3.0
_DEFAULT_FOLDERS = (
    "/etc/modulefiles",
    "/usr/share/modulefiles",
    "/usr/share/Modules/modulefiles",
    "/usr/local/modulefiles",
    "/opt/modulefiles",
    "/opt/ohpc/pub/modulefiles",
)
_LISTS = ("/etc/environment-modules/modulespath", "/etc/lmod/modulespath")
# A name that an MPI, or a compiler under which an MPI may stand, can have.
_WORTH_READING = re.compile(
    r"mpi|mpt|mvapich|hpc-?x|ohpc|gcc|gnu|intel|oneapi|aocc|llvm|clang|nvhpc|pgi|cce|gompi|foss",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Module:
    """A module that puts folders on PATH.

    Attributes
    ----------
    name : str
        As ``module load`` takes it.
    file : str
        Its modulefile.
    path : tuple of str
        The folders, the one that ends up first first.
    library_path : tuple of str
        What it puts on LD_LIBRARY_PATH, without which its programs may not start.
    """

    name: str
    file: str
    path: tuple[str, ...]
    library_path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Modules:
    """What was found, and what was looked through."""

    found: tuple[Module, ...]
    folders: tuple[str, ...]
    files: int
    complete: bool


def find_modules(host: Host) -> Modules:
    """Look through the modulefiles whose names could stand for an MPI or lead to one.

    A module that adds a folder to MODULEPATH (a compiler's, in a hierarchy) leads on to it.
    """
    began = time.monotonic()
    folders = list(module_folders(host))
    found: list[Module] = []
    files = 0
    complete = True
    for folder in folders:  # grows while it is gone through
        for name, file in _modulefiles(host, folder):
            if files >= MAX_FILES or time.monotonic() - began > MAX_SECONDS:
                complete = False
                break
            files += 1
            text = host.text(file)
            if text is None:
                continue
            paths = prepended(text, file, name)
            if paths.get("PATH"):
                libraries = tuple(paths.get("LD_LIBRARY_PATH", ()))
                found.append(Module(name, file, tuple(paths["PATH"]), libraries))
            folders += [p for p in paths.get("MODULEPATH", ()) if p not in folders]
    return Modules(tuple(found), tuple(folders), files, complete)


def module_folders(host: Host) -> tuple[str, ...]:
    """Return the folders of MODULEPATH, or those that module systems use without it."""
    named = host.env.get("MODULEPATH", "").split(":")
    if not any(named):
        listed = [line.strip() for file in _LISTS for line in (host.text(file) or "").splitlines()]
        named = [line for line in listed if line.startswith("/")] + list(_DEFAULT_FOLDERS)
    return tuple(dict.fromkeys(p for p in named if p.startswith("/") and host.is_folder(p)))


def _modulefiles(host: Host, folder: str, below: str = "") -> Iterator[tuple[str, str]]:
    for entry in host.folder(f"{folder}/{below}"):
        name = f"{below}{entry}"
        path = f"{folder}/{name}"
        if entry.startswith(".") or name.count("/") > 4:
            continue
        if host.is_folder(path):
            yield from _modulefiles(host, folder, f"{name}/")
        elif _WORTH_READING.search(name):
            yield name.removesuffix(".lua"), path


# -- reading one ---------------------------------------------------------------------------------

_LUA_SET = re.compile(r"^\s*(?:local\s+)?([A-Za-z_]\w*)\s*=\s*(.+?)\s*;?\s*(?:--.*)?$")
_LUA_PREPEND = re.compile(
    r"""^\s*prepend_path\s*[({]\s*["'](\w+)["']\s*,\s*(.+?)\s*[)}]\s*;?\s*$"""
)
_TCL_SET = re.compile(r"^\s*set\s+([A-Za-z_]\w*)\s+(.+?)\s*;?\s*$")
_TCL_PREPEND = re.compile(
    r"^\s*prepend-path\s+(?:(?:-d\s+\S+|--delim[= ]\S+)\s+)?(\w+)\s+(.+?)\s*;?\s*$"
)


def prepended(text: str, file: str, name: str) -> dict[str, list[str]]:
    """Return what a modulefile puts before each path variable, as far as its text tells.

    Parameters
    ----------
    text : str
        The modulefile.
    file : str
        Its path; ``.lua`` says that it is Lua, else it is Tcl.
    name : str
        The module's name and version, which modulefiles may ask for.

    Returns
    -------
    dict
        For each variable absolute folders, the last prepended first.
    """
    lua = file.endswith(".lua")
    evaluate = _lua_value if lua else _tcl_value
    setting, prepend = (_LUA_SET, _LUA_PREPEND) if lua else (_TCL_SET, _TCL_PREPEND)
    short, _, version = name.rpartition("/")
    known = {"\0name": short or name, "\0version": version, "\0full": name, "\0file": file}
    paths: dict[str, list[str]] = {}
    for line in text.splitlines():
        if match := prepend.match(line):
            value = evaluate(match[2], known)
            for path in reversed((value or "").split(":")):
                if path.startswith("/"):
                    paths.setdefault(match[1], []).insert(0, path.rstrip("/") or "/")
        elif match := setting.match(line):
            value = evaluate(match[2], known)
            if value is None:
                known.pop(match[1], None)
            else:
                known[match[1]] = value
    return paths


def _lua_value(text: str, known: dict[str, str]) -> str | None:
    """Evaluate a Lua expression of strings, names, ``..`` and `pathJoin`; None if it is more.

    What follows a comma outside brackets (a delimiter, a priority) is not looked at.
    """
    text = _first_argument(text)
    tokens = re.findall(
        r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\[\[.*?\]\]|\.\.|[A-Za-z_]\w*|[(),])""", text
    )
    if re.sub(r"\s", "", "".join(tokens)) != re.sub(r"\s", "", text):
        return None
    value, rest = _lua_sum(tokens, known)
    return value if not rest else None


def _first_argument(text: str) -> str:
    depth, quote = 0, ""
    for index, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "," and depth == 0:
            return text[:index]
        else:
            depth += {"(": 1, ")": -1}.get(letter, 0)
    return text


def _lua_sum(tokens: list[str], known: dict[str, str]) -> tuple[str | None, list[str]]:
    total, tokens = _lua_term(tokens, known)
    while tokens[:1] == [".."]:
        term, tokens = _lua_term(tokens[1:], known)
        total = None if total is None or term is None else total + term
    return total, tokens


def _lua_term(tokens: list[str], known: dict[str, str]) -> tuple[str | None, list[str]]:
    if not tokens:
        return None, []
    first, rest = tokens[0], tokens[1:]
    if first[0] in "\"'":
        return re.sub(r"\\(.)", r"\1", first[1:-1]), rest
    if first.startswith("[["):
        return first[2:-2], rest
    if rest[:1] != ["("]:
        return known.get(first), rest
    arguments: list[str | None] = []
    rest = rest[1:]
    while rest and rest[0] != ")":
        value, rest = _lua_sum(rest, known)
        arguments.append(value)
        if rest[:1] == [","]:
            rest = rest[1:]
        elif rest[:1] != [")"]:
            return None, rest
    return _lua_call(first, arguments, known), rest[1:]


def _lua_call(name: str, arguments: list[str | None], known: dict[str, str]) -> str | None:
    if name in ("myModuleName", "myModuleVersion", "myModuleFullName", "myFileName"):
        keys = {"Name": "\0name", "Version": "\0version", "FullName": "\0full"}
        return known.get(keys.get(name.removeprefix("myModule"), "\0file"))
    parts = [argument for argument in arguments if argument is not None]
    if name == "pathJoin" and len(parts) == len(arguments) and parts:
        return "/".join([parts[0].rstrip("/"), *(part.strip("/") for part in parts[1:])])
    return None


def _tcl_value(text: str, known: dict[str, str]) -> str | None:
    """Evaluate a Tcl word with ``$name`` and ``${name}``; None if it calls a command."""
    braced = re.fullmatch(r"\{([^{}]*)\}", text)
    if braced:
        return braced[1]
    text = re.sub(r"\[\s*(?:file\s+join)\s+([^\[\]]*?)\s*\]", _joined, text)
    text = text.replace("[module-info name]", known["\0full"])
    text = re.sub(r'^"(.*)"$', r"\1", text)
    if "[" in text:
        return None
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        name = match[1] or match[2]
        missing = missing or name not in known
        return known.get(name, "")

    result = re.sub(r"\$\{(\w+)\}|\$(\w+)", value, text)
    return None if missing or re.search(r"\s", result) else result


def _joined(match: re.Match[str]) -> str:
    return "/".join(match[1].split())
