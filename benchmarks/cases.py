"""The benchmarks: what is run, against what, and what is aimed at."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from benchmarks.measure import ROOT, Command, Result, compare, host, output
from hpcenv.base.errors import Outside

HPCENV = str(Path(sys.executable).with_name("hpcenv"))
SCRATCH = ROOT / "runs/benchmarks"
SITE = SCRATCH / "site.toml"
IMPORT = "import tensorflow, horovod.tensorflow"


def help_() -> Result:
    """What every command pays before it does anything."""
    about = host()
    ours, against = compare(
        Command("hpcenv --help", (HPCENV, "--help")),
        Command("import typer", (sys.executable, "-c", "import typer")),
        rounds=15,
    )
    return Result(1, "help", "`hpcenv --help`", 0.150, "seconds", ours, against, about)


def rebuild() -> Result:
    """A build when nothing has changed."""
    _image()
    about = host()
    argv = (HPCENV, "build", "tensorflow-horovod", "--site", str(SITE))
    ours, _ = compare(Command("hpcenv build", argv), None, rounds=9)
    return Result(1, "rebuild", "build, nothing changed", 1.0, "seconds", ours, None, about)


def static() -> Result:
    """The facts of the full image and the verdict, without running anything."""
    argv = (HPCENV, "validate-mpi", str(_image()), "--site", str(SITE), "--static")
    about = host()
    ours, _ = compare(Command("hpcenv validate-mpi --static", argv), None, rounds=9)
    return Result(
        1, "static", "static `validate-mpi`, full image", 1.0, "seconds", ours, None, about
    )


def start() -> Result:
    """Starting the image and importing what is slow to import, against the host's own files."""
    image = _image()
    engine = _engine()
    python = _host_venv(image, engine)
    about = host()
    ours, against = compare(
        Command("in the image", (engine, "exec", str(image), "python", "-c", IMPORT)),
        Command("host venv", (str(python), "-c", IMPORT), env={"TF_CPP_MIN_LOG_LEVEL": "2"}),
        rounds=9,
    )
    says = "start, and import TensorFlow and Horovod"
    return Result(1, "start", says, 1.1, "ratio", ours, against, about)


def demo() -> Result:
    """`make demo` in a fresh clone with nothing cached, against the same by hand.

    By hand the engine and the operating system's packages are there already; the demo brings the
    engine itself. Both download what they install.
    """
    clone, home = SCRATCH / "clone", SCRATCH / "home"
    by_hand = SCRATCH / "by-hand"

    def forget() -> None:
        for folder in (clone, home):
            shutil.rmtree(folder, ignore_errors=True)
        home.mkdir(parents=True)
        output(["git", "clone", "--quiet", str(ROOT), str(clone)], "to clone")

    def forget_by_hand() -> None:
        shutil.rmtree(by_hand, ignore_errors=True)

    cold = {
        "HPCENV_YES": "1",
        "HPCENV_STORE": str(home / "store"),
        "XDG_DATA_HOME": str(home / "data"),
        "PIP_NO_CACHE_DIR": "1",
        "UV_NO_CACHE": "1",
    }
    hand = (str(ROOT / "benchmarks/by_hand.sh"), str(by_hand))
    engine = {"PATH": f"{Path(_engine()).parent}:{os.environ['PATH']}", "PIP_NO_CACHE_DIR": "1"}
    about = host()
    ours, against = compare(
        Command("make demo", ("make", "demo"), env=cold, cwd=clone, before=forget),
        Command("by hand", hand, env=engine, before=forget_by_hand),
        rounds=1,
    )
    for folder in (clone, home, by_hand):
        shutil.rmtree(folder, ignore_errors=True)
    return Result(1, "demo", "`make demo`, cold", 1.5, "ratio", ours, against, about)


CASES: dict[str, Callable[[], Result]] = {
    "help": help_,
    "rebuild": rebuild,
    "static": static,
    "start": start,
    "demo": demo,
}
LONG = frozenset({"demo"})


@cache
def _image() -> Path:
    """The SIF of the default image for this machine, built where it is missing."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    image = SCRATCH / "tensorflow-horovod.sif"
    output([HPCENV, "site", "detect", "-o", str(SITE)], "to look at this machine")
    words = ["build", "tensorflow-horovod", "--site", str(SITE), "-o", str(image)]
    output([HPCENV, *words], "to build the default image", deadline=3600)
    return image


@cache
def _engine() -> str:
    line = output([HPCENV, "engine", "install", "apptainer"], "to bring an engine")
    folder = line.removeprefix("export PATH=").removesuffix(":$PATH")
    return str(Path(folder) / "singularity")


@cache
def _host_venv(image: Path, engine: str) -> Path:
    """A venv on the host with the very files of the image's: the same wheels, the same Horovod."""
    version = output([engine, "exec", str(image), "python", "-V"], "to ask the image's Python")
    number = ".".join(version.split()[1].split(".")[:2])
    python = f"/usr/bin/python{number}"
    if not Path(python).exists():
        raise Outside(f"the image has Python {number}; to compare, the host needs {python} as well")
    venv = SCRATCH / "venv"
    shutil.rmtree(venv, ignore_errors=True)
    output([python, "-m", "venv", "--without-pip", str(venv)], "to make a venv")
    packages = f"lib/python{number}/site-packages"
    pack = f'"{engine}" exec "{image}" tar -C /opt/hpcenv/{packages} -c .'
    unpack = f'{pack} | tar -C "{venv}/{packages}" -x'
    output(["bash", "-o", "pipefail", "-c", unpack], "to take the image's packages out")
    return venv / "bin/python"
