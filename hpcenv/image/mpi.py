"""What can be read from one MPI library file, in an image or on the host, without running it.

The family is told by content, never by soname: Open MPI 1.10 has MPICH's soname, MVAPICH-Plus has
``libmpi.so.0``, Debian renames MPICH's to ``libmpich.so.12``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from hpcenv.base.errors import BadInput
from hpcenv.base.known import Fact, Known, Unknown
from hpcenv.base.version import Version
from hpcenv.image.elf import Elf
from hpcenv.image.facts import Abi, Family, Mpi, Pmi, Pmix
from hpcenv.image.loader import closure, library_folders
from hpcenv.image.rootfs import RootFs

_NAMES = ("libmpi.so*", "libmpich.so*", "libmpi_cray.so*", "libmpi_gnu_*.so*", "libmpi_intel.so*")
_FOLDERS = (
    "/usr/local/lib",
    "/usr/local/*/lib",
    "/usr/local/*/*/lib",
    "/usr/lib/*/lib",
    "/usr/lib/*/*/lib",
    "/usr/lib64/*/lib",
    "/opt/*/lib",
    "/opt/*/*/lib",
    "/opt/*/*/*/lib",
    "/opt/intel/oneapi/mpi/*/lib",
    "/opt/intel/oneapi/mpi/*/lib/release",
    "/opt/cray/pe/mpich/*/*/*/*/lib",
    "/opt/cray/pe/lib64",
    "/usr/mpi/gcc/*/lib64",
    "/usr/mpi/gcc/*/lib",
    "/venv/lib",
    "/venv/*/lib",
)
"""Where MPI is put aside from the loader's path: distributions' alternatives, wheels in virtual
environments, Intel's, Cray's and NVIDIA's installers, and what people choose below /opt.
"""

_OPENMPI = "ompi_mpi_comm_world"
_VERSION = rb"v?\d+\.\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?"


def mpi_facts(root: RootFs, path: str) -> Mpi:
    """Read an MPI library.

    Parameters
    ----------
    path : str
        Absolute within `root`; links are followed.

    Raises
    ------
    BadInput
        If it is no MPI library (linker scripts named ``libmpi.so`` are none).
    """
    real = root.resolve(path)
    if real is None:
        raise BadInput("no such file", where=f"{root.name}: {path}")
    try:
        files = closure(root, real)
        if "MPI_Init" not in files[real].symbols:
            raise BadInput("no MPI library: it does not define MPI_Init", where=real)
        parts = _components(root, real, files) if _OPENMPI in files[real].symbols else {}
        for name, part in parts.items():
            if name.startswith("pmix_") and part not in files:
                files |= closure(root, part)
        library = _Library(real, files, parts)
        return Mpi(
            family=library.family(),
            version=library.version(),
            soname=library.elf.soname or posixpath.basename(path),
            file=real,
            abi=_abi(real),
            pmi=library.pmi(),
            pmix=library.pmix(),
            transports=library.transports(),
        )
    except (ValueError, OSError) as error:
        raise BadInput(f"no readable MPI library: {error}", where=real) from None


def find_mpis(root: RootFs) -> tuple[Mpi, ...]:
    """Find the MPI libraries of a root file system, those on the loader's path first."""
    found: dict[str, Mpi] = {}
    for path in _candidates(root):
        real = root.resolve(path)
        if real is None or real in found or "mpi" not in posixpath.basename(real):
            continue
        try:
            found[real] = mpi_facts(root, real)
        except BadInput:
            continue
    return tuple(found.values())


def _candidates(root: RootFs) -> Iterator[str]:
    loaders = [library_folders(root, machine) for machine in ("x86_64", "aarch64")]
    for folder in dict.fromkeys([*loaders[0], *loaders[1], *_FOLDERS]):
        yield from root.find(*(f"{folder}/{name}" for name in _NAMES))


def _abi(real: str) -> Fact[Abi]:
    match = re.search(r"\.so\.(\d+)\.(\d+)\.(\d+)$", real)
    if match:
        return Known(Abi(int(match[1]), int(match[2]), int(match[3])), "read", real)
    return Unknown(
        f"the name of {real} does not carry three numbers (wheels cut them off)",
        "the release's own numbers: its version tells which they are",
    )


