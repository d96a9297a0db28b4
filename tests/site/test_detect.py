"""Detection here, and from the files that other machines have; what is missing is no error."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import hpcenv as hpcenv_package
from hpcenv.base.known import Known, Unknown, value_of
from hpcenv.base.version import Version
from hpcenv.site import containers, hardware, scheduler
from hpcenv.site.detect import detect
from hpcenv.site.host import Host
from hpcenv.site.model import Fabric, Gpu, HostEngine
from hpcenv.site.profile import dump_site, load_site, parse_site
from hpcenv.site.summary import unknowns

# -- this machine --------------------------------------------------------------------------------


def test_this_machine() -> None:
    site = detect("here")
    assert value_of(site.arch) == os.uname().machine
    assert value_of(site.cpus) == os.sysconf("SC_NPROCESSORS_ONLN")
    assert str(value_of(site.kernel)) == os.uname().release
    assert str(value_of(site.libc)) == platform.libc_ver()[1]
    told = platform.freedesktop_os_release()
    system = value_of(site.os)
    assert system is not None and system.id == told["ID"]
    assert parse_site(dump_site(site), "x") == site
    assert all(unknown.why and unknown.ask for _, unknown in unknowns(site))


def test_a_machine_with_nothing_at_all(tmp_path: Path) -> None:
    site = detect("bare", env={"PATH": str(tmp_path)}, root=tmp_path)
    assert value_of(site.arch) == os.uname().machine
    missing = dict(unknowns(site))
    assert {"os", "cpus", "libc", "fabrics", "privileged"} <= set(missing)
    assert "/etc/os-release is not there" in missing["os"].why
    assert missing["libc"].why == "ldd is on none of PATH's 1 folders"
    assert site.mpis == Known((), "ran", value_where(site.mpis))
    assert "PATH (1 folders)" in value_where(site.mpis)
    assert value_of(site.slurm) is None and isinstance(site.slurm, Known)
    assert parse_site(dump_site(site), "x") == site


def value_where(fact: Known[object] | Unknown) -> str:
    assert isinstance(fact, Known)
    return fact.where


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("exit 3", "ended with status 3"),
        ("echo nonsense", "nonsense"),
        ("kill -9 $$", "ended with status -9"),
    ],
)
def test_tools_that_misbehave(tmp_path: Path, body: str, why: str) -> None:
    for name in ("ldd", "srun", "sinfo", "nvidia-smi", "apptainer", "docker", "mpirun"):
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\n{body}\n")
        tool.chmod(0o755)
    site = detect("odd", env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert isinstance(site.libc, Unknown) and why in site.libc.why
    assert isinstance(site.slurm, Unknown) and why in site.slurm.why
    assert isinstance(site.engines, Known)
    assert {engine.name for engine in site.engines.value} >= {"apptainer", "docker"}
    assert parse_site(dump_site(site), "x") == site


def test_as_an_ordinary_user_nothing_fails() -> None:
    if os.geteuid() != 0:
        pytest.skip("this is an ordinary user already: every other test shows it")
    packages = [str(Path(hpcenv_package.__file__).parents[1]), sysconfig.get_path("purelib")]
    script = (
        "from hpcenv.site.detect import detect; from hpcenv.site.profile import dump_site\n"
        "print(dump_site(detect('user')))\n"
    )
    # Folders that it may not even look into are on many a PATH.
    env = {"PATH": "/root/bin:/root/x/bin:/usr/bin:/bin", "PYTHONPATH": ":".join(packages)}
    env |= {"MODULEPATH": "/root/modules", "HOME": "/root", "PIP_CONFIG_FILE": "/root/x/pip.conf"}

    def as_nobody(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            env=env,
            cwd="/",
            user=65534,
            group=65534,
            extra_groups=[],
        )

    recent = "import sys, hpcenv; sys.exit(sys.version_info < (3, 11))"
    if (
        shutil.which("python3", path="/usr/bin") is None
        or as_nobody("/usr/bin/python3", "-c", recent).returncode
    ):
        pytest.skip("no Python 3.11 that an ordinary user may run, or it may not read hpcenv")
    done = as_nobody("/usr/bin/python3", "-c", script)
    assert done.returncode == 0, done.stderr
    site = parse_site(done.stdout, "x")
    assert value_of(site.libc) is not None
    assert isinstance(site.engines, Known)
    modes = [value_of(engine.modes) or frozenset() for engine in site.engines.value]
    assert not any("root" in found for found in modes)


# -- Slurm ---------------------------------------------------------------------------------------


def slurm_host(folder: Path) -> Host:
    """This machine's Slurm tools with a configuration, and no controller behind it."""
    if shutil.which("srun") is None:
        pytest.skip("Slurm's srun is not installed")
    conf = folder / "slurm.conf"
    conf.write_text("ClusterName=test\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=9\n")
    return Host(env={**os.environ, "SLURM_CONF": str(conf)})


