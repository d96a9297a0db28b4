"""From a recipe and a site to a lock: the first of the two steps that touch the network."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal

from hpcenv.base.blobs import Blobs, Digest
from hpcenv.base.errors import BadInput, Refused
from hpcenv.base.known import Unknown
from hpcenv.base.together import together
from hpcenv.base.version import Version
from hpcenv.image.facts import Family
from hpcenv.lock import wheels
from hpcenv.lock.choose import choose
from hpcenv.lock.menu import Candidate, Packages, menu, packages
from hpcenv.lock.model import Artefact, Lock, MpiChoice, Release, Role, Target
from hpcenv.lock.runtime_wheel import NAME as RUNTIME
from hpcenv.lock.runtime_wheel import REQUIRES as RUNTIME_REQUIRES
from hpcenv.lock.runtime_wheel import runtime_wheel
from hpcenv.recipe.load import bundled_folder
from hpcenv.recipe.model import Recipe
from hpcenv.site.model import SiteProfile
from hpcenv.sources.apt import ARCHITECTURES, SUITES, Deb, open_suite
from hpcenv.sources.mirrors import Mirrors

Say = Callable[[str], None]

_PYTHON = {"debian:12": "3.11", "debian:13": "3.13"}
_GLIBC = {"debian:12": 36, "debian:13": 41}

_SYSTEM = ("python3", "python3-venv")
_COMPILER = ("g++", "make", "cmake", "python3-dev", "patch")
# What Horovod imports, and what setuptools needs to build it without an environment of its own.
_HOROVOD = ("cloudpickle", "psutil", "pyyaml", "packaging")
_BUILD = ("setuptools", "wheel", *_HOROVOD)

_ORDER: tuple[Role, ...] = (
    "system", "compiler", "python", "build-python", "source", "patch", "data", "runtime"
)  # fmt: skip


def resolve(
    recipe: Recipe,
    site: SiteProfile,
    mirrors: Mirrors,
    blobs: Blobs,
    work: Path,
    say: Say,
    *,
    prefer: Lock | None = None,
    upgrade: Collection[str] = (),
) -> Lock:
    """Lock a recipe for a site.

    Parameters
    ----------
    mirrors : Mirrors
        Where packages are looked for; nothing of it enters the lock.
    blobs : Blobs
        The store; what we make ourselves (the runtime, patches) is put there at once.
    work : Path
        A folder of ours for package lists and uv's cache, kept between calls.
    prefer : Lock, optional
        An earlier lock, kept where it still fits: Python packages one by one, Debian's together,
        since its archive has but one version of each.
    upgrade : collection of str
        Packages that are not kept.

    Raises
    ------
    Refused
        If no MPI of the menu fits the site's.
    BadInput
        If the recipe cannot be satisfied.
    Outside
        If an archive or an index cannot be reached, or a signature is not right.
    """
    target = target_of(recipe, site)
    candidate, because = choose(recipe.mpi, site, menu(recipe.base.os))
    say(f"MPI     {candidate}: {because}")
    mpi = packages(candidate)
    (releases, debs), (_, found) = together(
        lambda: _debian(recipe, target, candidate, mirrors, work, prefer, upgrade),
        lambda: ((), _python(recipe, target, mpi, mirrors, work, prefer, upgrade)),
    )
    artefacts = [*debs, *found, *patches(recipe, blobs), runtime(blobs)]
    newest = max(datetime.fromisoformat(release.date) for release in releases)
    say(f"locked  {len(artefacts)} files, {sum(a.size for a in artefacts) / 1e6:,.0f} MB")
    return Lock(
        schema=1,
        recipe=recipe,
        site=site.name,
        target=target,
        mpi=MpiChoice(
            Family(candidate.family), _solved(candidate, mpi, debs), candidate.source, because
        ),
        releases=releases,
        artefacts=tuple(sorted(artefacts, key=_place)),
        epoch=int(newest.timestamp()),
    )


def target_of(recipe: Recipe, site: SiteProfile) -> Target:
    """Return what an image of that recipe for that site is for.

    Raises
    ------
    BadInput
        If the recipe names an operating system or Python that is not to be had.
    Refused
        If the site's machine is not known, or none that images are made for.
    """
    os, python = recipe.base.os, recipe.base.python
    if os not in SUITES:
        raise BadInput(
            f"recipe {recipe.name}: no operating system {os!r}; there are: {', '.join(SUITES)}",
            remedy="change  os  in [base] of the recipe",
        )
    if python != _PYTHON[os]:
        raise BadInput(
            f"recipe {recipe.name}: the Python of {os} is {_PYTHON[os]}, not {python}",
            remedy=f'write  python = "{_PYTHON[os]}"  into [base], or change  os',
        )
    if recipe.gpu.enabled:
        raise BadInput(f"recipe {recipe.name}: images with CUDA cannot be built yet")
    if isinstance(site.arch, Unknown):
        raise Refused(f"site {site.name}: its machine is not known", remedy=site.arch.ask)
    arch: Literal["x86_64", "aarch64"]
    match site.arch.value:
        case "x86_64" | "aarch64" as arch:
            pass
        case other:
            known = ", ".join(ARCHITECTURES)
            raise Refused(f"site {site.name}: no image for {other}; there are {known}")
    return Target(os, SUITES[os], arch, python)


def runtime(blobs: Blobs) -> Artefact:
    """Return today's runtime wheel, which is in the store afterwards."""
    wheel = runtime_wheel()
    digest = _stored(wheel.content, blobs)
    return Artefact(
        "local", "runtime", RUNTIME, wheel.version, wheel.file, len(wheel.content), digest
    )


