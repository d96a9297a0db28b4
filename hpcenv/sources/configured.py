"""What this host is configured to take packages from: apt, pip, and the common environment.

Passwords and user names never get past this module: what is returned may be written into a
profile and shown. Clients take logins from where they always do (``~/.netrc``, apt's
``auth.conf``).
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcenv.base.errors import Outside
from hpcenv.base.process import run
from hpcenv.sources.mirrors import AptSource, Mirrors

_APT_CONFIG_DEADLINE_S = 10.0


def detect_mirrors(
    env: Mapping[str, str] | None = None, *, root: Path = Path("/"), prefix: Path | None = None
) -> Mirrors:
    """Read where this host takes packages from.

    Parameters
    ----------
    env : mapping, optional
        The environment to read; this process's own when left out.
    root : Path
        The host's root folder.
    prefix : Path, optional
        The Python environment whose own ``pip.conf`` counts; the running one when left out.

    Returns
    -------
    Mirrors
        Without any user name or password; a file that is missing is not an error.
    """
    environment = dict(os.environ if env is None else env)
    gathered = _Gathered()
    dump = _apt_config(environment, gathered)
    _take_apt(dump, root, gathered)
    _take_pip(pip_options(environment, root=root, prefix=prefix or Path(sys.prefix)), gathered)
    _take_environment(environment, gathered)
    return Mirrors(**gathered.fields, where=gathered.where, notes=tuple(gathered.notes))


# -- secrets -------------------------------------------------------------------------------------

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]*:)?//")
_HOST = re.compile(r"^(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._\-]*)(:\d*)?$")


def without_login(url: str) -> str | None:
    """Return a URL without user, password, query and fragment, and a path as it is.

    Returns
    -------
    str or None
        None where a password cannot be told from the rest of the URL with certainty.

    Examples
    --------
    >>> without_login("https://me:secret@mirror.example.org/simple?token=x")
    'https://mirror.example.org/simple'
    >>> without_login("me:secret@proxy.example.org:3128")
    'proxy.example.org:3128'
    >>> without_login("http://me:sec/ret@mirror.example.org/simple") is None
    True
    """
    url = url.strip()
    scheme = _SCHEME.match(url)
    if scheme is None and (url.startswith(("/", ".", "~", "file:")) or "@" not in url):
        return url
    start = scheme[0] if scheme else ""
    rest = re.split(r"[?#]", url[len(start) :], maxsplit=1)[0]
    authority, slash, path = rest.partition("/")
    host = authority.rpartition("@")[2]
    # An "@" further on may end a password that holds a "/", "?" or "#".
    ends_later = "@" in url[len(start) + len(authority) :] and start.lower() != "file://"
    if not _HOST.match(host) or ends_later:
        return None
    return f"{start}{host}{slash}{path}"


# -- gathering -----------------------------------------------------------------------------------


class _Gathered:
    """The fields of `Mirrors` as they are found: the first to set a field keeps it."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.where: dict[str, str] = {}
        self.notes: list[str] = []

    def put(self, name: str, value: object, where: str) -> None:
        if value and name not in self.fields:
            self.fields[name] = value
            self.where[name] = where

    def clean(self, urls: Iterable[str], what: str, where: str) -> tuple[str, ...]:
        kept = []
        for url in urls:
            plain = without_login(url)
            if plain is None:
                self.notes.append(
                    f"{where}: {what}: one URL left out, since a password in it could not be told"
                    " from the rest: percent-encode it"
                )
                continue
            if plain != url.strip():
                self.notes.append(
                    f"{where}: {what}: user, password or query removed: give logins in ~/.netrc"
                )
            kept.append(plain)
        return tuple(kept)


# -- apt -----------------------------------------------------------------------------------------


def _apt_config(env: Mapping[str, str], gathered: _Gathered) -> dict[str, str]:
    program = shutil.which("apt-config", path=env.get("PATH"))
    if program is None:
        return {}
    try:
        outcome = run([program, "dump"], deadline=_APT_CONFIG_DEADLINE_S, env=env)
    except Outside as failure:
        gathered.notes.append(str(failure))
        return {}
    if not outcome.ok:
        gathered.notes.append(f"apt-config dump ended with status {outcome.status}")
    return parse_apt_config(outcome.out)


