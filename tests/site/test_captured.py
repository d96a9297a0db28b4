"""Parsers against what the tools of this machine print, and against formats of others.

Where a tool is installed, what it prints is compared with what the package manager or the kernel
says of the same thing. The other texts are our own, made after the formats that the tools use.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcenv.base.version import Version
from hpcenv.image.facts import Abi, Family, Pmi
from hpcenv.site import captured
from hpcenv.site.model import Fabric, Gpu


def says(*argv: str, **env: str) -> str:
    """What an installed tool prints, on both streams."""
    program = shutil.which(argv[0])
    if program is None:
        pytest.skip(f"{argv[0]} is not installed")
    done = subprocess.run(
        [program, *argv[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **env},
    )
    return done.stdout


def packaged(package: str) -> str:
    """The upstream version of an installed Debian package, as dpkg has it."""
    query = ["dpkg-query", "-W", "-f", "${source:Upstream-Version}", package]
    done = subprocess.run(query, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{package} is not installed from a package")
    return done.stdout


# -- tools of this machine -----------------------------------------------------------------------


def test_the_c_library_is_the_one_that_this_process_runs_on() -> None:
    assert str(captured.libc_version(says("ldd", "--version"))) == platform.libc_ver()[1]


def test_the_operating_system_is_what_python_reads_too() -> None:
    system = captured.os_release(Path("/etc/os-release").read_text())
    told = platform.freedesktop_os_release()
    assert system is not None
    assert (system.id, system.version, system.name) == (
        told["ID"],
        told.get("VERSION_ID", ""),
        told["PRETTY_NAME"],
    )


def test_the_processors_are_those_that_the_kernel_has_online() -> None:
    cpu = captured.cpuinfo(Path("/proc/cpuinfo").read_text())
    assert cpu is not None
    assert cpu.count == os.sysconf("SC_NPROCESSORS_ONLN")
    assert {"x86_64": "sse2", "aarch64": "asimd"}[platform.machine()] in cpu.features


@pytest.mark.parametrize("arguments", [(), ("--parsable",), ("--parsable", "--all")])
def test_ompi_info_in_each_of_its_forms(arguments: tuple[str, ...]) -> None:
    info = captured.ompi_info(says("ompi_info", *arguments))
    assert info is not None
    assert str(info.version) == packaged("openmpi-bin")
    assert info.prefix == "/usr"
    # One file for each component that Debian builds as a plug-in.
    folder = next(Path("/usr/lib").glob("*-linux-gnu/openmpi/lib/openmpi*"))
    plugins = {path.stem.removeprefix("mca_btl_") for path in folder.glob("mca_btl_*.so")}
    # Open MPI 4's sm is a stub that tells its users to take vader, and does not load.
    assert info.components["btl"] >= plugins - {"sm"}
    assert {"ucx", "tcp"} <= info.transports
    assert info.pmi == {Pmi.PMIX}


def test_mpichversion() -> None:
    info = captured.mpichversion(says("mpichversion"))
    assert info is not None
    assert info.family is Family.MPICH
    assert str(info.version) == packaged("mpich")
    assert info.device == "ch4:ucx"
    assert "--with-device=ch4:ucx" in info.configure


@pytest.mark.parametrize(
    ("tool", "family", "package"),
    [
        ("mpirun.openmpi", Family.OPENMPI, "openmpi-bin"),
        ("mpiexec.openmpi", Family.OPENMPI, "openmpi-bin"),
        ("mpirun.mpich", None, "mpich"),
        ("mpiexec.hydra", None, "mpich"),
    ],
)
def test_launchers_of_this_machine(tool: str, family: Family | None, package: str) -> None:
    launcher = captured.launcher_version(says(tool, "--version"))
    assert launcher is not None
    assert launcher.family is family
    assert str(launcher.version) == packaged(package)


def test_srun_of_this_machine(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=test\nSlurmctldHost=localhost\n")
    version = captured.slurm_version(says("srun", "--version", SLURM_CONF=str(conf)))
    assert str(version) == packaged("slurm-client")
    types = captured.slurm_mpi_types(says("srun", "--mpi=list", SLURM_CONF=str(conf)))
    folder = next(Path("/usr/lib").glob("*-linux-gnu/slurm-wlm"))
    assert types == {path.stem.removeprefix("mpi_") for path in folder.glob("mpi_*.so")}


@pytest.mark.parametrize("tool", ["docker", "podman", "apptainer", "singularity"])
def test_engines_of_this_machine(tool: str) -> None:
    text = says(tool, "--version")
    engine = captured.engine_version(text)
    assert engine is not None
    assert str(engine.version) in text


# -- Slurm's generations -------------------------------------------------------------------------

UP_TO_16 = """\
srun: MPI types are...
srun: mpi/mvapich
srun: mpi/pmi2
srun: mpi/none
srun: mpi/openmpi
"""
UP_TO_20 = """\
srun: MPI types are...
srun: none
srun: openmpi
srun: pmi2
srun: pmix_v3
srun: pmix
"""
FROM_21 = """\
MPI plugin types are...
\tpmix
\tcray_shasta
\tnone
\tpmi2
specific pmix plugin versions available: pmix_v3,pmix_v4
"""
WITHOUT_PMIX = "MPI plugin types are...\n\tcray_shasta\n\tnone\n\tpmi2\n"
BROKEN_PMIX = FROM_21 + (
    "srun: error:  mpi/pmix_v4: init: (null) [0]: mpi_pmix.c:193: pmi/pmix: can not load PMIx\n"
    "srun: error: MPI: Unable to load any plugin\n"
)


@pytest.mark.parametrize(
    ("text", "types"),
    [
        (UP_TO_16, {"mvapich", "pmi2", "none", "openmpi"}),
        (UP_TO_20, {"none", "openmpi", "pmi2", "pmix_v3", "pmix"}),
        (UP_TO_20.replace("srun: ", "srun:   "), {"none", "openmpi", "pmi2", "pmix_v3", "pmix"}),
        (FROM_21, {"pmix", "cray_shasta", "none", "pmi2", "pmix_v3", "pmix_v4"}),
        (
            FROM_21.replace("\t", "        ").replace(",", ", "),
            {"pmix", "cray_shasta", "none", "pmi2", "pmix_v3", "pmix_v4"},
        ),
        (WITHOUT_PMIX, {"cray_shasta", "none", "pmi2"}),
        (BROKEN_PMIX, {"pmix", "cray_shasta", "none", "pmi2", "pmix_v3", "pmix_v4"}),
        (
            "srun: error: fetch_config: DNS SRV lookup failed\nsrun: fatal: no configuration\n",
            set(),
        ),
        ("", set()),
    ],
)
def test_mpi_types_of_every_slurm(text: str, types: set[str]) -> None:
    assert captured.slurm_mpi_types(text) == types


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurm 20.11.9\n", "20.11.9"),
        ("slurm-wlm 22.05.8\n", "22.05.8"),
        ("slurm 25.05.0-0rc1\n", "25.05.0-0rc1"),
        ("srun: error: no\n", None),
    ],
)
def test_slurm_version(text: str, version: str | None) -> None:
    found = captured.slurm_version(text)
    assert (str(found) if found else None) == version


# -- launchers and libraries that are not here ---------------------------------------------------


@pytest.mark.parametrize(
    ("text", "family", "version"),
    [
        ("mpirun (Open MPI) 5.0.6\n\nReport bugs to somewhere\n", Family.OPENMPI, "5.0.6"),
        ("mpiexec (OpenRTE) 3.1.6\n", Family.OPENMPI, "3.1.6"),
        ("mpirun (Open MPI) 4.1.7a1\n", Family.OPENMPI, "4.1.7a1"),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 20230619 (id: c2e19c2f3e)\n",
            Family.INTEL,
            "2021.10",
        ),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2019 Update 08 Build 20200624\n",
            Family.INTEL,
            "2019.8",
        ),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\n",
            Family.INTEL,
            "2021.18.1",
        ),
        ("Intel(R) MPI Library for Linux* OS, Version 2018 Build 20170713\n", Family.INTEL, "2018"),
        (
            "HYDRA build details:\n    Version:                                 4.2.0\n"
            "    Release Date:                            Fri Feb  9 12:29:21 CST 2024\n",
            None,
            "4.2.0",
        ),
    ],
)
def test_launchers_of_other_machines(text: str, family: Family | None, version: str) -> None:
    assert captured.launcher_version(text) == captured.Launcher(family, Version.parse(version))


@pytest.mark.parametrize("text", ["", "mpiexec version 0.84\n", "slurm 22.05.8", "usage: mpirun"])
def test_what_is_no_launcher_is_none(text: str) -> None:
    assert captured.launcher_version(text) is None


def test_open_mpi_2_has_components_for_each_pmi() -> None:
    text = (
        "                Open MPI: 2.1.6\n                  Prefix: /apps/openmpi/2.1.6\n"
        "                MCA btl: openib (MCA v2.1.0, API v3.0.0, Component v2.1.6)\n"
        "               MCA pmix: s2 (MCA v2.1.0, API v2.0.0, Component v2.1.6)\n"
        "               MCA pmix: pmix112 (MCA v2.1.0, API v2.0.0, Component v2.1.6)\n"
    )
    info = captured.ompi_info(text)
    assert info is not None
    assert info.pmi == {Pmi.PMI2, Pmi.PMIX}
    assert info.prefix == "/apps/openmpi/2.1.6"
    assert info.transports == {"openib"}


def test_mpich_says_its_abi_since_4_1() -> None:
    text = (
        "MPICH Version:      4.3.2\nMPICH Release date: Mon Oct  6 2025\n"
        "MPICH ABI:          17:2:5\nMPICH Device:       ch4:ofi\n"
        "MPICH configure:    --prefix=/opt/mpich\n"
    )
    info = captured.mpichversion(text)
    assert info is not None
    # The file of MPICH 4.3.2 is libmpi.so.12.5.2 (its maint/version.m4).
    assert info.abi == Abi(12, 5, 2)
    assert info.transports == {"ofi"}


def test_mvapich_is_not_mpich() -> None:
    for text in (
        "MVAPICH2 2.3.7 Wed March 02 22:00:00 EST 2022 ch3:mrail\n\nConfiguration\n--prefix=/x\n",
        "MVAPICH2 Version:\t2.3.7\nMVAPICH2 Device:\tch3:mrail\nMVAPICH2 configure:\t--prefix=/x\n",
    ):
        info = captured.mpichversion(text)
        assert info is not None
        assert (info.family, str(info.version), info.device) == (
            Family.MVAPICH,
            "2.3.7",
            "ch3:mrail",
        )


# -- the rest ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("ldd (GNU libc) 2.17\nCopyright (C) 2012\n", "2.17"),
        ("ldd (Ubuntu GLIBC 2.35-0ubuntu3.8) 2.35\n", "2.35"),
        ("ldd (Gentoo 2.38-r10 (patchset 10)) 2.38\nCopyright (C) 2023\n", "2.38"),
        ("musl libc (x86_64)\nVersion 1.2.4\n", None),
        ("", None),
    ],
)
def test_libc_version(text: str, version: str | None) -> None:
    found = captured.libc_version(text)
    assert (str(found) if found else None) == version


def test_os_release_of_others() -> None:
    text = 'NAME="Rocky Linux"\nID="rocky"\nVERSION_ID="9.4"\n# no\nPRETTY_NAME="A \\"b\\" 9"\n'
    system = captured.os_release(text)
    assert system is not None
    assert (system.id, system.version, system.name) == ("rocky", "9.4", 'A "b" 9')
    assert captured.os_release("nothing here") is None


def test_cpuinfo_of_arm() -> None:
    text = "processor\t: 0\nFeatures\t: fp asimd sve\n\nprocessor\t: 1\nFeatures\t: fp asimd sve\n"
    assert captured.cpuinfo(text) == captured.Cpu(2, frozenset({"fp", "asimd", "sve"}))


SMI_525 = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 525.60.13    Driver Version: 525.60.13    CUDA Version: 12.0     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
|===============================+======================+======================|
|   0  NVIDIA A100-SXM...  On   | 00000000:07:00.0 Off |                    0 |
| N/A   31C    P0    52W / 400W |      0MiB / 40960MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
|   1  NVIDIA A100-SXM...  On   | 00000000:0F:00.0 Off |                    0 |
+-------------------------------+----------------------+----------------------+
"""
SMI_580 = """\
| NVIDIA-SMI 580.82.07              Driver Version: 580.82.07      CUDA Version: 13.0     |
|   0  NVIDIA H200                    On  |   00000000:8D:00.0 Off |                    0 |
|  No running processes found                                                             |
"""


