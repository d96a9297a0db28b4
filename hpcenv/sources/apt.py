"""A suite of a Debian archive, read with apt itself but with a state of our own.

No root, nothing of the host's package state is read or changed: an empty status file, package
lists in a folder of ours, sources made from the mirrors. The host's own ``Acquire`` settings
(proxies, certificates, whether an old Release file is accepted) are carried over, since they say
how its network is. apt verifies each Release file to the archive's keyring and each index to the
Release file; the SHA-256 of a package comes from the verified index.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import quote, unquote

from hpcenv.base.blobs import Digest, digest_of_file
from hpcenv.base.errors import BadInput, Outside
from hpcenv.base.process import Outcome, run
from hpcenv.base.publish import remove
from hpcenv.sources.mirrors import AptSource, Mirrors

SUITES = {"debian:11": "bullseye", "debian:12": "bookworm", "debian:13": "trixie"}
"""Operating systems that a recipe may name, and their suites."""

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's names of the machines that ``uname -m`` names."""

BASE = ("?essential", "apt")
"""What ``mmdebstrap --variant=apt`` installs before anything that was asked for."""

_ROLLING = frozenset({"sid", "unstable", "experimental"})
_NAMES = frozenset(SUITES.values()) | _ROLLING | {"stable", "oldstable", "testing", "forky"}
_POCKETS = ("", "-updates", "-security")
_OURS = re.compile(r"^Acquire::(IndexTargets|Languages|GzipIndexes|Compression|ForceHash|Retries)")
_URI = re.compile(r"^'(?P<url>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})$")
_UPDATE_S = 300.0
_SOLVE_S = 120.0


@dataclass(frozen=True)
class Deb:
    """One package of the verified index.

    Attributes
    ----------
    path : str
        Below the archive's root: ``pool/main/…``.
    size : int
        Bytes.
    url : str
        Where this host's mirror has it.
    """

    name: str
    version: str
    arch: str
    path: str
    size: int
    sha256: Digest
    url: str


@dataclass(frozen=True)
class SignedRelease:
    """A Release file whose signature was checked.

    Attributes
    ----------
    suite : str
        Its codename, such as ``bookworm-security``.
    date : str
        When the archive made it, ISO 8601 in UTC.
    sha256 : Digest
        Of the InRelease file.
    """

    suite: str
    date: str
    sha256: Digest


@dataclass(frozen=True)
class Suite:
    """An opened suite; see `open_suite`."""

    name: str
    folder: Path
    sources: tuple[AptSource, ...]

    def releases(self) -> tuple[SignedRelease, ...]:
        """Return the signed Release files that the answers come from, ordered by suite."""
        found = [_release(file) for file in sorted(self._lists.glob("*_InRelease"))]
        return tuple(sorted(found, key=lambda release: release.suite))

    def solve(self, names: Iterable[str], *, base: Sequence[str] = BASE) -> tuple[Deb, ...]:
        """Return everything that an empty root file system needs for these packages.

        Recommended packages are left out. The answer is complete: a flat repository of these
        files alone installs with no network.

        Parameters
        ----------
        names : iterable of str
            Packages, each a name or ``name=version``.
        base : sequence of str
            What is installed first; the essential packages and apt where it is left out.

        Raises
        ------
        BadInput
            If there is no such package, or they exclude each other.
        """
        wanted = [*base, *dict.fromkeys(names)]
        with _locked(self.folder):
            return self._uris(["install", "--no-install-recommends", *wanted])

    def named(self, names: Iterable[str]) -> tuple[Deb, ...]:
        """Return the suite's newest version of these packages, without what they depend on.

        Raises
        ------
        BadInput
            If there is no such package.
        """
        with _locked(self.folder):
            return self._uris(["download", *dict.fromkeys(names)])

    @property
    def _lists(self) -> Path:
        return self.folder / "lists"

    def _uris(self, arguments: list[str]) -> tuple[Deb, ...]:
        outcome = _apt_get(self.folder, ["-y", "--print-uris", *arguments], _SOLVE_S)
        if not outcome.ok:
            lines = [line for line in outcome.err.splitlines() + outcome.out.splitlines() if line]
            absent = [m[1] for line in lines if (m := re.search(r"locate package (\S+)", line))]
            absent += [
                f"{m[2]}={m[1]}"
                for line in lines
                if (m := re.search(r"Version '(.+)' for '(.+)' was not found", line))
            ]
            if absent:
                raise BadInput(
                    f"{self.name} has no package {', '.join(map(repr, absent))}",
                    remedy="apt-cache search WORD lists what there is; see [base] packages",
                )
            unmet = [
                line.strip() for line in lines if re.search(r":\s(Pre)?-?Depends:|Conflicts:", line)
            ]
            told = "\n    ".join(unmet or [line for line in lines if line.startswith("E:")])
            raise BadInput(f"{self.name}: apt found no way to install this together\n    {told}")
        return tuple(
            self._deb(match)
            for line in outcome.out.splitlines()
            if (match := _URI.match(line)) is not None
        )

    def _deb(self, match: re.Match[str]) -> Deb:
        url = match["url"]
        roots = [s.url.rstrip("/") + "/" for s in self.sources if url.startswith(s.url.rstrip("/"))]
        if not roots:
            raise Outside(f"apt named {url}, which is below none of this host's mirrors")
        name, version, arch = match["file"].removesuffix(".deb").rsplit("_", 2)
        return Deb(
            name=name,
            version=unquote(version),
            arch=arch,
            path=unquote(url.removeprefix(max(roots, key=len))),
            size=int(match["size"]),
            sha256=Digest(match["sha256"]),
            url=url,
        )


