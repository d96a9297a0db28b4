"""What tests of several areas share: the site of this host, and images built once a session.

Images are built with the real command line into the user's ordinary store, or the one that
HPCENV_STORE names, so a second run finds them there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
HPCENV = Path(sys.executable).with_name("hpcenv")

# A shell has what it starts in the background ignore Ctrl-C, and what we start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("campaign", settings.get_profile("default"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

Hpcenv = Callable[..., "subprocess.CompletedProcess[str]"]


def _hpcenv(
    *words: str | Path, status: int | None = 0, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(HPCENV), *map(str, words)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
    )
    assert status is None or done.returncode == status, f"{done.args}\n{done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="session")
def hpcenv() -> Hpcenv:
    """Run the command line; asserts its exit status unless `status=None`."""
    return _hpcenv


@pytest.fixture(scope="session")
def host_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile of this machine, as a file."""
    file = tmp_path_factory.mktemp("site") / "site.toml"
    _hpcenv("site", "detect", "-o", file)
    return file


@pytest.fixture(scope="session")
def default_image(host_site: Path) -> Path:
    """The SIF of tensorflow-horovod, pinned to this machine."""
    return _built("tensorflow-horovod", host_site)


@pytest.fixture(scope="session")
def mpi_base_openmpi(host_site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SIF of mpi-base with Debian's Open MPI, whatever this machine has."""
    return _mpi_base("openmpi", host_site, tmp_path_factory)


@pytest.fixture(scope="session")
def mpi_base_mpich(host_site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SIF of mpi-base with Debian's MPICH, whatever this machine has."""
    return _mpi_base("mpich", host_site, tmp_path_factory)


def _mpi_base(family: str, site: Path, tmp: pytest.TempPathFactory) -> Path:
    recipe = tmp.mktemp("recipe") / f"mpi-base-{family}.toml"
    recipe.write_text(
        f'schema = 1\nname = "mpi-base-{family}"\nextends = "mpi-base"\n\n'
        f'[mpi]\npolicy = "fixed"\nfamily = "{family}"\nsource = "deb"\n'
    )
    return _built(recipe, site)


def _built(recipe: str | Path, site: Path) -> Path:
    # Locks stay in runs/, so that the next session finds them, and then the image in the store.
    locks = ROOT / "runs/locks"
    locks.mkdir(parents=True, exist_ok=True)
    built = _hpcenv("build", recipe, "--site", site, cwd=locks)
    return Path(built.stdout.strip())
