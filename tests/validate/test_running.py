"""`hpcenv run` with real images and launchers: the line, the status, the environment, errors."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcenv.cli import settings

pytestmark = pytest.mark.mpi

Hpcenv = Callable[..., "subprocess.CompletedProcess[str]"]
RANK = "import os; e = os.environ; print(e.get('OMPI_COMM_WORLD_RANK') or e['PMI_RANK'], *{})"


@pytest.fixture(scope="session", params=["openmpi", "mpich"])
def image(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(f"mpi_base_{request.param}"))


@pytest.fixture
def engine_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the README asks for after `hpcenv engine install`."""
    monkeypatch.setenv("PATH", f"{settings.load().engines / 'bin'}:{os.environ['PATH']}")


def python(expression: str) -> list[str]:
    return ["python3", "-c", RANK.format(f"[{expression}]")]


def ranks(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line)


def test_the_printed_line_runs_as_printed(
    image: Path, host_site: Path, hpcenv: Hpcenv, engine_on_path: None
) -> None:
    words = python("repr('a b $HOME')")
    done = hpcenv("run", image, "--site", host_site, "-n", "2", "--dry-run", "--", *words)
    line = done.stdout.strip()
    assert "\n" not in line
    assert f" singularity exec {image} python3 -c " in line
    ran = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ranks(ran.stdout) == ["0 'a b $HOME'", "1 'a b $HOME'"]
    same = hpcenv("run", image, "--site", host_site, "-n", "2", "--", *words)
    assert ranks(same.stdout) == ranks(ran.stdout)


def test_the_exit_status_is_the_commands_own(image: Path, host_site: Path, hpcenv: Hpcenv) -> None:
    for status in (7, 75):
        words = ["sh", "-c", f"exit {status}"]
        hpcenv("run", image, "--site", host_site, "-n", "2", "--", *words, status=status)


def test_the_ranks_start_clean_but_for_what_is_named(
    image: Path, host_site: Path, hpcenv: Hpcenv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("NAMED", "a,b c")
    # An image may set PYTHONPATH to nothing, which Python takes for none.
    words = python("e.get('PYTHONPATH') or None, e.get('SECRET'), e.get('NAMED'), e.get('GIVEN')")
    options = ["--env", "NAMED", "--env", "GIVEN=x=1"]
    done = hpcenv("run", image, "--site", host_site, "-n", "2", *options, "--", *words)
    assert ranks(done.stdout) == ["0 None None a,b c x=1", "1 None None a,b c x=1"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["-n", "3", "-N", "2"], "same number of ranks"),
        (["-n", "4", "-N", "2", "--ntasks-per-node", "4"], "same number of ranks"),
        (["-n", "2", "--launcher", "jsrun"], "offers no launcher 'jsrun'"),
        (["-n", "2", "--env", "HPCENV_NOT_SET"], "HPCENV_NOT_SET"),
    ],
)
def test_bad_input_is_one_message(
    options: list[str], says: str, mpi_base_openmpi: Path, host_site: Path, hpcenv: Hpcenv
) -> None:
    words = ["run", mpi_base_openmpi, "--site", host_site, *options, "--", "true"]
    done = hpcenv(*words, status=2)
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_what_is_not_there_is_named(
    mpi_base_openmpi: Path, host_site: Path, hpcenv: Hpcenv, tmp_path: Path
) -> None:
    for command in (["validate-mpi"], ["run", "-n", "2"]):
        tail = ["--", "true"] if command[0] == "run" else []
        missing = tmp_path / "none.sif"
        done = hpcenv(*command, missing, "--site", host_site, *tail, status=2)
        assert str(missing) in done.stderr
        done = hpcenv(*command, mpi_base_openmpi, "--site", "nosuchsite", *tail, status=2)
        assert "nosuchsite" in done.stderr
        broken = tmp_path / "broken.sif"
        broken.write_bytes(b"not a SIF at all")
        done = hpcenv(*command, broken, "--site", host_site, *tail, status=2)
        assert str(broken) in done.stderr
        assert "Traceback" not in done.stderr