def open_suite(root: Path, mirrors: Mirrors, suite: str, arch: str = "x86_64") -> Suite:
    """Bring the package lists of a suite up to date, verified to the archive's keyring.

    Takes some seconds the first time and less than one when nothing changed.

    Parameters
    ----------
    root : Path
        A folder of ours in which the lists are kept between calls.
    suite : str
        A codename such as ``bookworm``, also of another release than the host's. The host's
        mirrors are asked for it, and for its updates and security pockets where the host has them.
    arch : str
        As ``uname -m`` says it.

    Raises
    ------
    BadInput
        If no Debian archive is configured.
    Outside
        If apt is not there, the archive cannot be reached, or a signature is not right.
    """
    sources = sources_for(mirrors, suite)
    if not sources:
        raise BadInput(
            "no Debian archive is configured on this host",
            remedy="add one to /etc/apt/sources.list.d, or to [mirrors] of the site profile",
        )
    text = _sources_text(sources, suite)
    known = hashlib.sha256(text.encode()).hexdigest()[:12]
    folder = root / f"{suite}-{arch}-{known}"
    for part in ("lists/partial", "archives/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        (folder / "status").write_text("")
        (folder / "archive.sources").write_text(text)
        (folder / "apt.conf").write_text(_configuration(folder, mirrors, ARCHITECTURES[arch]))
        outcome = _apt_get(folder, ["update"], _UPDATE_S)
        if not outcome.ok:
            raise _explained(outcome, suite, sources)
    return Suite(suite, folder, sources)


def sources_for(mirrors: Mirrors, suite: str) -> tuple[AptSource, ...]:
    """Return the host's archives with the suites that stand for `suite` there. Pure.

    A host's ``trixie trixie-updates`` becomes ``bookworm bookworm-updates``; archives that are not
    Debian's, and pockets such as backports, are left out. A rolling suite has no pockets.
    """
    pockets = ("",) if suite in _ROLLING else _POCKETS
    found: dict[str, AptSource] = {}
    for source in mirrors.apt:
        offered = {_pocket(name) for name in source.suites}
        suites = tuple(suite + pocket for pocket in pockets if pocket in offered)
        if not suites:
            continue
        before = found.get(source.url)
        if before is not None:
            suites = tuple(dict.fromkeys(before.suites + suites))
        found[source.url] = replace(source, suites=suites, components=("main",))
    return tuple(found.values())


def url_of(source: AptSource, path: str) -> str:
    """Where an archive has the file of that pool path. Pure."""
    return f"{source.url.rstrip('/')}/{quote(path, safe='/+~:')}"


def _pocket(name: str) -> str | None:
    base, dash, pocket = name.partition("-")
    return dash + pocket if base in _NAMES else None


def _sources_text(sources: Sequence[AptSource], suite: str) -> str:
    return "\n".join(
        f"Types: deb\nURIs: {source.url}\nSuites: {' '.join(source.suites)}\n"
        f"Components: {' '.join(source.components)}\n"
        + (f"Signed-By: {source.keyring}\n" if source.keyring else "")
        # A rolling suite's Release file expires within a week, sooner than mirrors may follow.
        + ("Check-Date: no\n" if suite in _ROLLING else "")
        + ("" if source.check_valid_until and suite not in _ROLLING else "Check-Valid-Until: no\n")
        for source in sources
    )


def _configuration(folder: Path, mirrors: Mirrors, arch: str) -> str:
    dump = run(["apt-config", "dump", "--no-empty"], deadline=10, env=_environment())
    host = [
        line
        for line in dump.must("reading apt's configuration").out.splitlines()
        if line.startswith("Acquire::") and not _OURS.match(line)
    ]
    ours = {
        "Dir::State": folder,
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::State::extended_states": folder / "extended_states",
        "Dir::Cache": folder,
        "Dir::Log": folder,
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": "/dev/null",
        "Dir::Etc::sourcelist": folder / "archive.sources",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Architecture": arch,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "APT::Update::Error-Mode": "any",
        "Acquire::Languages": "none",
        "Acquire::ForceHash": "SHA256",
        "Acquire::Retries": "1",
    }
    if proxy := mirrors.apt_proxy or mirrors.proxy:
        ours |= {"Acquire::http::Proxy": proxy, "Acquire::https::Proxy": proxy}
    if mirrors.ca_bundle:
        ours["Acquire::https::CaInfo"] = mirrors.ca_bundle
    off = ["DEP-11", "DEP-11-icons", "DEP-11-icons-small", "DEP-11-icons-large", "Contents-deb"]
    targets = [f'Acquire::IndexTargets::deb::{name}::DefaultEnabled "false";' for name in off]
    lines = [f'{key} "{value}";' for key, value in ours.items()]
    architectures = f'#clear APT::Architectures;\nAPT::Architectures {{ "{arch}"; }};'
    return "\n".join([*host, *targets, *lines, architectures]) + "\n"


def _apt_get(folder: Path, arguments: list[str], deadline: float) -> Outcome:
    # What checks signatures leaves its files behind where it is stopped.
    temporary = folder / "tmp"
    environment = _environment() | {
        "APT_CONFIG": str(folder / "apt.conf"),
        "TMPDIR": str(temporary),
    }
    remove(temporary)  # of one that was killed, or cut off with its thread
    temporary.mkdir(mode=0o700)
    try:
        return run(["apt-get", *arguments], deadline=deadline, env=environment, cwd=folder)
    finally:
        remove(temporary)


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}


