"""Sites made by hand, for tests of what a lock takes for them."""

from __future__ import annotations

from hpcenv.base.known import Fact, Known, Unknown
from hpcenv.base.version import Version
from hpcenv.image.facts import Family, Mpi
from hpcenv.site.model import SiteMpi, SiteProfile
from hpcenv.sources.mirrors import Mirrors

UNKNOWN = Unknown("nobody looked", "look")


def mpi(family: Family, version: str) -> SiteMpi:
    library = Mpi(
        family=Known(family, "declared", "test"),
        version=Known(Version.parse(version), "declared", "test"),
        soname="libmpi.so.40" if family is Family.OPENMPI else "libmpi.so.12",
        file="/opt/mpi/lib/libmpi.so",
        abi=UNKNOWN,
        pmi=UNKNOWN,
        pmix=None,
        transports=UNKNOWN,
    )
    launcher = Known("/opt/mpi/bin/mpirun", "declared", "test")
    return SiteMpi(family.value, "/opt/mpi", launcher, library, UNKNOWN)


def site(*mpis: SiteMpi, name: str = "here", arch: str = "x86_64") -> SiteProfile:
    known: Fact[tuple[SiteMpi, ...]] = Known(mpis, "declared", "test")
    return SiteProfile(
        schema=1,
        name=name,
        arch=Known(arch, "declared", "test"),
        cpu_features=UNKNOWN,
        cpus=UNKNOWN,
        os=UNKNOWN,
        kernel=UNKNOWN,
        libc=UNKNOWN,
        mpis=known,
        slurm=UNKNOWN,
        driver=UNKNOWN,
        gpus=UNKNOWN,
        fabrics=UNKNOWN,
        engines=UNKNOWN,
        privileged=UNKNOWN,
        mirrors=Mirrors(),
    )