def test_nvidia_smi_in_its_forms() -> None:
    assert str(captured.nvidia_driver(SMI_525)) == "525.60.13"
    assert captured.nvidia_gpus(SMI_525) == (Gpu("NVIDIA", "NVIDIA A100-SXM...", 2),)
    assert str(captured.nvidia_driver(SMI_580)) == "580.82.07"
    assert captured.nvidia_gpus(SMI_580) == (Gpu("NVIDIA", "NVIDIA H200", 1),)
    listed = "".join(
        f"GPU {n}: {name} (UUID: GPU-{n:08d})\n"
        for n, name in enumerate(["NVIDIA A100-SXM4-40GB", "Tesla V100-PCIE-16GB"] * 2)
    )
    assert captured.nvidia_gpus(listed) == (
        Gpu("NVIDIA", "NVIDIA A100-SXM4-40GB", 2),
        Gpu("NVIDIA", "Tesla V100-PCIE-16GB", 2),
    )
    for nothing in ("", "No devices were found\n", "NVIDIA-SMI has failed because it couldn't"):
        assert captured.nvidia_driver(nothing) is None
        assert captured.nvidia_gpus(nothing) == ()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  450.80.02  Wed Sep 23\n", "450.80.02"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n",
            "580.65.06",
        ),
        ("GCC version:  gcc version 12.2.0\n", None),
    ],
)
def test_the_kernel_modules_own_word(text: str, version: str | None) -> None:
    found = captured.nvidia_driver(text)
    assert (str(found) if found else None) == version


