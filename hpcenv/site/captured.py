"""What tools of a site print, read: pure functions from text to values.

`detect` feeds them what it ran or read here; a profile from elsewhere feeds them what a person
pasted. A function returns None, or an empty value, where the text does not say; it never guesses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hpcenv.base.version import Version
from hpcenv.image.facts import Abi, Family, OsRelease, Pmi
from hpcenv.site.model import Fabric, Gpu

_NUMBER = r"\d+(?:\.\d+)+[0-9A-Za-z.\-+~]*"


def _version(pattern: str, text: str) -> Version | None:
    match = re.search(pattern, text, re.MULTILINE)
    return Version.parse(match[1]) if match else None


# -- the machine ---------------------------------------------------------------------------------


def os_release(text: str) -> OsRelease | None:
    """Read ``/etc/os-release``."""
    fields = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            fields[name] = re.sub(r"\\(.)", r"\1", value.strip("\"'"))
    if "ID" not in fields:
        return None
    return OsRelease(
        id=fields["ID"],
        version=fields.get("VERSION_ID", ""),
        name=fields.get("PRETTY_NAME", fields["ID"]),
    )


def libc_version(text: str) -> Version | None:
    """Read ``ldd --version`` of the GNU C library; None for another C library (musl)."""
    # The package's name stands in brackets; another C library's ldd does not begin like this.
    return _version(rf"\Aldd \(.*\) ({_NUMBER})\s*$", text.strip())


@dataclass(frozen=True)
class Cpu:
    """The processors of a node; `features` as ``/proc/cpuinfo`` spells them."""

    count: int
    features: frozenset[str]


def cpuinfo(text: str) -> Cpu | None:
    """Read ``/proc/cpuinfo``, of x86 (``flags``) or ARM (``Features``)."""
    count = len(re.findall(r"^processor\s*:", text, re.MULTILINE))
    features = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    if not count or not features:
        return None
    return Cpu(count, frozenset(features[1].split()))


# -- MPI -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launcher:
    """What ``mpirun --version`` or ``mpiexec --version`` says of itself.

    Attributes
    ----------
    family : Family, optional
        None for Hydra, which several families of the MPICH line share.
    """

    family: Family | None
    version: Version | None


def launcher_version(text: str) -> Launcher | None:
    """Read what an MPI launcher says of itself; None if it is none that is known."""
    if "Open MPI" in text or "OpenRTE" in text:
        return Launcher(Family.OPENMPI, _version(rf"\((?:Open MPI|OpenRTE)\) ({_NUMBER})", text))
    intel = re.search(r"Intel\(R\) MPI Library.*?Version (\d+(?:\.\d+)*)(?: Update 0*(\d+))?", text)
    if intel:
        number = f"{intel[1]}.{intel[2]}" if intel[2] else intel[1]
        return Launcher(Family.INTEL, Version.parse(number))
    if "HYDRA build details" in text:
        return Launcher(None, _version(rf"^\s*Version:\s+({_NUMBER})", text))
    return None


@dataclass(frozen=True)
class OmpiInfo:
    """What ``ompi_info`` says.

    Attributes
    ----------
    components : mapping
        For each framework (``btl``, ``pml``, ``pmix`` …) the names of its components.
    """

    version: Version | None
    prefix: str | None
    components: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def transports(self) -> frozenset[str]:
        """The names of what moves messages: ``btl``, ``mtl`` and the UCX and OFI layers."""
        names: set[str] = set()
        for framework in ("btl", "mtl", "pml"):
            names |= self.components.get(framework, frozenset())
        return frozenset(names - {"cm", "ob1", "monitoring", "v", "self"})

    @property
    def pmi(self) -> frozenset[Pmi]:
        """The wires that its PMIx components (``pmi`` in 1.x) speak to a launcher."""
        found = set()
        if self.version is not None and self.version.major >= 5:
            return frozenset({Pmi.PMIX})
        for name in self.components.get("pmix", ()):
            if name in ("s1", "s2"):
                found.add(Pmi.PMI1 if name == "s1" else Pmi.PMI2)
            elif re.match(r"pmix\d|ext\d", name):
                found.add(Pmi.PMIX)
        return frozenset(found)


def ompi_info(text: str) -> OmpiInfo | None:
    """Read ``ompi_info``, for people or ``--parsable``."""
    version = _version(rf"^(?:ompi:version:full:|\s*Open MPI: v?)({_NUMBER})", text)
    prefix = re.search(r"^(?:path:prefix:|\s*Prefix: )(.+)$", text, re.MULTILINE)
    components: dict[str, set[str]] = {}
    for framework, name in re.findall(r"^mca:([a-z0-9_]+):([A-Za-z0-9_]+):version:", text, re.M):
        components.setdefault(framework, set()).add(name)
    for framework, name in re.findall(r"^\s*MCA ([a-z0-9_]+): ([A-Za-z0-9_]+) \(", text, re.M):
        components.setdefault(framework, set()).add(name)
    if version is None and not components:
        return None
    whole = {framework: frozenset(names) for framework, names in components.items()}
    return OmpiInfo(version, prefix[1].strip() if prefix else None, whole)


@dataclass(frozen=True)
class MpichInfo:
    """What ``mpichversion`` (or MVAPICH's ``mpiname -a``) says."""

    family: Family
    version: Version | None
    device: str
    abi: Abi | None
    configure: str

    @property
    def transports(self) -> frozenset[str]:
        """The network module behind the device: ``ch4:ucx`` gives ``ucx``."""
        return frozenset(self.device.split(":")[1:2])


def mpichversion(text: str) -> MpichInfo | None:
    """Read ``mpichversion``, ``mpich2version`` or MVAPICH's ``mpiname -a``."""
    head = re.search(rf"^(MPICH2?|MVAPICH2?)(?: Version:\s*| )({_NUMBER})", text, re.MULTILINE)
    if head is None:
        return None
    device = re.search(r"\b(ch[34]:[A-Za-z0-9_:]+)", text)
    configure = re.search(r"^(?:MPICH2?|MVAPICH2?) configure:[ \t]*(.*)$", text, re.MULTILINE)
    abi = re.search(r"^(?:MPICH2?|MVAPICH2?) ABI:\s*(\d+):(\d+):(\d+)", text, re.MULTILINE)
    return MpichInfo(
        family=Family.MPICH if head[1].startswith("MPICH") else Family.MVAPICH,
        version=Version.parse(head[2]),
        device=device[1] if device else "",
        # libtool's current:revision:age; the file is libmpi.so.(current-age).age.revision
        abi=Abi(int(abi[1]) - int(abi[3]), int(abi[3]), int(abi[2])) if abi else None,
        configure=configure[1].strip() if configure else "",
    )


def modules(text: str) -> tuple[str, ...]:
    """Read ``module -t avail``: the names of modules, markers of defaults removed."""
    names = []
    for line in text.splitlines():
        name = re.sub(r"\s*[(<].*$", "", line.strip())
        if name and not name.endswith((":", "/")) and not re.search(r"\s", name):
            names.append(name)
    return tuple(dict.fromkeys(names))


# -- the scheduler -------------------------------------------------------------------------------


def slurm_version(text: str) -> Version | None:
    """Read ``srun --version``: ``slurm 23.11.4``, ``slurm-wlm 22.05.8`` in Debian."""
    return _version(rf"^slurm(?:-wlm)? ({_NUMBER})", text)


def slurm_mpi_types(text: str) -> frozenset[str]:
    """Read ``srun --mpi=list``, on whichever stream it was written.

    Up to Slurm 21.08 a log line names each type (``srun: pmi2``, of old ``srun: mpi/pmi2``); from
    22.05 on they stand indented below a title, and a last line names the PMIx versions.
    """
    types: set[str] = set()
    listed = False
    for raw in text.splitlines():
        line = re.sub(r"^srun: +(?!error|fatal)", "", raw).strip()
        if re.match(r"MPI (plugin )?types are", line):
            listed = True
        elif match := re.match(r"specific pmix plugin versions available: *(.*)", line):
            types.update(re.split(r"[,\s]+", match[1].strip()))
        elif listed and re.fullmatch(r"(mpi/)?[a-z0-9_]+", line):
            types.add(line.removeprefix("mpi/"))
    return frozenset(types - {""})


# -- accelerators and fabrics --------------------------------------------------------------------


def nvidia_driver(text: str) -> Version | None:
    """Read the driver's version from ``/proc/driver/nvidia/version`` or from ``nvidia-smi``."""
    return _version(
        rf"(?:Kernel Module(?: for \S+)?\s+|Driver Version\s*:\s+|KMD Version\s*:\s+)({_NUMBER})",
        text,
    )


def nvidia_gpus(text: str) -> tuple[Gpu, ...]:
    """Read ``nvidia-smi``, its table or its list (``-L``), and count the GPUs of each name."""
    names = re.findall(r"^GPU \d+: (.+?) \(UUID:", text, re.MULTILINE)
    if not names:
        names = re.findall(r"^\|\s+\d+\s{2,}(\S.*?)\s+(?:On|Off|N/A)\s+\|", text, re.MULTILINE)
    return tuple(Gpu("NVIDIA", name, names.count(name)) for name in dict.fromkeys(names))


def ibstat(text: str) -> tuple[Fabric, ...]:
    """Read ``ibstat``: one fabric for each port that is active."""
    fabrics = []
    for device, body in _blocks(r"^CA '([^']+)'", text):
        for port, lines in _blocks(r"^\s+Port (\d+):", body):
            fields = dict(re.findall(r"^\s+([A-Z][A-Za-z ]*): *(.*)$", lines, re.MULTILINE))
            if fields.get("State") == "Active":
                kind = fields.get("Link layer", "InfiniBand").lower()
                kind = "roce" if kind == "ethernet" else kind
                rate = f"{fields['Rate']} Gb/s" if "Rate" in fields else ""
                fabrics.append(Fabric(kind, f"{device}:{port}", rate))
    return tuple(fabrics)


def _blocks(title: str, text: str) -> Iterator[tuple[str, str]]:
    parts = re.split(title, text, flags=re.MULTILINE)
    yield from zip(parts[1::2], parts[2::2], strict=True)


@dataclass(frozen=True)
class Transport:
    """One way of moving messages that a library found: its name and its device."""

    name: str
    device: str


def ucx_version(text: str) -> Version | None:
    """Read ``ucx_info -v``."""
    return _version(rf"^# (?:Library version:|Version) ({_NUMBER})", text)


def ucx_devices(text: str) -> tuple[Transport, ...]:
    """Read ``ucx_info -d``: each transport and its device."""
    found = re.findall(r"^#\s+Transport: (\S+)\s*\n#\s+Device: (\S+)", text, re.MULTILINE)
    return tuple(dict.fromkeys(Transport(name, device) for name, device in found))


def libfabric_version(text: str) -> Version | None:
    """Read ``fi_info --version``."""
    return _version(rf"^libfabric: ({_NUMBER})", text)


def libfabric_providers(text: str) -> tuple[Transport, ...]:
    """Read ``fi_info``: each provider and its domain."""
    found = []
    for name, body in _blocks(r"^provider: (\S+)", text):
        domain = re.search(r"^\s+domain: (\S+)", body, re.MULTILINE)
        found.append(Transport(name, domain[1] if domain else ""))
    return tuple(dict.fromkeys(found))


# -- container engines ---------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineVersion:
    """A container engine by the name that it gives itself."""

    name: str
    version: Version


def engine_version(text: str) -> EngineVersion | None:
    """Read ``--version`` of apptainer, singularity, podman or docker.

    The name is what answers: SingularityCE and Singularity before 3.9 are ``singularity``, and
    apptainer behind a link of that name is ``apptainer``.
    """
    match = re.search(
        rf"^(apptainer|singularity|podman|docker)(?:-ce|-?pro)? version ({_NUMBER})",
        text.lower(),
        re.MULTILINE,
    )
    if match:
        return EngineVersion(match[1], Version.parse(match[2].rstrip(".,")))
    bare = re.fullmatch(r"\s*(2\.\d+[^\s]*)\s*", text)
    return EngineVersion("singularity", Version.parse(bare[1])) if bare else None