def parse_apt_config(text: str) -> dict[str, str]:
    """Read ``apt-config dump``: lower-case names to values (the last where a name repeats)."""
    options = {}
    for line in text.splitlines():
        if match := re.match(r'^(\S+) "(.*)";$', line):
            options[match[1].lower()] = match[2]
    return options


def _take_apt(options: Mapping[str, str], root: Path, gathered: _Gathered) -> None:
    folder = root / options.get("dir::etc", "etc/apt").lstrip("/")
    files = [folder / options.get("dir::etc::sourcelist", "sources.list")]
    parts = folder / options.get("dir::etc::sourceparts", "sources.list.d")
    with suppress(OSError):
        files += sorted(p for p in parts.iterdir() if p.suffix in (".list", ".sources"))
    trusts_old = options.get("acquire::check-valid-until", "true").lower() in _NO
    sources: list[AptSource] = []
    read_from: list[str] = []
    for file in files:
        text = _read(file)
        if text is None:
            continue
        place = f"/{file.relative_to(root)}"
        entries = parse_deb822(text) if file.suffix == ".sources" else parse_one_line(text)
        found = list(_apt_sources(entries, place, gathered))
        if found:
            read_from.append(place)
            sources += found
    if trusts_old:
        sources = [replace(source, check_valid_until=False) for source in sources]
    gathered.put("apt", tuple(sources), ", ".join(read_from))
    for scheme in ("http", "https"):
        name = f"acquire::{scheme}::proxy"
        value = options.get(name, "")
        if value.upper() == "DIRECT":
            gathered.put("apt_proxy", "DIRECT", "apt-config dump")
        elif value:
            for url in gathered.clean([value], f"Acquire::{scheme}::Proxy", "apt-config dump"):
                gathered.put("apt_proxy", url, "apt-config dump")
        for suffix in ("-auto-detect", "autodetect"):
            if options.get(f"acquire::{scheme}::proxy{suffix}"):
                gathered.notes.append(
                    f"apt-config dump: apt asks a program for its {scheme} proxy; it was not asked"
                )


_NO = ("no", "false", "without", "off", "disable", "0")


@dataclass(frozen=True)
class SourceEntry:
    """One entry of apt's lists, before secrets are removed: never to be shown."""

    types: tuple[str, ...]
    urls: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: Mapping[str, str]


def parse_one_line(text: str) -> list[SourceEntry]:
    """Read ``sources.list``: ``deb [option=value …] URL suite component …``."""
    entries = []
    for raw in text.splitlines():
        match = re.match(r"^\s*(deb|deb-src)\s+(?:\[([^\]]*)\]\s*)?([^#]*)", raw)
        words = match[3].split() if match else []
        if match is None or len(words) < 2:
            continue
        options = {}
        for option in (match[2] or "").split():
            name, _, value = option.partition("=")
            options[name.rstrip("+-").lower()] = value
        entries.append(
            SourceEntry((match[1],), (words[0],), (words[1],), tuple(words[2:]), options)
        )
    return entries


def parse_deb822(text: str) -> list[SourceEntry]:
    """Read a ``.sources`` file: paragraphs of ``Field: value``, disabled ones left out."""
    entries = []
    for fields in _paragraphs(text):
        if fields.get("enabled", "yes").lower() in _NO:
            continue
        entries.append(
            SourceEntry(
                types=tuple(fields.get("types", "").split()),
                urls=tuple(fields.get("uris", "").split()),
                suites=tuple(fields.get("suites", "").split()),
                components=tuple(fields.get("components", "").split()),
                options=fields,
            )
        )
    return entries


def _paragraphs(text: str) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    name = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line[0] in " \t":
            if name:
                fields[name] += "\n" + line.strip()
        else:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()


def _apt_sources(
    entries: Iterable[SourceEntry], place: str, gathered: _Gathered
) -> Iterator[AptSource]:
    for entry in entries:
        if "deb" not in entry.types:
            continue
        signed_by = entry.options.get("signed-by", "")
        keyring = ""
        if "\n" in signed_by or "BEGIN PGP" in signed_by:
            gathered.notes.append(
                f"{place}: its key stands in the file; write it to one of its own"
            )
        elif signed_by:
            keyring = re.split(r"[,\s]+", signed_by)[0]
        check = entry.options.get("check-valid-until", "yes").lower() not in _NO
        for url in gathered.clean(entry.urls, "URIs", place):
            yield AptSource(url, entry.suites, entry.components, keyring, check)


