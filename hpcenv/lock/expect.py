"""The facts that a lock promises of the image that will be built from it. No I/O.

They serve a verdict before anything is built, and a test holds them against what is read from the
built image.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from hpcenv.base.known import Fact, Known, Unknown, map_fact
from hpcenv.base.version import Version
from hpcenv.image.facts import Abi, Family, Horovod, ImageFacts, Mpi, OsRelease, Pmix
from hpcenv.lock.menu import Candidate, menu
from hpcenv.lock.model import Lock, Role


def expected_facts(lock: Lock) -> ImageFacts:
    """Return what an image of this lock will have; each fact names the artefact that says so."""
    tensorflow = _version(lock, "tensorflow-cpu", "python")
    return ImageFacts(
        schema=1,
        digest=None,
        arch=Known(lock.target.arch, "declared", "lock: target"),
        os=_os(lock),
        libc=_version(lock, "libc6", "system"),
        python=_version(lock, f"python{lock.target.python}", "system"),
        mpis=_mpis(lock),
        tensorflow=tensorflow,
        horovod=_horovod(lock, tensorflow),
        needs=Unknown("not said by a lock", "build the image: its files are then read"),
    )


def _os(lock: Lock) -> Fact[OsRelease]:
    name, _, number = lock.target.os.partition(":")
    release = OsRelease(name, number, f"Debian GNU/Linux {number} ({lock.target.suite})")
    return map_fact(_version(lock, "base-files", "system"), lambda _: release)


def _version(lock: Lock, name: str, role: Role) -> Fact[Version]:
    for artefact in lock.of(role):
        if artefact.name == name:
            return Known(artefact.upstream, "published", PurePosixPath(artefact.file).name)
    return Unknown(f"the lock has no {name}", f"change the recipe to bring {name}")


def _horovod(lock: Lock, tensorflow: Fact[Version]) -> Fact[Horovod]:
    version = _version(lock, "horovod", "source")
    return map_fact(
        version,
        lambda _: Horovod(
            version=version,
            tensorflow=tensorflow,
            controllers=map_fact(version, lambda _: frozenset({"gloo", "mpi"})),
        ),
    )


def _mpis(lock: Lock) -> Fact[tuple[Mpi, ...]]:
    candidate = _candidate(lock)
    if candidate is None:
        return Unknown(
            f"nothing is published of {lock.mpi.family.value} {lock.mpi.version}",
            "build the image: the library is then read",
        )
    return Known((library(candidate, lock.target.arch),), "published", _where(candidate))


def library(candidate: Candidate, arch: str) -> Mpi:
    """Return the library that a candidate brings into an image for a machine."""
    where = _where(candidate)
    file = candidate.file.format(arch=arch)
    numbers = re.search(r"\.so\.(\d+)\.(\d+)\.(\d+)$", file)
    abi: Fact[Abi] = Unknown("a wheel's file does not carry the numbers", "the release's own")
    if numbers:
        abi = Known(Abi(*(int(number) for number in numbers.groups())), "published", where)
    return Mpi(
        family=Known(Family(candidate.family), "published", where),
        version=Known(candidate.version, "published", where),
        soname=candidate.soname,
        file=file,
        abi=abi,
        pmi=Known(candidate.pmi, "published", where),
        pmix=_pmix(candidate, where),
        transports=Known(candidate.transports, "published", where)
        if candidate.transports
        else Unknown("the library does not show them", "ucx_info -d and fi_info in the image"),
    )


def _where(candidate: Candidate) -> str:
    return f"hpcenv's table of MPI libraries: {candidate}"


def _pmix(candidate: Candidate, where: str) -> Fact[Pmix] | None:
    if candidate.pmix is None:
        return None
    client = Pmix(
        version=Known(candidate.pmix.version, "published", where),
        bundled=candidate.pmix.bundled,
        psec=Known(candidate.pmix.psec, "published", where),
        gds=Known(candidate.pmix.gds, "published", where),
    )
    return Known(client, "published", where)


def _candidate(lock: Lock) -> Candidate | None:
    wanted = (lock.mpi.family.value, lock.mpi.version, lock.mpi.source)
    return next(
        (d for d in menu(lock.target.os) if (d.family, d.version, d.source) == wanted), None
    )