def test_slurm_offers_what_its_plugins_are(tmp_path: Path) -> None:
    slurm = value_of(scheduler.slurm(slurm_host(tmp_path)))
    assert slurm is not None
    types = value_of(slurm.mpi_types)
    folder = next(Path("/usr/lib").glob("*-linux-gnu/slurm-wlm"))
    assert types == {path.stem.removeprefix("mpi_") for path in folder.glob("mpi_*.so")}
    query = ["dpkg-query", "-W", "-f", "${source:Upstream-Version}", "libpmix2"]
    packaged = subprocess.run(query, capture_output=True, text=True).stdout
    pmix = value_of(slurm.pmix)
    assert pmix is not None and pmix.release == Version.parse(packaged).release


def test_slurm_that_is_installed_and_not_set_up_is_unknown(tmp_path: Path) -> None:
    if shutil.which("srun") is None or Path("/etc/slurm/slurm.conf").exists():
        pytest.skip("needs Slurm's srun and no configuration")
    env = {key: item for key, item in os.environ.items() if not key.startswith("SLURM")}
    fact = scheduler.slurm(Host(env=env))
    assert isinstance(fact, Unknown)
    assert "srun is there, but" in fact.why and "configuration" in fact.why


def test_no_slurm_is_known_to_be_none(tmp_path: Path) -> None:
    fact = scheduler.slurm(Host(env={"PATH": str(tmp_path)}))
    assert fact == Known(None, "read", "no srun in PATH's 1 folders")


# -- hardware ------------------------------------------------------------------------------------


def tree(root: Path, files: dict[str, str]) -> Host:
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Host(root, {"PATH": str(root / "bin")})


PCI = "/sys/bus/pci/devices"
GPU_IN_SYSFS = {
    f"{PCI}/0000:07:00.0/class": "0x030200\n",
    f"{PCI}/0000:07:00.0/vendor": "0x10de\n",
    f"{PCI}/0000:07:00.0/device": "0x20b0\n",
    f"{PCI}/0000:0f:00.0/class": "0x030200\n",
    f"{PCI}/0000:0f:00.0/vendor": "0x10de\n",
    f"{PCI}/0000:0f:00.0/device": "0x20b0\n",
    f"{PCI}/0000:00:02.0/class": "0x030000\n",
    f"{PCI}/0000:00:02.0/vendor": "0x8086\n",
    f"{PCI}/0000:00:02.0/device": "0x3e98\n",
}
DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  525.60.13  Wed Nov 30 06:39:21 UTC 2022\n"


def test_a_driver_that_is_loaded(tmp_path: Path) -> None:
    host = tree(tmp_path, GPU_IN_SYSFS | {"/proc/driver/nvidia/version": DRIVER})
    assert hardware.driver(host, None) == Known(
        Version.parse("525.60.13"), "read", "/proc/driver/nvidia/version"
    )
    assert value_of(hardware.gpus(host, None)) == (Gpu("NVIDIA", "PCI device 0x20b0", 2),)


def test_a_gpu_without_a_driver_is_not_the_lack_of_one(tmp_path: Path) -> None:
    fact = hardware.driver(tree(tmp_path, GPU_IN_SYSFS), None)
    assert isinstance(fact, Unknown) and "there is an NVIDIA GPU" in fact.why


def test_a_login_node_says_nothing_of_the_others(tmp_path: Path) -> None:
    host = tree(tmp_path, {})
    assert hardware.driver(host, None) == Known(
        None, "read", f"/proc/driver/nvidia/version and {PCI}: no NVIDIA GPU in this node"
    )
    for fact in (hardware.driver(host, "gpu:a100:4"), hardware.gpus(host, "gpu:a100:4")):
        assert isinstance(fact, Unknown) and "gpu:a100:4" in fact.why