def test_ibstat_counts_active_ports_alone() -> None:
    text = """\
CA 'mlx5_0'
\tCA type: MT4123
\tNumber of ports: 1
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 200
\t\tBase lid: 17
\t\tLink layer: InfiniBand
CA 'mlx5_1'
\tCA type: MT4123
\tNumber of ports: 2
\tPort 1:
\t\tState: Down
\t\tPhysical state: Polling
\t\tRate: 10
\t\tLink layer: InfiniBand
\tPort 2:
\t\tState: Active
\t\tRate: 25
\t\tLink layer: Ethernet
"""
    assert captured.ibstat(text) == (
        Fabric("infiniband", "mlx5_0:1", "200 Gb/s"),
        Fabric("roce", "mlx5_1:2", "25 Gb/s"),
    )
    assert captured.ibstat("") == ()


def test_ucx_info_of_both_generations() -> None:
    assert str(captured.ucx_version("# Version 1.13.1\n# Git branch ''\n")) == "1.13.1"
    newer = "# Library version: 1.18.0\n# Library path: /usr/lib/libucs.so.0\n# API headers: 1.17\n"
    assert str(captured.ucx_version(newer)) == "1.18.0"
    devices = """\
# Memory domain: mlx5_0
#     Component: ib
#
#      Transport: rc_mlx5
#         Device: mlx5_0:1
#           Type: network
#
#      Transport: dc_mlx5
#         Device: mlx5_0:1
#
#      Transport: tcp
#         Device: eth0
"""
    assert captured.ucx_devices(devices) == (
        captured.Transport("rc_mlx5", "mlx5_0:1"),
        captured.Transport("dc_mlx5", "mlx5_0:1"),
        captured.Transport("tcp", "eth0"),
    )


