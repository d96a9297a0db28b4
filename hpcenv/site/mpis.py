"""Every MPI of a machine: on PATH, in modules, in the usual prefixes, in this Python environment.

A launcher and a library belong together when they lie under one prefix and say the same: the
launcher by what it prints of itself, the library by its content. A name or a soname decides
nothing: two families share a folder in Debian, and a soname in Open MPI 1.10.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hpcenv.base.errors import BadInput
from hpcenv.base.known import Fact, Known, Unknown, value_of
from hpcenv.base.together import together
from hpcenv.base.version import Version
from hpcenv.image.facts import ElfNeed, Family, Mpi
from hpcenv.image.loader import closure, library_folders, needs_below
from hpcenv.image.mpi import mpi_facts
from hpcenv.image.rootfs import RootFs, open_rootfs
from hpcenv.site import captured
from hpcenv.site.host import Host
from hpcenv.site.libraries import spoken_versions
from hpcenv.site.model import SiteMpi
from hpcenv.site.modules import Module, Modules, find_modules

T = TypeVar("T")

_LAUNCHERS = ("mpirun", "mpirun.*", "mpiexec", "mpiexec.*", "orterun", "prterun")
_COMPILERS = ("mpicc", "mpicc.*")
_LIBRARIES = ("libmpi.so*", "libmpich.so*", "libmpi_cray.so*", "libmpi_gnu_*.so*")
_NOBODYS = ("/bin", "/usr/bin", "/usr/local/bin")
"""Folders that belong to no module, whichever puts them on PATH."""
_BELOW_PREFIX = ("lib", "lib64", "lib/release", "lib/release_mt", "lib/*-linux-gnu")
_PREFIXES = (
    "/usr",
    "/usr/local",
    "/usr/lib64/*mpi*",
    "/usr/lib64/mvapich2*",
    "/usr/lib64/mpi/gcc/*",
    "/usr/mpi/*/*",
    "/usr/local/*mpi*",
    "/opt/*mpi*",
    "/opt/*mpi*/*",
    "/opt/mvapich2*",
    "/opt/amazon/*mpi*",
    "/opt/hpcx*/ompi",
    "/opt/hpcx/*/ompi",
    "/opt/intel/oneapi/mpi/*",
    "/opt/intel/impi/*/intel64",
    "/opt/cray/pe/mpich/*/*/*/*",
    "/opt/ohpc/pub/mpi/*",
    "/opt/ohpc/pub/mpi/*/*",
)
_ASK = "mpirun --version; ompi_info --parsable or mpichversion; readlink -f on its libmpi.so"


@dataclass(frozen=True)
class _Place:
    """A folder of programs, and why it was looked at."""

    folder: str
    why: str
    module: Module | None = None


@dataclass(frozen=True)
class _Start:
    """A launcher: where names lead to one real file, the best of them, and what it says."""

    places: tuple[_Place, ...]
    name: str
    says: Known[captured.Launcher]


def find_mpis(host: Host) -> Fact[tuple[SiteMpi, ...]]:
    """Find every MPI; the one that ``mpirun`` on PATH belongs to comes first."""
    modules = find_modules(host)
    places = _places(host, modules)
    root = open_rootfs(host.root)
    starts, refused = _starts(host, places)
    libraries = {place: _libraries(root, place.folder) for place in places}
    found: dict[str, SiteMpi] = {}
    for start in starts:
        place, library = _matching(root, start, libraries)
        mpi = _described(
            root,
            place,
            Known(start.name, "read", start.places[0].why),
            _completed(host, place, library or _not_found(start)),
        )
        family = value_of(mpi.library.family)
        # mpirun and mpiexec may be two programs of one installation.
        found.setdefault(mpi.library.file or f"{mpi.prefix} {family}", mpi)
    for place, candidates in libraries.items():
        for library in candidates:
            if library.file not in found:
                found[library.file] = _without_launcher(root, place, library, refused)
    named = tuple(_named(list(found.values())))
    looked = (
        f"PATH ({len(host.path)} folders), {modules.files} modulefiles"
        f"{'' if modules.complete else ' (more were left out)'} in {len(modules.folders)} folders,"
        f" {len(_PREFIXES)} usual prefixes, this Python environment"
        + "".join(f"; not taken for a launcher: {why}" for why in refused.values())
    )
    return Known(named, "ran", looked)


# -- where to look -------------------------------------------------------------------------------


def _places(host: Host, modules: Modules) -> tuple[_Place, ...]:
    places = [_Place(folder, "PATH") for folder in host.path]
    places += [_Place(str(Path(sys.prefix, "bin")), "this Python environment")]
    places += [
        _Place(folder, f"module {module.name}", module)
        for module in modules.found
        for folder in module.path
        if folder not in _NOBODYS
    ]
    for pattern in _PREFIXES:
        for prefix in sorted(host.root.glob(pattern.lstrip("/"))):
            places.append(_Place(f"/{prefix.relative_to(host.root)}/bin", "usual prefix"))
    loaded = host.env.get("LOADEDMODULES", "").split(":")
    unique: dict[str, _Place] = {}
    for place in places:
        if not host.is_folder(place.folder):
            continue
        real = str(host.at(place.folder).resolve())
        if not any(_programs(host, place.folder, (*_LAUNCHERS, *_COMPILERS))):
            continue
        # A folder that a loaded module put on PATH is the module's.
        known = unique.setdefault(real, place)
        if place.module and not known.module and place.module.name in loaded:
            unique[real] = replace(known, module=place.module)
    return tuple(unique.values())


def _programs(host: Host, folder: str, patterns: Sequence[str]) -> Iterator[str]:
    for name in host.folder(folder):
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            path = f"{folder}/{name}"
            if host.is_file(path) and os.access(host.at(path), os.X_OK):
                yield path


def _starts(host: Host, places: Iterable[_Place]) -> tuple[list[_Start], dict[str, str]]:
    """Find the launchers, and ask each real file once what it is; the one of ``mpirun`` is first.

    Returns
    -------
    list of _Start
        Those that said what they are.
    dict
        Why each other one was not taken, by its name.
    """
    names: dict[str, list[str]] = {}
    where: dict[str, list[_Place]] = {}
    for place in places:
        for name in sorted(_programs(host, place.folder, _LAUNCHERS), key=_plain_first):
            real = str(host.at(name).resolve())
            names.setdefault(real, []).append(name)
            where.setdefault(real, []).append(place)

    def ask(real: str) -> Fact[captured.Launcher]:
        needs = _library_path(host, where[real][0])
        argv = [names[real][0], "--version"]
        return host.ran(argv, captured.launcher_version, _ASK, env=needs)

    mpirun = host.program("mpirun")
    default = str(host.at(mpirun).resolve()) if mpirun else ""
    order = sorted(names, key=lambda real: real != default)
    starts, refused = [], {}
    for real, says in zip(order, together(*(partial(ask, real) for real in order)), strict=True):
        if isinstance(says, Unknown):
            refused[names[real][0]] = says.why
        else:
            # A link in a folder of links leads to where the library is.
            home = replace(where[real][0], folder=real.rpartition("/")[0])
            best = min(names[real], key=lambda name: _steady(host, name))
            starts.append(_Start((*dict.fromkeys(where[real]), home), best, says))
    return starts, refused


def _library_path(host: Host, place: _Place) -> dict[str, str]:
    """The environment in which a module's programs start; nothing where it sets none."""
    if place.module is None or not place.module.library_path:
        return {}
    folders = [*place.module.library_path, host.env.get("LD_LIBRARY_PATH", "")]
    return {"LD_LIBRARY_PATH": ":".join(folder for folder in folders if folder)}