def test_fabrics_of_a_node(tmp_path: Path) -> None:
    verbs, net = "/sys/class/infiniband", "/sys/class/net"
    files = {
        f"{verbs}/mlx5_0/ports/1/state": "4: ACTIVE\n",
        f"{verbs}/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n",
        f"{verbs}/mlx5_0/ports/1/link_layer": "InfiniBand\n",
        f"{verbs}/mlx5_1/ports/1/state": "1: DOWN\n",
        f"{verbs}/mlx5_1/ports/1/rate": "10 Gb/sec (4X SDR)\n",
        f"{verbs}/mlx5_1/ports/1/link_layer": "InfiniBand\n",
        f"{verbs}/mlx5_2/ports/1/state": "4: ACTIVE\n",
        f"{verbs}/mlx5_2/ports/1/rate": "25 Gb/sec (1X EDR)\n",
        f"{verbs}/mlx5_2/ports/1/link_layer": "Ethernet\n",
        f"{verbs}/hfi1_0/ports/1/state": "4: ACTIVE\n",
        f"{verbs}/hfi1_0/ports/1/rate": "100 Gb/sec (4X EDR)\n",
        f"{verbs}/hfi1_0/ports/1/link_layer": "InfiniBand\n",
        "/sys/class/cxi/cxi0/device/uevent": "DRIVER=cxi_ss1\n",
        f"{net}/eno1/operstate": "up\n",
        f"{net}/eno1/type": "1\n",
        f"{net}/eno1/speed": "25000\n",
        f"{net}/eno1/device/uevent": "DRIVER=ice\n",
        f"{net}/eno2/operstate": "down\n",
        f"{net}/eno2/type": "1\n",
        f"{net}/eno2/device/uevent": "DRIVER=ice\n",
        f"{net}/docker0/operstate": "up\n",
        f"{net}/docker0/type": "1\n",
        f"{net}/lo/operstate": "unknown\n",
        f"{net}/ib0/operstate": "up\n",
        f"{net}/ib0/type": "32\n",
        f"{net}/ib0/device/uevent": "DRIVER=mlx5_core\n",
    }
    assert value_of(hardware.fabrics(tree(tmp_path, files))) == (
        Fabric("omni-path", "hfi1_0:1", "100 Gb/sec (4X EDR)"),
        Fabric("infiniband", "mlx5_0:1", "200 Gb/sec (4X HDR)"),
        Fabric("roce", "mlx5_2:1", "25 Gb/sec (1X EDR)"),
        Fabric("slingshot", "cxi0", ""),
        Fabric("ethernet", "eno1", "25 Gb/s"),
    )


# -- engines -------------------------------------------------------------------------------------


def engine(folder: Path, name: str, says: str) -> Path:
    program = folder / "bin" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return program


def engines(host: Host) -> tuple[HostEngine, ...]:
    found = containers.engines(host)
    assert isinstance(found, Known)
    return found.value


def test_one_engine_under_two_names_is_one(tmp_path: Path) -> None:
    engine(tmp_path, "apptainer", "apptainer version 1.3.4")
    (tmp_path / "bin/singularity").symlink_to("apptainer")
    engine(tmp_path, "podman", "podman version 4.9.4")
    engine(tmp_path, "docker", "podman version 4.9.4")  # podman-docker's stand-in
    host = Host(env={"PATH": f"{tmp_path}/bin:/bin"})
    assert [(e.name, str(value_of(e.version))) for e in engines(host)] == [
        ("apptainer", "1.3.4"),
        ("podman", "4.9.4"),
    ]


def test_an_engine_that_does_not_start_is_named_and_not_tried(tmp_path: Path) -> None:
    program = engine(tmp_path, "apptainer", "")
    program.write_bytes(b"\x7fELF of another machine")
    (found,) = engines(Host(env={"PATH": f"{tmp_path}/bin"}))
    assert found.name == "apptainer"
    assert isinstance(found.version, Unknown) and isinstance(found.modes, Unknown)
    fact = containers.privileged(Known((found,), "ran", "x"))
    assert isinstance(fact, Unknown)


