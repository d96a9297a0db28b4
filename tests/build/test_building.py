"""Builds of the small image with the real command line, and everything that may go wrong."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcenv.base.publish import abandoned

HPCENV = Path(sys.executable).with_name("hpcenv")

pytestmark = pytest.mark.image

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk, cuts the network")


@dataclass(frozen=True)
class Kit:
    """A lock, and a store that has its packages and nothing else."""

    lock: Path
    store: Path
    sif: Path

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "HPCENV_STORE": str(self.store)}

    def build(
        self, *words: str, before: tuple[str, ...] = (), **env: str
    ) -> subprocess.CompletedProcess[str]:
        argv = [*before, str(HPCENV), "build", str(self.lock), *words]
        return subprocess.run(argv, env={**self.env, **env}, capture_output=True, text=True)

    def left(self) -> list[Path]:
        """What a build must not leave: scratch folders and half-made results."""
        memory = Path(f"/dev/shm/hpcenv-{os.geteuid()}")
        mine = [*self.store.rglob(".*.part"), *(self.store / "scratch").glob("*")]
        return [*mine, *abandoned(memory)]


@pytest.fixture
def kit(mpi_base_openmpi: Path, tmp_path: Path) -> Kit:
    image = mpi_base_openmpi.parent
    about = json.loads((image / "lock.json").read_text())
    blobs = image.resolve().parent.parent / "blobs"
    store = tmp_path / "store"
    for artefact in about["artefacts"]:
        digest = artefact["sha256"]
        target = store / "blobs" / digest[:2] / digest
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(blobs / digest[:2] / digest, target)
    lock = tmp_path / "base.lock.json"
    shutil.copyfile(image / "lock.json", lock)
    return Kit(lock, store, mpi_base_openmpi)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@root_only
def test_a_full_store_builds_offline_to_the_same_bytes_and_then_does_nothing(kit: Kit) -> None:
    done = kit.build("--offline", "-t", "again:1", before=("unshare", "--net", "--"))
    assert done.returncode == 0, done.stderr
    assert sha256(Path(done.stdout.strip())) == sha256(kit.sif)
    assert kit.left() == []
    again = kit.build("--offline", "-t", "again:2")
    assert again.returncode == 0
    assert "[1/" not in again.stderr and again.stdout.strip().endswith("again/2/image.sif")


def test_the_image_says_what_it_is(kit: Kit, apptainer: Path) -> None:
    def said(*words: str) -> str:
        argv = [str(apptainer), "exec", str(kit.sif), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    manifest = json.loads(said("cat", "/etc/hpcenv/manifest.json"))
    assert manifest == json.loads((kit.sif.parent / "manifest.json").read_text())
    debian = said("dpkg-query", "-W", "-f", "${Package} ${Version}\n").split("\n")
    assert {f"{p['name']} {p['version']}" for p in manifest["debian"]} == set(filter(None, debian))
    program = "from mpi4py import MPI; print(MPI.Get_library_version().split(',')[0])"
    assert said("python", "-c", program).strip() == f"Open MPI v{manifest['mpi']['version']}"
    where = said("env", "PYTHONPATH=/x", "sh", "-c", "command -v python").strip()
    assert where == "/opt/hpcenv/bin/python"
    traces = (
        "grep -rIl 'file:///\\|https\\?://[^ ]*/simple' /etc/apt /opt/hpcenv/pyvenv.cfg || true"
    )
    assert said("sh", "-c", traces) == ""


@pytest.mark.parametrize("name", ["PYTHONPATH", "PYTHONHOME"])
def test_the_hosts_python_does_not_leak_in(kit: Kit, apptainer: Path, name: str) -> None:
    argv = [
        str(apptainer),
        "exec",
        str(kit.sif),
        "python",
        "-c",
        "import sys; print(sys.prefix, '/nonexistent' in sys.path)",
    ]
    done = subprocess.run(
        argv, env={**os.environ, name: "/nonexistent"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["/opt/hpcenv", "False"]


def test_a_tampered_package_is_named_and_nothing_is_built(kit: Kit) -> None:
    about = json.loads(kit.lock.read_text())
    deb = next(artefact for artefact in about["artefacts"] if artefact["name"] == "tar")
    blob = kit.store / "blobs" / deb["sha256"][:2] / deb["sha256"]
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(content)
    done = kit.build("--offline")
    assert done.returncode == 1
    assert f"tar {deb['version']}" in done.stderr and "was changed" in done.stderr
    assert f"rm {blob}" in done.stderr
    assert kit.left() == [] and not (kit.store / "images").exists()


def test_offline_with_a_package_missing_says_how_many(kit: Kit) -> None:
    about = json.loads(kit.lock.read_text())
    deb = next(artefact for artefact in about["artefacts"] if artefact["name"] == "tar")
    (kit.store / "blobs" / deb["sha256"][:2] / deb["sha256"]).unlink()
    done = kit.build("--offline")
    assert done.returncode == 3
    assert "lacks 1 of" in done.stderr and deb["file"] in done.stderr


def test_no_engine(kit: Kit, tmp_path: Path) -> None:
    done = kit.build("--offline", PATH="/usr/bin:/bin", XDG_DATA_HOME=str(tmp_path / "empty"))
    assert done.returncode == 3
    assert "hpcenv engine install" in done.stderr and "Traceback" not in done.stderr
    assert "[1/" not in done.stderr


def test_an_engine_that_is_not_there(kit: Kit) -> None:
    done = kit.build("--offline", "--engine", "nosuch")
    assert done.returncode == 2 and "no engine 'nosuch'" in done.stderr


@root_only
def test_a_full_disk_is_foreseen(kit: Kit, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    script = (
        f"mount -t tmpfs -o size=150m none {small} && cp -r {kit.store}/blobs {small}/ && "
        f"HPCENV_STORE={small} exec {HPCENV} build {kit.lock} --offline"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script], capture_output=True, text=True
    )
    assert done.returncode == 3, done.stderr
    assert "GB are free" in done.stderr and "[1/" not in done.stderr


def test_a_lock_of_another_recipe_is_refused(kit: Kit, tmp_path: Path, host_site: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('schema = 1\nname = "mine"\nextends = "mpi-base"\n')
    profile = host_site.read_text()
    name = re.search(r'^name = "(.*)"', profile, re.MULTILINE)
    assert name is not None
    shutil.copyfile(kit.lock, tmp_path / f"mine.{name[1]}.lock.json")
    done = subprocess.run(
        [HPCENV, "build", recipe, "--site", host_site, "--locked"],
        env=kit.env, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "does not match" in done.stderr and "recipe changed" in done.stderr


def test_a_bad_tag_is_told_before_anything_else(kit: Kit) -> None:
    done = kit.build("-t", "No:Good:Tag")
    assert done.returncode == 2 and "NAME:TAG" in done.stderr


PHASES = ["[1/4] system:", "[2/4] python:", "[3/4] image:", "[4/4] pack:"]


def stopped(kit: Kit, phase: str, number: signal.Signals, after: float) -> tuple[int, str]:
    """Build, and send a signal a while after a phase began; return status and messages."""
    process = subprocess.Popen(
        [HPCENV, "build", kit.lock, "--offline"],
        env=kit.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    told = []
    for line in process.stderr:
        told.append(line)
        if line.startswith(phase) and line.rstrip().endswith("…"):
            threading.Timer(after, process.send_signal, [number]).start()
    return process.wait(timeout=300), "".join(told)


def processes_of(store: Path) -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(store) in line:
                yield line


def test_ctrl_c_in_every_phase_leaves_nothing_and_the_build_goes_on(kit: Kit) -> None:
    for phase in PHASES:
        status, told = stopped(kit, phase, signal.SIGINT, 0.5)
        assert status == 130, told
        assert "Traceback" not in told and "nothing half-made" in told
        assert kit.left() == []
        assert list(processes_of(kit.store)) == []
        finish(kit, phase)
    assert sha256(Path(kit.build("--offline").stdout.strip())) == sha256(kit.sif)


def finish(kit: Kit, phase: str) -> None:
    """Let the phase that was interrupted come to its end, by a stop at the next one's beginning."""
    later = PHASES[PHASES.index(phase) + 1 :]
    if later:
        stopped(kit, later[0], signal.SIGINT, 0.0)


def test_what_a_killed_build_left_is_swept_by_the_next(kit: Kit) -> None:
    status, _ = stopped(kit, PHASES[1], signal.SIGKILL, 2.0)
    assert status == -signal.SIGKILL
    done = kit.build("--offline")
    assert done.returncode == 0, done.stderr
    assert kit.left() == []
    assert sha256(Path(done.stdout.strip())) == sha256(kit.sif)


def test_two_builders_of_one_image_share_the_work(kit: Kit) -> None:
    both = [
        subprocess.Popen(
            [HPCENV, "build", kit.lock, "--offline"],
            env=kit.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    told = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert told[0][0] == told[1][0]
    packed = [err for _, err in told if "pack: SquashFS" in err]
    assert len(packed) == 1