def _explained(outcome: Outcome, suite: str, sources: Sequence[AptSource]) -> Outside:
    text = outcome.err + outcome.out
    urls = ", ".join(source.url for source in sources)
    told = [line for line in text.splitlines() if line.startswith(("E:", "W:", "Err"))]
    says = f"cannot read Debian's {suite} from {urls}"
    remedy = "check the network and this host's apt sources"
    if outcome.timed_out:
        told.append(f"no answer in {outcome.seconds:.0f} s")
    elif re.search(r"NO_PUBKEY|not signed|BADSIG|signature|sqv|gpgv", text, re.IGNORECASE):
        says = f"the signature of Debian's {suite} at {urls} was not accepted"
        remedy = "apt-get install debian-archive-keyring; if it persists, do not trust the mirror"
    elif "is expired" in text or "not valid yet" in text:
        says = f"the Release file of Debian's {suite} at {urls} is out of date, or this clock is"
        remedy = "check `date`; a mirror that lags needs Acquire::Check-Valid-Until in apt.conf"
    elif "404" in text:
        says = f"{urls} has no suite {suite}"
        remedy = "is this a Debian archive that still carries it?  see [mirrors] of the profile"
    return Outside("\n    ".join([says, *dict.fromkeys(told)][:9]), remedy=remedy)


def _release(file: Path) -> SignedRelease:
    fields: dict[str, str] = {}
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        key, colon, value = line.partition(": ")
        if colon and not key.startswith(" "):
            fields.setdefault(key, value.strip())
        if line.startswith(("MD5Sum:", "SHA256:")):
            break
    date: datetime = parsedate_to_datetime(fields["Date"].replace("UTC", "+0000"))
    return SignedRelease(
        suite=fields.get("Codename") or fields["Suite"],
        date=date.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        sha256=digest_of_file(file),
    )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "in-use").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
