"""The facts of an image, read from its files. Nothing of the image is run."""

from __future__ import annotations

import json
import posixpath
import re
from email.parser import BytesHeaderParser
from functools import partial

from hpcenv.base.blobs import Digest
from hpcenv.base.known import Fact, Known, Unknown
from hpcenv.base.version import Version
from hpcenv.image.elf import Elf
from hpcenv.image.facts import ElfNeed, Horovod, ImageFacts, Mpi, OsRelease
from hpcenv.image.loader import needs_below, needs_of
from hpcenv.image.mpi import find_mpis
from hpcenv.image.rootfs import RootFs

_SITE_PACKAGES = (
    "/opt/*/lib/python3*/site-packages",
    "/opt/*/*/lib/python3*/site-packages",
    "/venv/lib/python3*/site-packages",
    "/usr/local/lib/python3*/site-packages",
    "/usr/local/lib/python3*/dist-packages",
    "/usr/lib/python3*/dist-packages",
    "/usr/lib/python3*/site-packages",
    "/usr/lib64/python3*/site-packages",
)
_TENSORFLOW = ("tensorflow", "tensorflow_cpu", "tensorflow_gpu", "tensorflow_rocm", "tf_nightly")


def read_facts(root: RootFs, digest: Digest | None = None) -> ImageFacts:
    """Read everything that compat may ask of an image.

    Parameters
    ----------
    digest : Digest, optional
        The image file's SHA-256 where the caller knows it: reading 600 MB to say who it is would
        take longer than all else here.
    """
    mpis = find_mpis(root)
    tensorflow = _distribution(root, _TENSORFLOW)
    horovod = _distribution(root, ("horovod",))
    return ImageFacts(
        schema=1,
        digest=digest,
        arch=_arch(root),
        os=os_release(root),
        libc=libc_version(root),
        python=_python(root, tensorflow or horovod),
        mpis=_mpis(root, mpis),
        tensorflow=_version(root, tensorflow, "TensorFlow"),
        horovod=_horovod(root, horovod),
        needs=_needs(root, mpis, horovod),
    )


def _mpis(root: RootFs, mpis: tuple[Mpi, ...]) -> Fact[tuple[Mpi, ...]]:
    if mpis:
        return Known(mpis, "read", f"{root.name}: {', '.join(mpi.file for mpi in mpis)}")
    return Unknown(
        "no libmpi was found on the loader's path, in the usual prefixes or in wheels' folders",
        "the file that an MPI program of the image loads: LD_DEBUG=libs shows it",
    )


def _arch(root: RootFs) -> Fact[str]:
    for path in ("/bin/sh", "/usr/bin/sh", "/sbin/init", *root.find("/lib*/ld-*.so*")):
        try:
            with root.open(path) as file:
                return Known(Elf(file).machine, "read", f"{path}: ELF header")
        except (OSError, ValueError):
            continue
    return Unknown("neither a shell nor a dynamic loader was found", "uname -m, run in the image")


def os_release(root: RootFs) -> Fact[OsRelease]:
    """Read ``os-release``."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        data = root.read(path, 1 << 16)
        if data is None:
            continue
        pairs = dict(re.findall(r"^([A-Z_]+)=\"?(.*?)\"?$", data.decode(errors="replace"), re.M))
        if "ID" in pairs:
            name = pairs.get("PRETTY_NAME") or pairs.get("NAME") or pairs["ID"]
            return Known(OsRelease(pairs["ID"], pairs.get("VERSION_ID", ""), name), "read", path)
    return Unknown(
        "neither /etc/os-release nor /usr/lib/os-release names an ID", "cat /etc/*release"
    )


def libc_version(root: RootFs) -> Fact[Version]:
    """Read the GNU C library's version from its own text, else from the versions it defines."""
    for path in root.find(
        "/lib/*-linux-gnu/libc.so.6",
        "/usr/lib/*-linux-gnu/libc.so.6",
        "/lib64/libc.so.6",
        "/usr/lib64/libc.so.6",
        "/usr/lib/libc.so.6",
    ):
        try:
            with root.open(path) as file:
                elf = Elf(file)
                if match := re.search(rb"release version (\d+\.\d+(?:\.\d+)?)", elf.constants):
                    return Known(Version.parse(match[1].decode()), "read", f"{path}: its banner")
                numbers = [
                    Version.parse(name[len("GLIBC_") :])
                    for name in elf.version_definitions
                    if re.fullmatch(r"GLIBC_\d[\d.]*", name)
                ]
                if numbers:
                    return Known(max(numbers), "read", f"{path}: .gnu.version_d")
        except (OSError, ValueError):
            continue
    if any(root.find("/lib/ld-musl-*.so.1")):
        return Unknown(
            "the image's C library is musl, which has no GLIBC versions", "ldd --version"
        )
    return Unknown("no libc.so.6 was found", "ldd --version, run in the image")


# -- Python packages -----------------------------------------------------------------------------