def _components(root: RootFs, real: str, files: dict[str, Elf]) -> dict[str, str]:
    """Map Open MPI's components (``pmix_ext3x``, ``btl_vader``) to the file that holds each."""
    here = posixpath.dirname(real)
    found: dict[str, str] = {}
    for path in root.find(
        f"{here}/openmpi*/mca_*.so",
        f"{here}/openmpi/lib/openmpi*/mca_*.so",
        f"{posixpath.dirname(here)}/openmpi*/mca_*.so",
    ):
        found.setdefault(posixpath.basename(path)[len("mca_") : -len(".so")], path)
    for path, elf in files.items():
        if re.search(r"lib(mpi|open-(pal|rte))\.so", path):
            for name in elf.symbols:
                match = re.fullmatch(r"mca_(?!psec_|gds_)([a-z]+_[a-z0-9]+)_component", name)
                if match and elf.symbols[name].defined and not match[1].endswith("_base"):
                    found.setdefault(match[1], path)
    return found


class _Library:
    """One MPI library, what it needs, and for Open MPI its components."""

    def __init__(
        self,
        real: str,
        files: dict[str, Elf],
        components: dict[str, str],
    ) -> None:
        self.real, self.files, self.components = real, files, components
        self.elf = files[real]

    def family(self) -> Fact[Family]:
        if _OPENMPI in self.elf.symbols:
            return Known(Family.OPENMPI, "read", f"{self.real}: symbol {_OPENMPI}")
        # The order matters: the vendors' libraries carry MPICH's words, too.
        for mark, family in (
            (b"Intel(R) MPI Library", Family.INTEL),
            (b"CRAY MPICH version", Family.CRAY),
            (b"MVAPICH", Family.MVAPICH),
            (b"MPICH Version:", Family.MPICH),
            (b"MPICH version", Family.MPICH),
        ):
            if mark in self.elf.constants:
                return Known(family, "read", f"{self.real}: text {mark.decode()!r}")
        return Unknown(
            f"neither a symbol nor a text in {self.real} names a family known here",
            "what MPI_Get_library_version prints",
        )

    def version(self) -> Fact[Version]:
        family = self.family()
        kind = family.value if isinstance(family, Known) else None
        for symbol in ("ompi_version_string", "MPII_Version_string", "MPIR_Version_string"):
            text = self.elf.value(symbol)
            own = kind is Family.OPENMPI if symbol.startswith("ompi") else kind is Family.MPICH
            if text and (own or kind is Family.MVAPICH):
                return Known(Version.parse(text), "read", f"{self.real}: symbol {symbol}")
        texts = {text.lstrip("v") for text in self.elf.texts(_VERSION)}
        if kind is Family.CRAY:
            said = self.elf.texts(rb"[^\0]*CRAY MPICH version \d[^\0]*")
            texts = {m[1] for t in said if (m := re.search(r"version (\d[\d.]*)", t))}
        elif kind is Family.INTEL:
            texts = {text for text in texts if re.match(r"20\d\d\.\d", text)}
        elif kind is Family.MPICH:
            # Other libraries inside (hwloc's, yaksa's) have versions below any MPICH with this ABI.
            built_in = re.findall(rb"/mpich-(\d[\w.]*)/src/", self.elf.constants)
            texts = {text.decode() for text in built_in} or {
                text for text in texts if Version.parse(text) >= Version.parse("3.0")
            }
        elif kind is not Family.OPENMPI:
            texts = set()
        if len(texts) == 1:
            return Known(Version.parse(texts.pop()), "read", f"{self.real}: text in .rodata")
        return Unknown(
            f"{self.real} holds {len(texts) or 'no'} texts that could be its version",
            "ompi_info, mpichversion, or what MPI_Get_library_version prints",
        )

    def _has(self, *texts: bytes) -> bool:
        return any(text in self.elf.constants for text in texts)

    def pmi(self) -> Fact[frozenset[Pmi]]:
        family = self.family()
        if isinstance(family, Unknown):
            return family
        if family.value is Family.OPENMPI:
            return self._pmi_of_openmpi()
        found: set[Pmi] = set()
        undefined = {name for name, entry in self.elf.symbols.items() if not entry.defined}
        if self._has(b"cmd=init pmi_version", b"PMI_FD") or "PMI_Init" in undefined:
            found.add(Pmi.PMI1)
        if self._has(b"PMI2_Init\0", b"cmd=fullinit") or "PMI2_Init" in undefined:
            found.add(Pmi.PMI2)
        if "PMIx_Init" in undefined:
            found.add(Pmi.PMIX)
        if not found:
            return Unknown(
                f"no PMI client is linked to {self.real} or built into it",
                "mpichversion (its configure line), or a run under each of srun's --mpi types",
            )
        return Known(frozenset(found), "read", f"{self.real}: PMI clients linked or built in")

    def _pmi_of_openmpi(self) -> Fact[frozenset[Pmi]]:
        parts = {name for name in self.components if name.startswith("pmix_")}
        found: set[Pmi] = set()
        if "pmix_s1" in parts:
            found.add(Pmi.PMI1)
        if "pmix_s2" in parts:
            found.add(Pmi.PMI2)
        if any(re.fullmatch(r"pmix_(ext|pmix)\d+x?", name) for name in parts):
            found.add(Pmi.PMIX)
        if parts:
            where = ", ".join(sorted(parts))
            return Known(frozenset(found), "read", f"{self.real}: components {where}")
        # Open MPI 5 calls PMIx itself, without a component of its own.
        if any("PMIx_Init" in elf.symbols for elf in self.files.values()):
            return Known(frozenset({Pmi.PMIX}), "read", f"{self.real}: calls PMIx_Init")
        return Unknown(
            f"no mca_pmix_* component lies beside {self.real} or in its libraries",
            "ompi_info --param pmix all",
        )

    def pmix(self) -> Fact[Pmix] | None:
        pmi = self.pmi()
        if isinstance(pmi, Unknown):
            return pmi
        if Pmi.PMIX not in pmi.value:
            return None
        for path, elf in self.files.items():
            if posixpath.basename(path).startswith("libpmix.so"):
                return Known(self._pmix_in(path, elf, bundled=False), "read", path)
        for name, path in self.components.items():
            if re.fullmatch(r"pmix_pmix\d+x?", name) and path in self.files:
                return Known(self._pmix_in(path, self.files[path], bundled=True), "read", path)
        return Unknown(
            f"{self.real} speaks PMIx, but its PMIx library was not found",
            "pmix_info, or ompi_info --param pmix all",
        )

    def _pmix_in(self, path: str, elf: Elf, *, bundled: bool) -> Pmix:
        return Pmix(
            version=_pmix_version(path, elf),
            bundled=bundled,
            psec=_plugins(path, elf, "psec"),
            gds=_plugins(path, elf, "gds"),
        )

    def transports(self) -> Fact[frozenset[str]]:
        found = {
            name.split("_", 1)[1]
            for name in self.components
            if name.startswith(("btl_", "mtl_")) and not name.endswith("_self")
        }
        if "pml_ucx" in self.components:
            found.add("ucx")
        if not self.components:
            for library, name in (("libucp.so", "ucx"), ("libfabric.so", "ofi")):
                if any(needed.startswith(library) for needed in self.elf.needed):
                    found.add(name)
            found.update(re.findall(r"ch4:(ucx|ofi)", self.elf.value("MPII_Version_device") or ""))
        if not found:
            return Unknown(
                f"{self.real} links neither UCX nor libfabric; a fabric may be built in",
                "mpichversion (its device), or ucx_info -d and fi_info in the image",
            )
        return Known(frozenset(found), "read", f"{self.real}: components and needed libraries")


def _pmix_version(path: str, elf: Elf) -> Fact[Version]:
    # The first stands in a libpmix; the second is in a PMIx inside Open MPI, too.
    for shape in (
        rb"(?:Open)?PMIx (\d[\w.]*) ",
        rb"PMIX [\w ]+ MCA component version (\d[\w.]*)\0",
    ):
        found = set(re.findall(shape, elf.constants))
        if len(found) == 1:
            text = found.pop().decode()
            return Known(Version.parse(text), "read", f"{path}: text in .rodata")
    return Unknown(f"{path} does not name its PMIx version", "pmix_info, or ompi_info")


def _plugins(path: str, elf: Elf, kind: str) -> Fact[frozenset[str]]:
    shape = re.compile(rf"(?:\w*_)?mca_{kind}_([a-z0-9]+)_component")
    found = {m[1] for name in elf.symbols if (m := shape.fullmatch(name)) and m[1] != "base"}
    if found:
        return Known(frozenset(found), "read", f"{path}: symbols mca_{kind}_*_component")
    return Unknown(f"{path} has no {kind} component built in", "pmix_info")