def _plain_first(name: str) -> tuple[bool, bool, str]:
    base = name.rpartition("/")[2]
    return base != "mpirun", base != "mpiexec", base


def _steady(host: Host, name: str) -> tuple[bool, bool, int, str]:
    # An alternative leads elsewhere tomorrow; the name that it leads to does not.
    path = host.at(name)
    switched = path.is_symlink() and "/alternatives/" in str(path.readlink())
    return switched, "mpirun" not in path.name, len(path.name), name


def _libraries(root: RootFs, folder: str) -> tuple[Mpi, ...]:
    """Read the MPI libraries under the prefix of a folder of programs."""
    prefix = folder.rpartition("/")[0] or "/usr"
    if prefix.endswith("/bin"):  # …/intel64/bin and …/bin/intel64 both occur
        prefix = prefix.rpartition("/")[0]
    below = [f"{prefix}/{lib}" for lib in _BELOW_PREFIX]
    if prefix == "/usr":
        below = list(library_folders(root, platform.machine()))
    read: dict[str, Mpi] = {}
    for path in root.find(*(f"{lib}/{name}" for lib in below for name in _LIBRARIES)):
        real = root.resolve(path)
        if real is None or real in read:
            continue
        with contextlib.suppress(BadInput):  # a linker script, a library of another machine
            read[real] = mpi_facts(root, real)
    # Wheels hold copies where others have links; the one whose name tells its ABI says most.
    found: dict[tuple[object, ...], Mpi] = {}
    for library in sorted(read.values(), key=lambda library: isinstance(library.abi, Unknown)):
        here = library.file.rpartition("/")[0]
        found.setdefault((here, value_of(library.family), value_of(library.version)), library)
    return tuple(found.values())


