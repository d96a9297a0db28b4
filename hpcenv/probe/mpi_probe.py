"""One rank of an MPI proof: join the world, use it, and write down what was seen at each step.

This file is bound into an image and run by the image's own Python, one process a rank. It needs
Python 3.6 and the standard library. It judges nothing: it writes one small JSON file, replaced as
a whole at each step, so that a rank that hangs or dies is still known by the last step it reached.

    python3 mpi_probe.py FOLDER --deadline SECONDS [--library NAME]...

The MPI library is called through ctypes. Two binary interfaces are known: Open MPI's, whose
handles are addresses of exported objects, and that of the MPICH family, whose handles are
integers fixed by the MPICH ABI initiative.
"""

import argparse
import faulthandler
import json
import os
import platform
import re
import secrets
import socket
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

SCHEMA = 1
LARGE_BYTES = (24 << 20) + 7
TOKEN = 4711
COUNT = 1000
LIBRARIES = ("libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi.so.20", "libmpi.so")
RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "PALS_RANKID",
    "SLURM_PROCID",
)
LAUNCHER_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PMI2_", "PRTE_", "PALS_", "SLURM_", "HYDI_")
# Values that explain a failure; of the others the name alone, as some are keys of the job.
TELLING = re.compile(
    r"^(OMPI_COMM_WORLD_(RANK|SIZE)|PMIX_(RANK|VERSION|SECURITY_MODE|GDS_MODULE)"
    r"|PMI_(RANK|SIZE)|SLURM_(PROCID|NTASKS|NNODES|MPI_TYPE))$"
)


class Stop(Exception):
    """The proof cannot go on; the text says why."""


class Unprovable(Stop):
    """The fault is this probe's: it does not know enough to use what it found."""


class Witness:
    """The file of this rank: rewritten beside and renamed at each step."""

    def __init__(self, folder: str) -> None:
        # Slurm's name for the node; several of its nodes can be one machine.
        host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        rank = launcher_rank()
        mark = "%s.%d.%s" % (host, os.getpid(), secrets.token_hex(4))
        self._folder = folder
        self._name = "rank.%s.json" % mark
        self.trace = os.path.join(folder, "trace.%s.txt" % mark)
        self._seen: Dict[str, Any] = {
            "schema": SCHEMA,
            "step": "python",
            "host": host,
            "pid": os.getpid(),
            "launcher_rank": rank,
            "python": platform.python_version(),
            "trace": os.path.basename(self.trace),
            "environment": {
                name: value if TELLING.match(name) else ""
                for name, value in sorted(os.environ.items())
                if name.startswith(LAUNCHER_PREFIXES)
            },
            "at": {},
        }

    def at(self, step: str, **more: Any) -> None:
        """Record that `step` is reached, and what has been learnt before it."""
        self._seen.update(more)
        self._seen["step"] = step
        self._seen["at"][step] = round(time.time(), 6)
        beside = os.path.join(self._folder, "." + self._name)
        with open(beside, "w") as out:
            json.dump(self._seen, out)
        os.replace(beside, os.path.join(self._folder, self._name))


def launcher_rank() -> Optional[int]:
    """Return the rank that the launcher gave this process, whatever its MPI makes of it."""
    for name in RANK_VARIABLES:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return None


def load(names: List[str]) -> Any:
    """Load the first library that can be loaded, as an application of the image would."""
    import ctypes

    said = []
    for name in names:
        try:
            library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            said.append(str(error))
            continue
        if hasattr(library, "MPI_Init"):
            return library
        said.append("%s: no MPI_Init in it" % name)
    raise Stop("no MPI library could be loaded: " + "; ".join(said))