def host_engine(name: str, *modes: str) -> HostEngine:
    known = Known(frozenset(modes), "ran", "tried")
    return HostEngine(name, Unknown("", ""), f"/usr/bin/{name}", known)


@pytest.mark.parametrize(
    ("found", "privileged"),
    [
        # A suid starter joins no user namespace unless told; Apptainer's user guide, "Security".
        ([host_engine("apptainer", "setuid", "rootless")], True),
        ([host_engine("apptainer", "rootless", "fakeroot")], False),
        ([host_engine("apptainer", "root")], True),
        ([host_engine("apptainer")], None),
        ([host_engine("docker", "daemon")], True),
        ([host_engine("podman", "rootless")], False),
        # Whatever else there is, images run under the engine that runs SIFs.
        ([host_engine("docker", "daemon"), host_engine("apptainer", "rootless")], False),
    ],
)
def test_what_the_ranks_of_a_node_share(found: list[HostEngine], privileged: bool | None) -> None:
    fact = containers.privileged(Known(tuple(found), "ran", "x"))
    assert value_of(fact) is privileged


def test_no_engine_is_not_privileged_but_unknown() -> None:
    fact = containers.privileged(Known((), "ran", "PATH"))
    assert isinstance(fact, Unknown) and "engine install" in fact.ask


# -- the command line ----------------------------------------------------------------------------


Hpcenv = Callable[..., "subprocess.CompletedProcess[str]"]


def test_detect_writes_a_profile_and_keeps_what_was_declared(
    hpcenv: Hpcenv, tmp_path: Path
) -> None:
    file = tmp_path / "site.toml"
    done = hpcenv("site", "detect", "-o", file, "--name", "mine")
    assert done.stdout.startswith("site ") and str(file) in done.stderr
    data = tomllib.loads(file.read_text())
    assert data["name"] == "mine"
    lines = file.read_text().splitlines()
    lines = ['libc = "2.17"' if line.startswith("libc =") else line for line in lines]
    file.write_text("\n".join(lines) + "\n")
    hpcenv("site", "detect", "-o", file)
    again = load_site(str(file))
    assert again.name == "mine"
    assert again.libc == Known(Version.parse("2.17"), "declared", "profile")
    assert again.arch == Known(os.uname().machine, "ran", "uname -m")


def test_detect_does_not_overwrite_what_it_cannot_read(hpcenv: Hpcenv, tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text("schema = 1\nname = 'x'\nlibcc = '2.17'\n")
    done = hpcenv("site", "detect", "-o", file, status=2)
    assert f"{file}:3: libcc: unknown key; did you mean 'libc'?" in done.stderr
    assert "Traceback" not in done.stderr
    assert file.read_text().startswith("schema = 1\nname = 'x'\nlibcc")


def test_list_and_show(hpcenv: Hpcenv) -> None:
    listed = json.loads(hpcenv("site", "list", "--json").stdout)
    assert {"example", "debian-12-openmpi", "debian-12-mpich"} <= set(listed)
    shown = hpcenv("site", "show", "example")
    assert "Open MPI 4.0.3" in shown.stdout and "not known: engines" in shown.stderr
    as_json = json.loads(hpcenv("site", "show", "example", "--json").stdout)
    assert as_json["libc"] == {"value": "2.17", "how": "declared", "where": "profile"}
    wrong = hpcenv("site", "show", "exampel", status=2)
    assert "did you mean 'example'" in wrong.stderr and not wrong.stdout


def test_ctrl_c_ends_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    """Though a tool hangs, as one on a dead file server does."""
    told = tmp_path / "pid"
    tool = tmp_path / "mpirun"
    tool.write_text(f"#!/bin/sh\necho $$ > {told}.part; mv {told}.part {told}\nexec sleep 600\n")
    tool.chmod(0o755)
    command = [str(Path(sys.executable).with_name("hpcenv")), "site", "detect"]
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until(told.exists)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 5  # the tool's own deadline is twice that
    assert (process.returncode, out) == (130, "")
    assert "stopped" in err and "Traceback" not in err
    until(lambda: not Path(f"/proc/{told.read_text().strip()}").exists())


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