# -- what belongs together -----------------------------------------------------------------------


def _matching(
    root: RootFs, start: _Start, libraries: dict[_Place, tuple[Mpi, ...]]
) -> tuple[_Place, Mpi | None]:
    """Return the library that says the same as a launcher, and the place under whose prefix."""
    for place in start.places:
        known = libraries.get(place)
        for library in _libraries(root, place.folder) if known is None else known:
            if _fits(start.says.value, library):
                return place, library
    return start.places[0], None


def _fits(launcher: captured.Launcher, library: Mpi) -> bool:
    family = value_of(library.family)
    if launcher.family is None:
        # Hydra: any family of MPICH's line but those with a launcher that names itself.
        if family not in (Family.MPICH, Family.MVAPICH):
            return False
    elif family is not launcher.family:
        return False
    # MVAPICH brings the Hydra of the MPICH that it was made from.
    version = value_of(library.version)
    if launcher.version is None or version is None or family is Family.MVAPICH:
        return True
    return version.release == launcher.version.release


def _without_launcher(
    root: RootFs, place: _Place, library: Mpi, refused: Mapping[str, str]
) -> SiteMpi:
    family, version = value_of(library.family), value_of(library.version)
    here = [why for name, why in refused.items() if name.startswith(f"{place.folder}/")]
    missing = Unknown(
        f"no launcher in {place.folder} says that it is {family or 'of its kind'} {version or ''}"
        + "".join(f"; {why}" for why in here),
        "command -v mpirun mpiexec, with its module loaded; without one, srun starts the ranks",
    )
    return _described(root, place, missing, library)


def _described(root: RootFs, place: _Place, launcher: Fact[str], library: Mpi) -> SiteMpi:
    prefix = place.folder.rpartition("/")[0] or "/usr"
    needs: Fact[tuple[ElfNeed, ...]] = Unknown(
        "no library of it was found", "readelf -V on its libmpi.so"
    )
    spoken: dict[str, Fact[Version]] = {}
    files: dict[str, str] = {}
    if library.file:
        needs = Known(needs_below(root, library.file), "read", library.file)
        files = _helpers(root, library)
        spoken = spoken_versions(files)
    return SiteMpi(
        name="",
        prefix=prefix,
        launcher=launcher,
        library=_with_pmix(library, spoken.get("pmix")),
        needs=needs,
        module=place.module.name if place.module else None,
        ucx=_transport(library, "ucx", spoken, "ucx_info -v"),
        libfabric=_transport(library, "ofi", spoken, "fi_info --version"),
    )


def _named(mpis: list[SiteMpi]) -> Iterator[SiteMpi]:
    """Give each a name of its own: its module's, its family's, its family's with the version."""
    used: set[str] = set()
    families = [value_of(mpi.library.family) for mpi in mpis]
    for mpi, family in zip(mpis, families, strict=True):
        base = family.value if family else "mpi"
        choices = [mpi.module] if mpi.module else []
        if families.count(family) == 1:
            choices.append(base)
        version = value_of(mpi.library.version)
        choices.append(f"{base}-{version or 'unknown'}")
        numbered = (f"{choices[-1]}-{n}" for n in itertools.count(2))
        name = next(c for c in itertools.chain(choices, numbered) if c not in used)
        used.add(name)
        yield replace(mpi, name=name)


# -- what the library's own file does not tell ---------------------------------------------------


def _not_found(start: _Start) -> Mpi:
    says = start.says
    prefixes = [place.folder.rpartition("/")[0] for place in start.places]
    folders = ", ".join(f"{prefix}/lib*" for prefix in dict.fromkeys(prefixes))
    missing = Unknown(f"no library that fits {start.name} lies under {folders}", _ASK)
    launcher = says.value
    return Mpi(
        family=Known(launcher.family, "ran", says.where) if launcher.family else missing,
        version=Known(launcher.version, "ran", says.where) if launcher.version else missing,
        soname="",
        file="",
        abi=missing,
        pmi=missing,
        pmix=missing,
        transports=missing,
    )