def mapped_file(address: int) -> str:
    """Return the file that the code at `address` was mapped from."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(None, 5)
            low, high = (int(edge, 16) for edge in fields[0].split("-"))
            if low <= address < high and len(fields) == 6:
                return fields[5]
    return ""


def mount_of(path: str) -> str:
    """Return the mount point that a file lies on: not ``/`` where it was bound into the image."""
    best = ""
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), line.split()[4])
            if path == point or path.startswith(point.rstrip("/") + "/"):
                best = point if len(point) >= len(best) else best
    return best


class World:
    """MPI_COMM_WORLD through ctypes."""

    def __init__(self, library: Any) -> None:
        import ctypes

        self.c = ctypes
        self.library = library
        text = ctypes.create_string_buffer(8192)
        size = ctypes.c_int()
        library.MPI_Get_library_version(text, ctypes.byref(size))
        self.version = text.value.decode("utf-8", "replace").strip()
        self.family = self._family()
        if self.family == "openmpi":
            self.comm = self._object("ompi_mpi_comm_world")
            self.byte = self._object("ompi_mpi_byte")
            self.int64 = self._object("ompi_mpi_int64_t")
            self.double = self._object("ompi_mpi_double")
            self.sum = self._object("ompi_mpi_op_sum")
            self.ignore = ctypes.c_void_p(0)
        else:
            self.comm = ctypes.c_int(0x44000000)
            self.byte = ctypes.c_int(0x4C00010D)
            self.int64 = ctypes.c_int(0x4C00083A)
            self.double = ctypes.c_int(0x4C00080B)
            self.sum = ctypes.c_int(0x58000003)
            self.ignore = ctypes.c_void_p(1)

    def _family(self) -> str:
        marks = (
            ("openmpi", r"^Open MPI\b"),
            ("intel-mpi", r"Intel\(R\) MPI"),
            ("cray-mpich", r"CRAY MPICH"),
            ("mvapich", r"MVAPICH"),
            ("mpich", r"MPICH"),
        )
        for family, mark in marks:
            if re.search(mark, self.version):
                return family
        raise Unprovable(
            "an MPI library of a family whose handles are not known: %r" % self.version
        )

    def _object(self, name: str) -> Any:
        try:
            return self.c.c_void_p(self.c.addressof(self.c.c_char.in_dll(self.library, name)))
        except ValueError:
            raise Unprovable(
                "the library calls itself Open MPI but does not export %s" % name
            ) from None

    def call(self, name: str, *arguments: Any) -> None:
        """Call an MPI function; anything but MPI_SUCCESS stops the proof."""
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise Stop("%s returned %d" % (name, status))

    def number(self, name: str) -> int:
        """Return MPI_Comm_rank or MPI_Comm_size."""
        value = self.c.c_int(-1)
        self.call(name, self.comm, self.c.byref(value))
        return value.value

    def processor(self) -> str:
        """Return MPI_Get_processor_name."""
        text = self.c.create_string_buffer(1024)
        size = self.c.c_int()
        self.call("MPI_Get_processor_name", text, self.c.byref(size))
        return text.value.decode("utf-8", "replace")

    def ring(self, rank: int, size: int) -> bool:
        """Pass a token round; each rank adds its number plus one. Return whether it was right."""
        token = self.c.c_int64(TOKEN)
        right, left = (rank + 1) % size, (rank - 1) % size

        def send() -> None:
            self.call("MPI_Send", self.c.byref(token), 1, self.int64, right, 7, self.comm)

        def receive() -> None:
            pointer = self.c.byref(token)
            self.call("MPI_Recv", pointer, 1, self.int64, left, 7, self.comm, self.ignore)

        if rank == 0:
            send()
            receive()
            return token.value == TOKEN + sum(range(2, size + 1))
        receive()
        right_value = token.value == TOKEN + sum(range(2, rank + 1))
        token.value += rank + 1
        send()
        return right_value

    def allreduce(self, rank: int, size: int) -> Tuple[bool, bool]:
        """Add up vectors over all ranks; return whether integers and floats came out exact.

        Element i of rank r is (r + 1)(i + 1), for floats half of that: both sums are exact.
        """
        total = size * (size + 1) // 2
        whole = self._sum([(rank + 1) * (i + 1) for i in range(COUNT)], self.c.c_int64, self.int64)
        half = self._sum(
            [(rank + 1) * (i + 1) / 2 for i in range(COUNT)], self.c.c_double, self.double
        )
        return (
            whole == [total * (i + 1) for i in range(COUNT)],
            half == [total * (i + 1) / 2 for i in range(COUNT)],
        )

    def _sum(self, values: List[Any], kind: Any, handle: Any) -> List[Any]:
        mine = (kind * COUNT)(*values)
        ours = (kind * COUNT)()
        self.call("MPI_Allreduce", mine, ours, COUNT, handle, self.sum, self.comm)
        return list(ours)

    def large(self, rank: int, size: int) -> Tuple[bool, float]:
        """Pass 24 MiB to the right neighbour, twice; return whether right, and bytes a second.

        One copy between user namespaces is what small messages never need.
        """
        from hashlib import shake_128

        right, left = (rank + 1) % size, (rank - 1) % size
        mine = shake_128(b"hpcenv %d" % rank).digest(LARGE_BYTES)
        theirs = self.c.create_string_buffer(LARGE_BYTES)
        expected = shake_128(b"hpcenv %d" % left).digest(LARGE_BYTES)
        correct, seconds = True, 0.0
        for tag in (8, 9):
            self.c.memset(theirs, 0, LARGE_BYTES)
            began = time.time()
            self.call(
                "MPI_Sendrecv",
                *(self.c.c_char_p(mine), LARGE_BYTES, self.byte, right, tag),
                *(theirs, LARGE_BYTES, self.byte, left, tag),
                *(self.comm, self.ignore),
            )
            seconds = time.time() - began
            correct = correct and theirs.raw == expected
        return correct, LARGE_BYTES / max(seconds, 1e-9)


def prove(witness: Witness, libraries: List[str]) -> None:
    """Go through the steps, recording each before it is taken."""
    import ctypes

    witness.at("load")
    library = load(libraries)
    file = mapped_file(ctypes.cast(library.MPI_Init, ctypes.c_void_p).value or 0)
    witness.at("version", library=file, mount=mount_of(file))
    world = World(library)
    witness.at("init", version=world.version.splitlines()[0], family=world.family)
    world.call("MPI_Init", None, None)
    rank, size = world.number("MPI_Comm_rank"), world.number("MPI_Comm_size")
    witness.at("ring", rank=rank, size=size, processor=world.processor())
    if size > 1:
        witness.at("allreduce", ring=world.ring(rank, size))
        whole, half = world.allreduce(rank, size)
        witness.at("large", integers=whole, floats=half)
        correct, speed = world.large(rank, size)
        witness.at("finalize", large=correct, bytes_per_second=round(speed))
    else:
        witness.at("finalize")
    world.call("MPI_Finalize")
    witness.at("done")


def main() -> int:
    """Run one rank."""
    parser = argparse.ArgumentParser(description="one rank of an MPI proof")
    parser.add_argument("folder")
    parser.add_argument("--deadline", type=float, required=True, help="seconds to live")
    parser.add_argument("--library", action="append", default=[], help="to try first, in order")
    options = parser.parse_args()
    witness = Witness(options.folder)
    witness.at("python")
    with open(witness.trace, "w") as trace:
        # A rank that hangs in C never comes back to Python: a thread of faulthandler's ends it.
        faulthandler.enable(trace)
        faulthandler.dump_traceback_later(options.deadline, exit=True, file=trace)
        try:
            prove(witness, options.library or list(LIBRARIES))
        except (Stop, ImportError, AttributeError) as error:
            unprovable = not isinstance(error, Stop) or isinstance(error, Unprovable)
            witness.at("stopped", stopped=str(error), unprovable=unprovable)
            print("hpcenv probe: %s" % error, file=sys.stderr)
            return 1
        finally:
            faulthandler.cancel_dump_traceback_later()
    return 0


if __name__ == "__main__":
    sys.exit(main())
