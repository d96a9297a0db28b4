"""Put an apptainer into a folder of the user's own: no root, and nothing of the system changes.

Debian has apptainer in its unstable suite alone, where it needs a newer C library than a stable
release has. So the packages of that suite, its C library among them, are unpacked side by side
into a prefix, and the two programs are told to start with that C library and to look for their
libraries there. The rest of the system goes on with its own.

The prefix lies in a folder whose name tells its content, and comes into being by one rename; the
link beside it that says which one is in use is replaced by another. A kill leaves the old or the
new.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from hpcenv.base.blobs import Blobs, Digest, digest_of_file
from hpcenv.base.errors import BadInput, Outside
from hpcenv.base.process import run
from hpcenv.base.publish import publish, remove, sweep, unfinished
from hpcenv.base.record import dump_json, load_json
from hpcenv.engines import capabilities
from hpcenv.engines.apptainer import Apptainer
from hpcenv.sources.apt import Deb, open_suite
from hpcenv.sources.download import Wanted, download
from hpcenv.sources.mirrors import Mirrors

SUITE = "unstable"
PACKAGES = ("apptainer", "libc6", "libseccomp2", "libsqlite3-0")
"""What the prefix is made of: apptainer and every library that its programs name."""

RECORD = "hpcenv-engine.json"
_LINK = "apptainer"
_COMMANDS = ("apptainer", "singularity")
_LIVE = ("usr/bin/*", "usr/lib/*/*.so*", "usr/lib/*/apptainer/*/*", "usr/etc/apptainer/*")
# Part of the folder's name: raise it when a prefix is made differently from the same packages.
_LAYOUT = 2
_UNPACK_S = 300.0


@dataclass(frozen=True)
class Package:
    """One package that went into a prefix."""

    name: str
    version: str
    path: str
    size: int
    sha256: Digest


@dataclass(frozen=True)
class Record:
    """What an installed engine is made of; lies within its prefix.

    Attributes
    ----------
    version : str
        Debian's, such as ``1.4.5-2``.
    released, installed : str
        When Debian made the package, and when it was put here; ISO 8601, UTC.
    packages : tuple of Package
        The files, by SHA-256 from the archive's signed index.
    files : mapping of str to Digest
        What the engine runs, reads and loads, as it was made of them: path below the prefix, and
        SHA-256.
    """

    schema: Literal[1]
    name: Literal["apptainer"]
    version: str
    suite: str
    released: str
    installed: str
    packages: tuple[Package, ...]
    files: Mapping[str, Digest]


def install(engines: Path, mirrors: Mirrors, say: Callable[[str], None]) -> Path:
    """Install the newest apptainer, or find that it is there already.

    Parameters
    ----------
    engines : Path
        The folder for engines; it gets ``bin/apptainer`` and ``bin/singularity``.
    mirrors : Mirrors
        Where the packages come from.
    say : callable
        Told what goes on, a line at a time.

    Returns
    -------
    Path
        The folder ``bin``, for PATH.

    Raises
    ------
    Outside
        If the archive cannot be reached, or a tool is missing or fails.
    """
    engines = engines.absolute()
    _need("dpkg-deb", "sudo apt-get install -y dpkg")
    if engines.is_dir():
        sweep(engines)
    debs = _newest(engines, mirrors, PACKAGES)
    version = next(deb.version for deb in debs if deb.name == "apptainer")
    prefix = engines / f"apptainer-{version}-{_content(engines, debs)[:12]}"
    if prefix.is_dir() and (changed := _changed(prefix)):
        say(f"changed since it was installed: {', '.join(changed)}; making it anew")
        remove(prefix)
    if prefix.is_dir():
        say(f"apptainer {version} is there already")
    else:
        say(f"fetching apptainer {version} ({sum(deb.size for deb in debs) / 1e6:.0f} MB)")
        blobs = Blobs(unfinished(engines / "packages"))
        try:
            download([Wanted(d.path, d.size, d.sha256, (d.url,)) for d in debs], blobs, mirrors)
            place([blobs.verified(deb.sha256) for deb in debs], prefix, _packages(debs))
        finally:
            remove(blobs.root)
    if Apptainer(prefix / "usr/bin/apptainer").version() is None:
        raise Outside(
            f"apptainer is in {prefix} but does not start there",
            remedy=f"is {engines} mounted noexec?  XDG_DATA_HOME=/another/folder moves it",
        )
    use(prefix, engines)
    for old in sorted(engines.glob("apptainer-*")):
        if old != prefix:
            say(f"an earlier one is still there, for what still uses it:  rm -r {old}")
    return engines / "bin"


def place(files: Sequence[Path], prefix: Path, packages: Sequence[Package]) -> None:
    """Make a working prefix of package files, at once or not at all."""
    with publish(prefix) as beside:
        beside.mkdir()
        for file in files:
            words = ["dpkg-deb", "--extract", str(file), str(beside)]
            run(words, deadline=_UNPACK_S).must(f"unpacking {file}")
        released = (beside / "usr/bin/apptainer").stat().st_mtime
        _relocate(beside, prefix)
        _configure(beside / "usr/etc/apptainer")
        record = Record(
            schema=1,
            name="apptainer",
            version=next(p.version for p in packages if p.name == "apptainer"),
            suite=SUITE,
            released=_iso(datetime.fromtimestamp(released, UTC)),
            installed=_iso(datetime.now(UTC)),
            packages=tuple(packages),
            files=_files(beside),
        )
        (beside / RECORD).write_text(dump_json(record))


def use(prefix: Path, engines: Path) -> None:
    """Make a prefix the one in use, and the commands in ``bin`` lead to it."""
    _link(engines / _LINK, Path(prefix.name))
    for command in _COMMANDS:
        _link(engines / "bin" / command, Path("..", _LINK, "usr/bin/apptainer"))


def installed(engines: Path) -> tuple[Path, Record] | None:
    """Return the program in use and its record; None where nothing was installed."""
    record = engines / _LINK / RECORD
    if not record.is_file():
        return None
    return engines / "bin" / "apptainer", load_json(Record, record)


def newest(engines: Path, mirrors: Mirrors) -> str:
    """Ask the archive for its newest version of apptainer.

    Raises
    ------
    Outside
        If the archive cannot be reached.
    """
    return _newest(engines, mirrors, ["apptainer"])[0].version


def link_for_path(bin_folder: Path, folder: Path) -> list[Path]:
    """Link the commands into a folder of PATH, where nothing else has their names.

    Returns
    -------
    list of Path
        The links that are there now and lead to `bin_folder`.
    """
    links = []
    for command in _COMMANDS:
        link = folder / command
        if not link.is_symlink() and not link.exists():
            _link(link, bin_folder / command)
        if link.is_symlink() and link.readlink() == bin_folder / command:
            links.append(link)
    return links


def _relocate(beside: Path, prefix: Path) -> None:
    """Make what was packaged for ``/`` find itself below `prefix`."""
    usr = beside / "usr"
    # apptainer looks for its files from where its program lies: in ../etc and ../var, seen from
    # usr/bin or from usr/lib.
    for name in ("etc", "var"):
        (beside / name).rename(usr / name)
        (usr / "lib" / name).symlink_to(f"../{name}")
    (usr / "var/lib/apptainer/mnt/session").mkdir(parents=True, exist_ok=True)
    libraries = _one(usr, "lib/*/libc.so.6").parent
    loader = _one(libraries, "ld-linux*.so.*")
    for program in (usr / "bin/apptainer", _one(libraries, "apptainer/bin/starter")):
        _check_needs(program, libraries)
        words = [
            *(_patchelf(), "--set-interpreter", str(prefix / loader.relative_to(beside))),
            # An RPATH, not a RUNPATH: it is the one that comes before LD_LIBRARY_PATH, which both
            # apptainer and its users set.
            *("--force-rpath", "--set-rpath"),
            "$ORIGIN/" + os.path.relpath(libraries, program.parent),
            str(program),
        ]
        run(words, deadline=60).must(f"relocating {program.name}")


def _check_needs(program: Path, libraries: Path) -> None:
    outcome = run([_patchelf(), "--print-needed", program], deadline=60)
    needed = outcome.must(f"reading {program.name}").out.split()
    absent = [name for name in needed if not (libraries / name).exists()]
    if absent:
        raise Outside(
            f"this apptainer needs {', '.join(absent)}, which is in none of its packages "
            f"({', '.join(PACKAGES)})",
            remedy="this hpcenv is too old for it: update hpcenv, and tell its makers",
        )


def _configure(folder: Path) -> None:
    conf = folder / "apptainer.conf"
    text, capability = capabilities.configure(conf.read_text(), capabilities.bounding())
    conf.write_text(text)
    (folder / "capability.json").write_text(capability)


def _files(prefix: Path) -> dict[str, Digest]:
    found = [file for pattern in _LIVE for file in prefix.glob(pattern)]
    return {
        str(file.relative_to(prefix)): digest_of_file(file)
        for file in sorted(found)
        if file.is_file() and not file.is_symlink()
    }


def _changed(prefix: Path) -> list[str]:
    """Name what is no longer as it was installed."""
    try:
        recorded = load_json(Record, prefix / RECORD).files
    except BadInput:
        return [RECORD]
    found = _files(prefix)
    return sorted(name for name in {*recorded, *found} if recorded.get(name) != found.get(name))


def _content(engines: Path, debs: Sequence[Deb]) -> str:
    """Tell one prefix from another: packages, place, layout and what root may do."""
    have = sorted(capabilities.bounding())
    words = [str(_LAYOUT), str(engines), *have, *sorted(deb.sha256 for deb in debs)]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def _newest(engines: Path, mirrors: Mirrors, names: Sequence[str]) -> tuple[Deb, ...]:
    # Package lists of the whole suite are larger than the engine and serve this once.
    lists = unfinished(engines / "lists")
    lists.mkdir(parents=True)
    try:
        return open_suite(lists, mirrors, SUITE, platform.machine()).named(names)
    finally:
        remove(lists)


def _packages(debs: Sequence[Deb]) -> tuple[Package, ...]:
    return tuple(Package(d.name, d.version, d.path, d.size, d.sha256) for d in debs)


def _patchelf() -> str:
    # The one that came with us, as a dependency; PATH may have an older one.
    beside = Path(sysconfig.get_path("scripts")) / "patchelf"
    return str(beside) if beside.is_file() else "patchelf"


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    with publish(link) as beside:
        beside.symlink_to(target)


def _one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise Outside(
            f"the packages hold no {pattern}, where apptainer's always did",
            remedy="this hpcenv is too old for it: update hpcenv, and tell its makers",
        )
    return found[0]


def _need(program: str, remedy: str) -> None:
    if shutil.which(program) is None:
        raise Outside(f"{program} is not installed", remedy=remedy)


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
