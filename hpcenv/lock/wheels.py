"""Solve Python requirements for an image with uv, and take one wheel a package.

uv reads none of pip's configuration, so the host's mirrors are handed to it as options, with
pip's own meaning: all indexes count alike, the best version wins. What comes back is stripped of
its URLs; where an index does not say a size, the index is asked otherwise.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from hpcenv.base.blobs import Digest
from hpcenv.base.errors import BadInput, Outside
from hpcenv.base.process import Outcome, run
from hpcenv.sources.mirrors import Mirrors

_SOLVE_S = 300.0
_OLDEST = {"x86_64": 5, "aarch64": 17}  # the first manylinux of each machine, as glibc 2.N
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_UV_NEWEST = 40  # uv knows no --python-platform beyond manylinux_2_40


@dataclass(frozen=True)
class Platform:
    """What a wheel must run on: the interpreter (``3.11``), the machine and its C library (2.N)."""

    python: str
    arch: str
    glibc: int

    def tags(self) -> Iterator[Tag]:
        """Return the wheel tags that it takes, best first."""
        version = tuple(int(part) for part in self.python.split("."))
        platforms = list(self._platforms())
        yield from cpython_tags(version, platforms=platforms)
        yield from compatible_tags(version, f"cp{version[0]}{version[1]}", platforms)

    def _platforms(self) -> Iterator[str]:
        yield f"linux_{self.arch}"
        for minor in range(self.glibc, _OLDEST[self.arch] - 1, -1):
            yield f"manylinux_2_{minor}_{self.arch}"
            if minor in _LEGACY:
                yield f"{_LEGACY[minor]}_{self.arch}"


@dataclass(frozen=True)
class Distribution:
    """A wheel or source distribution."""

    name: str
    version: str
    file: str
    size: int
    sha256: Digest


def solve(
    requirements: Iterable[str],
    platform: Platform,
    mirrors: Mirrors,
    cache: Path,
    *,
    options: Sequence[str] = (),
    prefer: Mapping[str, str] | None = None,
) -> tuple[Distribution, ...]:
    """Return one wheel for each package that the requirements need, ordered by name.

    Parameters
    ----------
    cache : Path
        uv's cache, kept between calls.
    options : sequence of str
        More options of ``uv pip compile``: ``--no-deps``, ``--upgrade-package P``.
    prefer : mapping of str to str, optional
        Versions to keep where they still fit.

    Raises
    ------
    BadInput
        If the requirements exclude each other, or something has no wheel for the platform.
    Outside
        If an index cannot be reached.
    """
    with tempfile.TemporaryDirectory(prefix="hpcenv-lock-") as scratch:
        answer = Path(scratch, "pylock.toml")
        # uv takes the versions of an existing lock as preferences; its hashes and files it reads
        # anew, so names and versions are enough.
        if prefer:
            answer.write_text(_preferences(prefer))
        outcome = run(
            [
                *(_uv(), "pip", "compile", "--quiet", "--no-config", "--no-header"),
                *("--format", "pylock.toml", "--output-file", str(answer)),
                *("--python", sys.executable, "--no-python-downloads"),
                *("--python-version", platform.python, "--only-binary", ":all:"),
                *("--python-platform", _uv_platform(platform), "--cache-dir", str(cache)),
                *_mirror_options(mirrors),
                *options,
                "-",
            ],
            deadline=_SOLVE_S,
            env=_environment(mirrors),
            stdin="".join(f"{requirement}\n" for requirement in requirements),
        )
        if not outcome.ok:
            raise _explained(outcome)
        packages = tomllib.loads(answer.read_text()).get("packages", [])
    chosen = [_best(package, platform) for package in packages]
    return _with_sizes(chosen, mirrors)


def source_distribution(name: str, version: str, mirrors: Mirrors) -> Distribution:
    """Return the source distribution of exactly that version.

    Raises
    ------
    BadInput
        If no configured index has it, with the digest that a lock needs.
    """
    # Imported where the network is needed: a lock that is kept does without HTTP.
    from hpcenv.sources.index import normal, offers

    for offer in offers([normal(name)], mirrors)[normal(name)]:
        plain = offer.file.endswith((".tar.gz", ".zip")) and offer.version == version
        if plain and offer.sha256 and offer.size is not None:
            return Distribution(normal(name), version, offer.file, offer.size, offer.sha256)
    raise BadInput(
        f"no configured package index has the source of {name} {version}",
        remedy="change [framework] of the recipe, or look at: python3 -m pip config list",
    )


def _preferences(prefer: Mapping[str, str]) -> str:
    packages = (f'[[packages]]\nname = "{n}"\nversion = "{v}"\n' for n, v in prefer.items())
    return 'lock-version = "1.0"\ncreated-by = "hpcenv"\n' + "".join(packages)


def _uv() -> str:
    beside = Path(sysconfig.get_path("scripts"), "uv")
    return str(beside) if beside.is_file() else "uv"


def _uv_platform(platform: Platform) -> str:
    return f"{platform.arch}-manylinux_2_{min(platform.glibc, _UV_NEWEST)}"


def _mirror_options(mirrors: Mirrors) -> Iterator[str]:
    yield from ("--index-strategy", "unsafe-best-match", "--system-certs")
    if mirrors.no_index:
        yield "--no-index"
    elif mirrors.index:
        yield from ("--default-index", mirrors.index)
    for index in () if mirrors.no_index else mirrors.extra_indexes:
        yield from ("--index", index)
    for links in mirrors.find_links:
        yield from ("--find-links", links)
    for file in mirrors.constraints:
        yield from ("--constraints", file)
    for host in mirrors.trusted_hosts:
        yield from ("--allow-insecure-host", host)


def _environment(mirrors: Mirrors) -> dict[str, str]:
    # What somebody set for a uv of their own must not steer ours.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    if mirrors.ca_bundle:
        environment["SSL_CERT_FILE"] = mirrors.ca_bundle
    if mirrors.proxy:
        environment |= {"HTTP_PROXY": mirrors.proxy, "HTTPS_PROXY": mirrors.proxy}
    if mirrors.no_proxy:
        environment["NO_PROXY"] = ",".join(mirrors.no_proxy)
    return environment


def _explained(outcome: Outcome) -> BadInput | Outside:
    told = (outcome.err or outcome.out).strip()
    if outcome.timed_out:
        return Outside(f"the package index gave no answer in {outcome.seconds:.0f} s")
    if "No solution found" in told:
        return BadInput(
            f"the recipe's Python packages cannot be installed together\n    {_indented(told)}",
            remedy="change [framework] or [python] of the recipe",
        )
    if any(words in told for words in ("Failed to fetch", "error sending request", "dns error")):
        return Outside(
            f"the package index cannot be reached\n    {_indented(told)}",
            remedy="check the network, and: python3 -m pip config list; a locked build needs none",
        )
    return BadInput(f"uv could not solve the Python packages\n    {_indented(told)}")


def _indented(text: str) -> str:
    return "\n    ".join(text.splitlines()[:12])


def _best(package: Mapping[str, Any], platform: Platform) -> tuple[str, str, dict[str, Any]]:
    """Return name, version and the entry of the wheel that an installer would take."""
    rank = {tag: number for number, tag in reversed(list(enumerate(platform.tags())))}
    ranked = []
    for wheel in package.get("wheels", []):
        file = wheel.get("name") or unquote(urlsplit(wheel.get("url", "")).path).rpartition("/")[2]
        _, _, build, tags = parse_wheel_filename(file)
        fitting = [rank[tag] for tag in tags if tag in rank]
        if fitting:
            # The better tag; among equal ones the higher build number.
            ranked.append(((-min(fitting), build), wheel | {"name": file}))
    if not ranked:
        raise BadInput(
            f"{package['name']} {package['version']} has no wheel for Python {platform.python} "
            f"on {platform.arch} with glibc 2.{platform.glibc}",
            remedy="name another version in [python] of the recipe",
        )
    return package["name"], package["version"], max(ranked, key=lambda item: item[0])[1]


def _with_sizes(
    chosen: Sequence[tuple[str, str, dict[str, Any]]], mirrors: Mirrors
) -> tuple[Distribution, ...]:
    from hpcenv.sources.index import normal, offers, size_at

    unsized = [normal(name) for name, _, wheel in chosen if "size" not in wheel]
    sizes = {
        offer.file: offer.size
        for found in offers(unsized, mirrors).values()
        for offer in found
        if offer.size is not None
    }
    done = []
    for name, version, wheel in chosen:
        size = wheel.get("size") or sizes.get(wheel["name"]) or size_at(wheel["url"], mirrors)
        if size is None:
            raise Outside(
                f"no configured package index says the size of {wheel['name']}",
                remedy="use an index with the JSON API, or copy the file into a find-links folder",
            )
        digest = Digest(wheel["hashes"]["sha256"])
        done.append(Distribution(normal(name), version, wheel["name"], size, digest))
    return tuple(sorted(done, key=lambda distribution: distribution.name))