def _distribution(root: RootFs, names: tuple[str, ...]) -> str | None:
    """Return the ``.dist-info`` folder of the first of these that is installed."""
    for folder in root.find(*_SITE_PACKAGES):
        for path in root.find(f"{folder}/*.dist-info"):
            name = posixpath.basename(path).split("-")[0].lower().replace(".", "_")
            if name in names:
                return path
    return None


def _version(root: RootFs, info: str | None, name: str) -> Fact[Version]:
    if info is None:
        return Unknown(f"no {name} is installed in the usual places", "pip list, run in the image")
    file = f"{info}/METADATA"
    head = BytesHeaderParser().parsebytes(root.read(file, 1 << 16) or b"")
    try:
        return Known(Version.parse(str(head["Version"])), "read", file)
    except ValueError:
        return Unknown(f"{file} names no version", f"pip show {name}, run in the image")


def _python(root: RootFs, info: str | None) -> Fact[Version]:
    """Read the version of the interpreter that owns a package, or of ``python3``."""
    ask = "python3 --version, run in the image"
    prefix = "/usr"
    if info is not None:
        prefix = posixpath.normpath(posixpath.join(info, "../../../.."))
        settings = root.read(f"{prefix}/pyvenv.cfg") or b""
        if match := re.search(rb"^version(?:_info)?\s*=\s*(\d+\.\d+\.\d+)", settings, re.M):
            return Known(Version.parse(match[1].decode()), "read", f"{prefix}/pyvenv.cfg")
    for path in (f"{prefix}/bin/python3", "/usr/bin/python3", "/usr/local/bin/python3"):
        real = root.resolve(path)
        minor = re.search(r"python(3\.\d+)$", real or "")
        if real is None or minor is None:
            continue
        shape = minor[1].replace(".", r"\.").encode() + rb"\.\d+\+?"
        try:
            with root.open(real) as file:
                texts = set(Elf(file).texts(shape))
        except (OSError, ValueError):
            texts = set()
        text = texts.pop() if len(texts) == 1 else minor[1]
        return Known(Version.parse(text), "read", real)
    return Unknown("no python3 was found", ask)


def _horovod_library(root: RootFs, info: str) -> str | None:
    folder = posixpath.dirname(info)
    return next(iter(root.find(f"{folder}/horovod/tensorflow/mpi_lib*.so")), None)


def _horovod(root: RootFs, info: str | None) -> Fact[Horovod]:
    if info is None:
        return Unknown("no Horovod is installed in the usual places", "pip list, run in the image")
    return Known(
        Horovod(
            version=_version(root, info, "horovod"),
            tensorflow=_built_for(root, f"{posixpath.dirname(info)}/horovod/metadata.json"),
            controllers=_controllers(root, _horovod_library(root, info)),
        ),
        "read",
        info,
    )


def _built_for(root: RootFs, file: str) -> Fact[Version]:
    """Read for which TensorFlow Horovod was built: its build writes it into metadata.json."""
    ask = "python -c 'import horovod.tensorflow', run in the image"
    data = root.read(file)
    if data is None:
        return Unknown(f"{file} is not there", ask)
    try:
        return Known(Version.parse(str(json.loads(data)["tensorflow"])), "read", file)
    except (ValueError, KeyError, TypeError):
        return Unknown(f"{file} names no TensorFlow: Horovod was built without it", ask)


def _controllers(root: RootFs, library: str | None) -> Fact[frozenset[str]]:
    """Tell which controllers Horovod's library holds: MPI by its calls, Gloo by its class."""
    ask = "horovodrun --check-build, run in the image"
    if library is None:
        return Unknown("Horovod's TensorFlow library was not found: built without it?", ask)
    try:
        with root.open(library) as file:
            elf = Elf(file)
            found = set()
            if any(name.startswith("MPI_") for name in elf.symbols):
                found.add("mpi")
            if b"GlooController" in elf.constants:
                found.add("gloo")
    except (OSError, ValueError) as error:
        return Unknown(f"{library}: {error}", ask)
    return Known(frozenset(found), "read", library)


def _needs(root: RootFs, mpis: tuple[Mpi, ...], horovod: str | None) -> Fact[tuple[ElfNeed, ...]]:
    """Read what the MPI libraries, all that they load, and Horovod need of versioned libraries."""
    found: dict[ElfNeed, None] = {}
    readers = [partial(needs_below, root, mpi.file) for mpi in mpis]
    library = _horovod_library(root, horovod) if horovod else None
    if library:
        readers.append(partial(_own_needs, root, library))
    try:
        for read in readers:
            found |= dict.fromkeys(read())
    except (OSError, ValueError) as error:
        return Unknown(
            f"an ELF file could not be read: {error}", "objdump -p FILE, for each library"
        )
    return Known(tuple(found), "read", f"{root.name}: .gnu.version_r of each library")


def _own_needs(root: RootFs, library: str) -> tuple[ElfNeed, ...]:
    with root.open(library) as file:
        return needs_of(library, Elf(file))
