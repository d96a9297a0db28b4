"""A profile for people: what is known in a table, and what is not with what would tell."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hpcenv.base.known import Fact, Known, Unknown, value_of
from hpcenv.base.version import Version
from hpcenv.site.model import HostEngine, SiteMpi, SiteProfile, Slurm

T = TypeVar("T")


def summary(profile: SiteProfile) -> str:
    """Return the profile's facts in a table, unknown ones left to `unknowns`."""
    rows = list(_rows(profile))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in rows)


def unknowns(profile: SiteProfile) -> tuple[tuple[str, Unknown], ...]:
    """Return every unknown fact of a profile by its dotted name."""
    return tuple(_unknowns(profile, ""))


def _unknowns(value: Any, path: str) -> Iterator[tuple[str, Unknown]]:
    if isinstance(value, Unknown):
        yield path, value
    elif isinstance(value, Known):
        yield from _unknowns(value.value, path)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _unknowns(item, f"{path}[{getattr(item, 'name', index)}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, Version):
        for field in dataclasses.fields(value):
            inner = f"{path}.{field.name}" if path else field.name
            yield from _unknowns(getattr(value, field.name), inner)


def _rows(profile: SiteProfile) -> Iterator[tuple[str, str]]:
    yield "site", profile.name
    os = value_of(profile.os)
    kernel, libc = value_of(profile.kernel), value_of(profile.libc)
    parts = [
        os.name if os else "",
        f"kernel {kernel}" if kernel else "",
        f"glibc {libc}" if libc else "",
    ]
    yield "system", _listed(parts)
    cpus = value_of(profile.cpus)
    yield "node", _listed([value_of(profile.arch) or "", f"{cpus} processors" if cpus else ""])
    for number, mpi in enumerate(value_of(profile.mpis) or ()):
        yield "MPI" if number == 0 else "", _mpi(mpi)
    if isinstance(profile.mpis, Known) and not profile.mpis.value:
        yield "MPI", f"none found in {profile.mpis.where}"
    yield "Slurm", _slurm(profile.slurm)
    yield "driver", _or_none(profile.driver, "NVIDIA ")
    yield "GPUs", _each(profile.gpus, lambda gpu: f"{gpu.count} × {gpu.name}")
    yield "fabrics", _each(profile.fabrics, lambda f: f"{f.kind} {f.device} {f.rate}".strip())
    yield "engines", _each(profile.engines, _engine)
    shared = {True: "shared by the ranks of a node", False: "one for each rank", None: "?"}
    yield "user namespace", shared[value_of(profile.privileged)]
    mirrors = profile.mirrors
    places = [source.url for source in mirrors.apt]
    places += [mirrors.index or "", *mirrors.extra_indexes, *mirrors.find_links]
    yield "packages from", _listed(list(dict.fromkeys(places)))
    if mirrors.proxy or mirrors.apt_proxy:
        yield "proxy", _listed([mirrors.proxy or "", f"apt: {mirrors.apt_proxy or 'none'}"])
    if mirrors.ca_bundle:
        yield "certificates", mirrors.ca_bundle
    for note in mirrors.notes:
        yield "note", note


def _mpi(mpi: SiteMpi) -> str:
    library = mpi.library
    family, version = value_of(library.family), value_of(library.version)
    pmix = value_of(library.pmix) if library.pmix is not None else None
    ucx, ofi = value_of(mpi.ucx), value_of(mpi.libfabric)
    parts = [
        f"{family.product if family else 'unknown family'} {version or '?'}",
        f"PMIx {value_of(pmix.version) or '?'}" if pmix else "",
        f"UCX {ucx}" if ucx else "",
        f"libfabric {ofi}" if ofi else "",
        value_of(mpi.launcher) or "no launcher",
        f"module {mpi.module}" if mpi.module else "",
    ]
    return f"{mpi.name}: {_listed(parts)}"


def _slurm(fact: Fact[Slurm | None]) -> str:
    if isinstance(fact, Unknown):
        return "?"
    if fact.value is None:
        return "none"
    types = value_of(fact.value.mpi_types)
    pmix = value_of(fact.value.pmix)
    return _listed(
        [
            str(value_of(fact.value.version) or "?"),
            f"--mpi={'|'.join(sorted(types))}" if types else "",
            f"PMIx {pmix}" if pmix else "",
        ]
    )


def _engine(engine: HostEngine) -> str:
    modes = value_of(engine.modes)
    kind = f" ({', '.join(sorted(modes))})" if modes else ""
    return f"{engine.name} {value_of(engine.version) or '?'}{kind}"


def _or_none(fact: Fact[Version | None], prefix: str) -> str:
    if isinstance(fact, Unknown):
        return "?"
    return "none" if fact.value is None else f"{prefix}{fact.value}"


def _each(fact: Fact[tuple[T, ...]], show: Callable[[T], str]) -> str:
    return "?" if isinstance(fact, Unknown) else _listed([show(item) for item in fact.value])


def _listed(parts: list[str]) -> str:
    return ", ".join(part for part in parts if part) or "none"
