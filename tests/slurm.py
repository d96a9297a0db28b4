"""A Slurm of two nodes on this machine: munged, slurmctld and two slurmd of our own.

Ports, keys, sockets and folders are our own, so nothing of the host's Slurm is used or changed.
Every daemon dies with this process, also when that is killed.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

TOOLS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sinfo", "scontrol")
_READY_S = 60


def missing() -> list[str]:
    """Name the tools that are not installed here."""
    return [tool for tool in TOOLS if _tool(tool) is None]


@contextlib.contextmanager
def slurm() -> Iterator[dict[str, str]]:
    """Start the daemons, and give the environment in which Slurm's commands reach them."""
    # Not pytest's folder: munged wants every folder above its socket to be open to all.
    with tempfile.TemporaryDirectory(prefix="hpcenv-slurm-") as name:
        yield from _daemons(Path(name))


def _daemons(folder: Path) -> Iterator[dict[str, str]]:
    folder.chmod(0o755)
    for name in ("state", "spool-n1", "spool-n2", "tmp-n1", "tmp-n2"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    (folder / "slurm.conf").write_text(_conf(folder))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    env = {name: value for name, value in env.items() if not name.startswith("SLURM_JOB")}
    conf = ("-f", str(folder / "slurm.conf"))
    with contextlib.ExitStack() as daemons:
        munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        started = [
            _start(daemons, env, folder, ["munged", "-F", f"--socket={_socket(folder)}", *munge])
        ]
        _until(_socket(folder).exists, started, folder)
        started.append(_start(daemons, env, folder, ["slurmctld", "-D", "-i", *conf]))
        for node in ("n1", "n2"):
            started.append(_start(daemons, env, folder, ["slurmd", "-D", "-N", node, *conf]))
        _until(lambda: _states(env) == ["idle", "idle"], started, folder)
        yield env


def _conf(folder: Path) -> str:
    controller, first, second = _free_ports(3)
    user = getpass.getuser()
    host = socket.gethostname()
    return f"""\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={_socket(folder)}
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
SelectType=select/cons_tres
ReturnToService=2
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
TmpFS={folder}/tmp-%n
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2 RealMemory=1000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def _socket(folder: Path) -> Path:
    return folder / "munge.socket"


def _tool(name: str) -> str | None:
    # An ordinary user's PATH lacks the folders that Debian puts daemons in.
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _start(
    daemons: contextlib.ExitStack, env: dict[str, str], folder: Path, argv: Sequence[str]
) -> subprocess.Popen[bytes]:
    program = _tool(argv[0])
    assert program is not None
    log = daemons.enter_context((folder / f"{argv[0]}.out").open("a"))
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", program, *argv[1:]],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    daemons.callback(_stop, process)
    return process


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _states(env: dict[str, str]) -> list[str]:
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%T"], env=env, capture_output=True, text=True
    )
    return done.stdout.split()


def _until(
    ready: Callable[[], bool], daemons: Sequence[subprocess.Popen[bytes]], folder: Path
) -> None:
    end = time.monotonic() + _READY_S
    while not ready():
        if time.monotonic() > end or any(daemon.poll() is not None for daemon in daemons):
            files = [*folder.glob("*.out"), *folder.glob("*.log")]
            logs = "\n".join(f"{f.name}: {f.read_text(errors='replace')[-2000:]}" for f in files)
            raise AssertionError(f"the daemons are not ready\n{logs}")
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