def patches(recipe: Recipe, blobs: Blobs) -> list[Artefact]:
    """Return the patch queue of the recipe's Horovod, which is in the store afterwards."""
    version = recipe.framework.horovod
    folder = bundled_folder() / f"patches/horovod-{version}"
    found = []
    for file in sorted(folder.glob("*.patch")) if version else []:
        content = file.read_bytes()
        digest = _stored(content, blobs)
        found.append(
            Artefact("patch", "patch", file.stem, version or "", file.name, len(content), digest)
        )
    return found


def _debian(
    recipe: Recipe,
    target: Target,
    candidate: Candidate,
    mirrors: Mirrors,
    work: Path,
    prefer: Lock | None,
    upgrade: Collection[str],
) -> tuple[tuple[Release, ...], list[Artefact]]:
    if prefer is not None and _same_debian(prefer, recipe, target, candidate):
        kept = prefer.of("system", "compiler")
        if not any(deb.name in upgrade for deb in kept):
            return prefer.releases, list(kept)
    mpi = packages(candidate)
    suite = open_suite(work / "apt", mirrors, target.suite, target.arch)
    system = suite.solve([*_SYSTEM, *recipe.base.packages, *mpi.system])
    found = [_deb(deb, "system") for deb in system]
    if recipe.framework.horovod:
        # The builder stands on the image: what the image has is asked for again, as it is.
        pinned = [f"{deb.name}={deb.version}" for deb in system]
        builder = suite.solve([*pinned, *_COMPILER, *mpi.compiler])
        there = {deb.sha256 for deb in system}
        found += [_deb(deb, "compiler") for deb in builder if deb.sha256 not in there]
    return tuple(Release(r.suite, r.date, r.sha256) for r in suite.releases()), found


def _same_debian(lock: Lock, recipe: Recipe, target: Target, candidate: Candidate) -> bool:
    return (
        (lock.target, lock.recipe.base) == (target, recipe.base)
        and (lock.mpi.family.value, lock.mpi.source) == (candidate.family, candidate.source)
        and bool(lock.recipe.framework.horovod) == bool(recipe.framework.horovod)
    )


def _solved(candidate: Candidate, mpi: Packages, debs: Sequence[Artefact]) -> Version:
    """The version that was really found: a point release may have moved since the menu."""
    return next((deb.upstream for deb in debs if deb.name in mpi.system), candidate.version)


def _python(
    recipe: Recipe,
    target: Target,
    mpi: Packages,
    mirrors: Mirrors,
    work: Path,
    prefer: Lock | None,
    upgrade: Collection[str],
) -> list[Artefact]:
    platform = wheels.Platform(target.python, target.arch, _GLIBC[target.os])
    horovod = recipe.framework.horovod
    image = [*_framework(recipe), *recipe.python.packages, *mpi.python, *RUNTIME_REQUIRES]
    apart = [data.wheel for data in recipe.data]
    options = [word for package in upgrade for word in ("--upgrade-package", package)]

    def solve(
        role: Role, requirements: Sequence[str], *more: str
    ) -> list[tuple[Role, wheels.Distribution]]:
        kept = prefer.of(role) if prefer else ()
        found = wheels.solve(
            requirements,
            platform,
            mirrors,
            work / "uv",
            options=[*options, *more],
            prefer={artefact.name: artefact.version for artefact in kept},
        )
        return [(role, distribution) for distribution in found]

    jobs = [partial(solve, "python", image)]
    if horovod:
        jobs.append(partial(solve, "build-python", _BUILD, "--no-deps"))
    if apart:
        jobs.append(partial(solve, "data", apart, "--no-deps"))
    results = together(*jobs)
    there = {distribution.name for _, distribution in results[0]}
    found = [
        _wheel(distribution, role)
        for result in results
        for role, distribution in result
        # What the image has already serves its build as well.
        if role != "build-python" or distribution.name not in there
    ]
    if horovod:
        source = wheels.source_distribution("horovod", horovod, mirrors)
        found.append(_artefact("sdist", "source", source))
    return found


def _framework(recipe: Recipe) -> list[str]:
    wanted = recipe.framework
    requirements = []
    if wanted.tensorflow:
        requirements.append(f"tensorflow-cpu=={wanted.tensorflow}")
    if wanted.horovod:
        requirements += _HOROVOD
    return requirements


def _deb(deb: Deb, role: Role) -> Artefact:
    return Artefact("deb", role, deb.name, deb.version, deb.path, deb.size, deb.sha256)


def _wheel(distribution: wheels.Distribution, role: Role) -> Artefact:
    return _artefact("wheel", role, distribution)


def _artefact(kind: Literal["wheel", "sdist"], role: Role, it: wheels.Distribution) -> Artefact:
    return Artefact(kind, role, it.name, it.version, it.file, it.size, it.sha256)


def _place(artefact: Artefact) -> tuple[int, str, str]:
    return _ORDER.index(artefact.role), artefact.name, artefact.file


def _stored(content: bytes, blobs: Blobs) -> Digest:
    with tempfile.NamedTemporaryFile(prefix="hpcenv-lock-") as file:
        file.write(content)
        file.flush()
        return blobs.add(Path(file.name))
