"""Whatever a person types: a message, the right status, never a traceback, nothing on stdout."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcenv.image.store import Store
from hpcenv.lock.resolve import runtime

HPCENV = str(Path(sys.executable).with_name("hpcenv"))


def hpcenv(*words: str, store: Path, **options: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HPCENV_STORE": str(store)}
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [HPCENV, *words], capture_output=True, text=True, env=env, cwd=store, **options
    )


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ("frobnicate", 2, "No such command 'frobnicate'"),
        ("run mpi-base", 2, "Missing argument"),
        ("site show debain-12-mpich", 2, "debian-12-mpich"),
        ("recipe new mine --from mpi-bsae", 2, "did you mean 'mpi-base'"),
        ("lock tensorflow-horovd --site example", 2, "did you mean 'tensorflow-horovod'"),
        ("lock mpi-base --site nowhere", 2, "no site 'nowhere'"),
        ("lock ./none.toml --site example", 2, "none.toml"),
        ("fetch none.json", 2, "none.json: cannot read it: No such file"),
        ("render none.json --format definition", 2, "none.json"),
        ("render none.json --format dockerfile", 2, "no format 'dockerfile'"),
        ("explain MPI999", 2, "no rule 'MPI999'"),
        ("validate-mpi nothing:1 --static", 2, "no image nothing:1"),
        ("validate-mpi /etc/passwd --static", 2, "not a readable SIF"),
        ("run nothing -n 2 -- true", 2, "no image nothing"),
        ("build nothing --site example", 2, "no recipe 'nothing'"),
        ("image show nothing", 2, "no image nothing"),
        ("engine install podman", 2, "installs no engine 'podman'"),
        ("site detect -o /proc/none/site.toml", 3, "No such file"),
    ],
)
def test_bad_input(words: str, status: int, says: str, tmp_path: Path) -> None:
    done = hpcenv(*words.split(), store=tmp_path)
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert (done.returncode, done.stdout) == (status, "")


def test_every_fault_of_a_recipe_at_once(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(
        'schema = 1\nname = "bad"\nextends = "mpi-base"\n\n[bsae]\nos = "debian:12"\n\n'
        '[mpi]\npolicy = "fixd"\n\n[gpu]\nenabled = "no"\n'
    )
    done = hpcenv("lock", "./bad.toml", "--site", "example", store=tmp_path)
    lines = [line for line in done.stderr.splitlines() if "bad.toml:" in line]
    assert done.returncode == 2
    assert [line.partition("bad.toml:")[2].partition(":")[0] for line in lines] == ["5", "9", "12"]
    assert "did you mean 'base'" in lines[0] and "did you mean 'fixed'" in lines[1]


def test_a_configuration_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "hpcenv").mkdir()
    (tmp_path / "hpcenv/config.toml").write_text('stroe = "/data"\n')
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run([HPCENV, "image", "list"], capture_output=True, text=True, env=env)
    assert done.returncode == 2
    assert "config.toml:1: stroe: unknown key; did you mean 'store'?" in done.stderr


def test_results_are_utf8_whatever_the_locale(tmp_path: Path) -> None:
    top = Path(__file__).parents[2]
    (lock,) = (top / "images/tensorflow-horovod").glob("*/*.lock.json")
    runtime(Store(tmp_path).blobs)  # rendering writes it out, so the store must have it
    poor = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    env = {**os.environ, **poor, "HPCENV_STORE": str(tmp_path)}
    words = [HPCENV, "render", str(lock), "--format", "containerfile"]
    done = subprocess.run(words, capture_output=True, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (top / "Containerfile").read_bytes()
    assert not done.stdout.isascii()


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    script = f"{HPCENV} explain | exec 0<&-; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 141 and "Traceback" not in done.stderr


def test_a_result_that_cannot_be_written_is_told_once() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([HPCENV, "explain"], stdout=full, stderr=subprocess.PIPE, text=True)
    says = "hpcenv: stdout: cannot write the result: No space left on device\n"
    assert (done.returncode, done.stderr) == (3, says)


def test_a_file_that_cannot_be_written_is_named_and_not_left(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the write fails, not the open."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))  # noqa: E731
    done = hpcenv("recipe", "new", "mine", store=tmp_path, preexec_fn=limit)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"hpcenv: {tmp_path}/mine.toml: File too large\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
@pytest.mark.parametrize("words", ["lock mpi-base --site example", "engine install"])
def test_a_full_disk_is_told(words: str, tmp_path: Path) -> None:
    """Nobody but a mount namespace of its own sees the disk, which goes away with it."""
    script = (
        f"mount -t tmpfs -o size=16k none {tmp_path} && cd {tmp_path} && "
        f"head -c 1M /dev/zero > fill; HOME={tmp_path} exec {HPCENV} {words}"
    )
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "HPCENV_STORE": str(tmp_path / "store")},
    )
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr
    assert (done.returncode, done.stdout) == (3, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_is_said(number: signal.Signals, tmp_path: Path) -> None:
    """In the midst of a detection: a tool that hangs is asked for its version."""
    tools = tmp_path / "tools"
    tools.mkdir()
    mark = tmp_path / "asked"
    slow = tools / "nvidia-smi"
    slow.write_text(f"#!/bin/sh\ntouch {mark}\nexec sleep 1000\n")
    slow.chmod(0o755)
    for name in ("mpirun", "srun", "ompi_info"):
        (tools / name).symlink_to(slow)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    running = subprocess.Popen(
        [HPCENV, "site", "detect"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )
    until = time.monotonic() + 30
    while not mark.exists():
        assert time.monotonic() < until and running.poll() is None
        time.sleep(0.02)
    running.send_signal(number)
    out, err = running.communicate(timeout=30)
    assert (running.returncode, out) == (130, "")
    assert "stopped; nothing half-made was left" in err and "Traceback" not in err


def test_an_impatient_stop_does_not_cut_off_the_tidying_up() -> None:
    script = (
        "import sys, time\n"
        "from hpcenv.cli.output import plain_errors\n"
        "with plain_errors():\n"
        "    try:\n"
        "        print('working', flush=True)\n"
        "        time.sleep(60)\n"
        "    finally:\n"
        "        print('tidying', flush=True)\n"
        "        sys.stdin.read()\n"
        "        print('tidy', flush=True)\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None and running.stdout.readline() == "working\n"
    running.send_signal(signal.SIGINT)
    assert running.stdout.readline() == "tidying\n"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        running.send_signal(number)
    out, err = running.communicate("", timeout=30)
    assert (running.returncode, out) == (130, "tidy\n")
    assert err == "hpcenv: stopped; nothing half-made was left\n"