# -- pip -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PipOption:
    """A setting of pip's and the file or variable that set it; may hold a password."""

    value: str
    where: str


def pip_options(
    env: Mapping[str, str], *, root: Path = Path("/"), prefix: Path
) -> dict[str, PipOption]:
    """Return what ``pip install`` would take from its configuration, by option name.

    Files in pip's order: system-wide, the user's, the environment's (`prefix`), the one that
    ``PIP_CONFIG_FILE`` names (then the user's do not count); a later one wins, as does the section
    ``install`` over ``global``, and ``PIP_*`` over all. A value that is empty does not count.
    """
    sections: dict[str, dict[str, PipOption]] = {"global": {}, "install": {}}
    for file in pip_files(env, root=root, prefix=prefix):
        text = _read(file)
        if text is None:
            continue
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(text)
        except configparser.Error:
            continue  # pip itself refuses such a file
        for section, options in sections.items():
            if parser.has_section(section):
                for key, value in parser.items(section):
                    options[_pip_key(key)] = PipOption(value, _shown(file, env))
    merged = {k: v for options in sections.values() for k, v in options.items() if v.value.strip()}
    for name, value in env.items():
        if name.startswith("PIP_") and value.strip():
            merged[_pip_key(name[len("PIP_") :])] = PipOption(value, name)
    return merged


def pip_files(env: Mapping[str, str], *, root: Path, prefix: Path) -> list[Path]:
    """Return pip's configuration files, the one that wins last; they need not exist."""
    named = env.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = _home(env)
    shared = (env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    files = [root / folder.lstrip("/") / "pip/pip.conf" for folder in shared]
    files.append(root / "etc/pip.conf")
    if not (named and _read(Path(named)) is not None):
        files.append(home / ".pip/pip.conf")
        files.append(Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf")
    files.append(prefix / "pip.conf")
    if named:
        files.append(Path(named))
    return files


def _home(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or Path.home())


def _shown(file: Path, env: Mapping[str, str]) -> str:
    # A home's path is its user's name.
    home = _home(env)
    return f"~/{file.relative_to(home)}" if file.is_relative_to(home) else str(file)


def _pip_key(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _take_pip(options: Mapping[str, PipOption], gathered: _Gathered) -> None:
    nothing = PipOption("", "")
    for option, name in (
        ("extra-index-url", "extra_indexes"),
        ("find-links", "find_links"),
        ("constraint", "constraints"),
        ("trusted-host", "trusted_hosts"),
    ):
        found = options.get(option, nothing)
        gathered.put(name, gathered.clean(found.value.split(), option, found.where), found.where)
    for option, name in (("index-url", "index"), ("proxy", "proxy")):
        found = options.get(option, nothing)
        for url in gathered.clean(found.value.split()[:1], option, found.where):
            gathered.put(name, url, found.where)
    found = options.get("no-index", nothing)
    gathered.put(
        "no_index", found.value.strip().lower() in ("1", "y", "yes", "t", "true", "on"), found.where
    )
    found = options.get("cert", nothing)
    gathered.put("ca_bundle", found.value.strip(), found.where)


# -- environment ---------------------------------------------------------------------------------


def _take_environment(env: Mapping[str, str], gathered: _Gathered) -> None:
    """Take the variables that pip, requests, uv and curl honour, after their own settings."""
    for upper in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
        for name in (upper.lower(), upper):
            for url in gathered.clean([env[name]] if env.get(name) else [], "proxy", name):
                gathered.put("proxy", url, name)
    for name in ("no_proxy", "NO_PROXY"):
        # No host has an "@"; where one stands, a login could be cut into what look like hosts.
        whole = "".join(gathered.clean([env.get(name, "")], "the list", name))
        hosts = tuple(host for host in re.split(r"[,\s]+", whole) if host)
        gathered.put("no_proxy", hosts, name)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        gathered.put("ca_bundle", env.get(name), name)


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