def test_fi_info() -> None:
    version = "fi_info: 1.17.0\nlibfabric: 1.17.0\nlibfabric api: 1.17\n"
    assert str(captured.libfabric_version(version)) == "1.17.0"
    listed = "".join(
        f"provider: {provider}\n    fabric: 192.0.2.0/24\n    domain: {domain}\n    type: RDM\n"
        for provider, domain in [("verbs;ofi_rxm", "mlx5_0"), ("cxi", "cxi0"), ("cxi", "cxi0")]
    )
    assert captured.libfabric_providers(listed) == (
        captured.Transport("verbs;ofi_rxm", "mlx5_0"),
        captured.Transport("cxi", "cxi0"),
    )


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("apptainer version 1.4.5-2\n", "apptainer", "1.4.5-2"),
        ("singularity version 3.8.7-1.el7\n", "singularity", "3.8.7-1.el7"),
        ("singularity-ce version 4.1.0-noble\n", "singularity", "4.1.0-noble"),
        ("SingularityPRO version 3.11-5.el8\n", "singularity", "3.11-5.el8"),
        ("2.6.1-dist\n", "singularity", "2.6.1-dist"),
        ("podman version 4.3.1\n", "podman", "4.3.1"),
        ("Docker version 28.2.2, build e6534b4\n", "docker", "28.2.2"),
    ],
)
def test_engine_version(text: str, name: str, version: str) -> None:
    assert captured.engine_version(text) == captured.EngineVersion(name, Version.parse(version))