def _completed(host: Host, place: _Place, library: Mpi) -> Mpi:
    """Ask the installation's own tool for what is not known yet."""
    facts = (library.family, library.version, library.abi, library.pmi, library.transports)
    if not any(isinstance(fact, Unknown) for fact in facts):
        return library
    family = value_of(library.family)
    if family is Family.OPENMPI:
        return _from_ompi_info(host, place, library)
    if family in (None, Family.MPICH, Family.MVAPICH):
        return _from_mpichversion(host, place, library)
    return library


def _from_ompi_info(host: Host, place: _Place, library: Mpi) -> Mpi:
    tool = _beside(host, place, ("ompi_info",))
    if tool is None:
        return library
    needs = _library_path(host, place)
    said = host.ran([tool, "--parsable"], captured.ompi_info, _ASK, env=needs)
    if not isinstance(said, Known) or not _same(said.value.version, library.version):
        return library
    info = said.value
    return replace(
        library,
        version=_or(library.version, info.version, said),
        pmi=_or(library.pmi, info.pmi or None, said),
        transports=_or(library.transports, info.transports or None, said),
    )


def _from_mpichversion(host: Host, place: _Place, library: Mpi) -> Mpi:
    tool = _beside(host, place, ("mpichversion", "mpich2version", "mpiname"))
    if tool is None:
        return library
    argv = [tool, "-a"] if tool.endswith("mpiname") else [tool]
    said = host.ran(argv, captured.mpichversion, _ASK, env=_library_path(host, place))
    if not isinstance(said, Known) or not _same(said.value.version, library.version):
        return library
    info = said.value
    return replace(
        library,
        family=_or(library.family, info.family, said),
        version=_or(library.version, info.version, said),
        abi=_or(library.abi, info.abi, said),
        transports=_or(library.transports, info.transports or None, said),
    )


def _beside(host: Host, place: _Place, names: Sequence[str]) -> str | None:
    return next(_programs(host, place.folder, names), None)


def _same(said: Version | None, known: Fact[Version]) -> bool:
    version = value_of(known)
    return said is not None and (version is None or version.release == said.release)


def _or(fact: Fact[T], value: T | None, said: Known[Any]) -> Fact[T]:
    if isinstance(fact, Known) or value is None:
        return fact
    return Known(value, said.how, said.where)


def _helpers(root: RootFs, library: Mpi) -> dict[str, str]:
    """Return the UCX, libfabric and PMIx files that the library and its plug-ins would load."""
    here = library.file.rpartition("/")[0]
    plugins: Iterable[str] = ()
    if value_of(library.family) is Family.OPENMPI:
        plugins = root.find(
            *(
                f"{folder}/mca_{name}.so"
                for folder in (f"{here}/openmpi*", f"{here}/openmpi/lib/openmpi*")
                for name in ("pml_ucx", "mtl_ofi", "btl_ofi")
            )
        )
    loaded: dict[str, None] = {}
    for file in (library.file, *plugins):
        try:
            loaded |= dict.fromkeys(closure(root, file))
        except (ValueError, OSError):
            continue
    found: dict[str, str] = {}
    for path in loaded:
        base = path.rpartition("/")[2]
        for name, stem in (("ucx", "libucp.so"), ("ofi", "libfabric.so")):
            if base.startswith(stem):
                found.setdefault(name, path)
    if isinstance(library.pmix, Known) and re.search(r"/libpmix\.so", library.pmix.where):
        found["pmix"] = library.pmix.where
    return found


def _transport(
    library: Mpi, name: str, spoken: dict[str, Fact[Version]], ask: str
) -> Fact[Version | None]:
    if name in spoken:
        return spoken[name]
    transports = library.transports
    if isinstance(transports, Unknown):
        return Unknown(transports.why, ask)
    if name not in transports.value:
        return Known(None, transports.how, transports.where)
    return Unknown(f"no file of it is found from {library.file}; it may be built in", ask)


def _with_pmix(library: Mpi, spoken: Fact[Version] | None) -> Mpi:
    pmix = library.pmix
    if spoken is None or not isinstance(pmix, Known) or isinstance(pmix.value.version, Known):
        return library
    return replace(library, pmix=replace(pmix, value=replace(pmix.value, version=spoken)))