def test_module_avail() -> None:
    text = """\
/opt/modules/Core:
gcc/12.2.0
openmpi/
openmpi/4.1.4(default)
openmpi/5.0.3 <L>
/opt/modules/Tcl:
intel-mpi/2021.10(latest)
"""
    assert captured.modules(text) == (
        "gcc/12.2.0",
        "openmpi/4.1.4",
        "openmpi/5.0.3",
        "intel-mpi/2021.10",
    )


PARSERS = [
    captured.os_release,
    captured.libc_version,
    captured.cpuinfo,
    captured.launcher_version,
    captured.ompi_info,
    captured.mpichversion,
    captured.modules,
    captured.slurm_version,
    captured.slurm_mpi_types,
    captured.nvidia_driver,
    captured.nvidia_gpus,
    captured.ibstat,
    captured.ucx_version,
    captured.ucx_devices,
    captured.libfabric_version,
    captured.libfabric_providers,
    captured.engine_version,
]
WHOLE = (
    UP_TO_20
    + FROM_21
    + SMI_525
    + "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\nprovider: x\n    domain: y\nOpen MPI: 4.1.4\n"
    + "MPICH Version: 4.0.2\nMPICH ABI: 1:2:3\n"
)


@given(st.data())
def test_no_parser_breaks_on_a_part_of_a_text_or_on_anything_else(data: st.DataObject) -> None:
    pieces = st.lists(
        st.one_of(
            st.text(max_size=40),
            st.sampled_from(WHOLE.splitlines()),
            st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 80)).map(
                lambda cut: WHOLE[cut[0] : cut[0] + cut[1]]
            ),
        ),
        max_size=8,
    )
    text = "\n".join(data.draw(pieces))
    for parse in PARSERS:
        parse(text)  # type: ignore[operator]
