"""The ranks of a run: who is who, and small values passed between them.

This is the control plane, by mpi4py: settings agreed upon, errors told, digests compared. Tensors
travel by a `hpcenv.runtime.train.collective.Collective`, so that one can check the other.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hpcenv.base.errors import Failure, Outside

T = TypeVar("T")
Doubles = npt.NDArray[np.float64]

NODE = "HPCENV_NODE"
"""Overrides the node's name: ranks of one name share a folder and get one copy of staged data."""


class Ranks(Protocol):
    """The ranks that were started together.

    Attributes
    ----------
    rank, size : int
        This rank, from 0, and how many there are.
    nodes : tuple of str
        The name of each rank's node.
    """

    rank: int
    size: int
    nodes: tuple[str, ...]

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, on every rank."""

    def broadcast(self, value: T) -> T:
        """Return rank 0's value."""

    def sum(self, values: Doubles) -> Doubles:
        """Return the sums over ranks, in float64."""

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def abort(self, status: int) -> NoReturn:
        """End every rank, now, with an exit status."""


class OneRank:
    """A run of one rank, without MPI."""

    def __init__(self, node: str | None = None) -> None:
        self.rank = 0
        self.size = 1
        self.nodes: tuple[str, ...] = (node or node_name(os.environ),)

    def gather(self, value: T) -> list[T]:
        return [value]

    def broadcast(self, value: T) -> T:
        return value

    def sum(self, values: Doubles) -> Doubles:
        return values.astype(np.float64)

    def barrier(self) -> None:
        pass

    def abort(self, status: int) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class MpiRanks:
    """The ranks of MPI_COMM_WORLD, by mpi4py.

    Attributes
    ----------
    world : mpi4py.MPI.Comm
        A duplicate of MPI_COMM_WORLD, so that no message of others is taken for ours.
    """

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi = MPI
        self.world = MPI.COMM_WORLD.Dup()
        self.rank: int = self.world.Get_rank()
        self.size: int = self.world.Get_size()
        self.nodes: tuple[str, ...] = tuple(self.gather(node_name(os.environ)))

    def gather(self, value: T) -> list[T]:
        values: list[T] = self.world.allgather(value)
        return values

    def broadcast(self, value: T) -> T:
        # Arrays may be large: protocol 5 pickles them without a second copy.
        data: bytes = self.world.bcast(
            pickle.dumps(value, protocol=5) if self.rank == 0 else None, root=0
        )
        result: T = pickle.loads(data)
        return result

    def sum(self, values: Doubles) -> Doubles:
        total = np.empty(values.shape, np.float64)
        self.world.Allreduce(np.ascontiguousarray(values, np.float64), total, op=self.mpi.SUM)
        return total

    def barrier(self) -> None:
        self.world.Barrier()

    def abort(self, status: int) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        self.mpi.COMM_WORLD.Abort(status)
        os._exit(status)


def node_name(environ: Mapping[str, str]) -> str:
    """The name of this node: `HPCENV_NODE`, else the host's name."""
    return environ.get(NODE) or socket.gethostname()


def local_rank(ranks: Ranks) -> int:
    """The place of this rank among those of its node, from 0."""
    return ranks.nodes[: ranks.rank].count(ranks.nodes[ranks.rank])


def receivers(nodes: Sequence[str]) -> tuple[int, ...]:
    """The first rank of each node, in order."""
    return tuple(rank for rank, node in enumerate(nodes) if node not in nodes[:rank])


_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def launched_size(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """How many ranks the launcher says it started, and the variable that says so.

    Known are Open MPI's mpirun, Hydra (MPICH, Intel MPI) and Slurm's srun; None for others and
    without a launcher.
    """
    for name in _SIZES:
        if environ.get(name, "").isdigit():
            return int(environ[name]), name
    return None


def connect(environ: Mapping[str, str]) -> Ranks:
    """Join the ranks that were started together.

    Raises
    ------
    Outside
        If the launcher started more ranks than this MPI sees: each would train alone and say
        nothing. Or if there is no MPI to join them with.
    """
    launched = launched_size(environ)
    wanted = launched[0] if launched else 1
    try:
        ranks: Ranks = MpiRanks() if importlib.util.find_spec("mpi4py") else OneRank()
    except (ImportError, RuntimeError) as error:
        if wanted > 1:
            raise Outside(
                f"{wanted} ranks were started, and no MPI library can be loaded: {error}",
                where=f"node {node_name(environ)}",
                remedy="hpcenv validate-mpi IMAGE shows what the image holds",
            ) from None
        ranks = OneRank()
    if launched and ranks.size != wanted:
        raise Outside(
            f"the launcher started {wanted} ranks ({launched[1]}), the MPI in here sees "
            f"{ranks.size}: launcher and MPI library do not belong together",
            where=f"node {node_name(environ)}",
            remedy="hpcenv validate-mpi IMAGE names the launch that works",
        )
    return ranks


@dataclass(frozen=True)
class _Told:
    status: int
    text: str


class Agreed(Failure):
    """A failure that every rank knows of: rank 0 tells it, and all end in order."""

    def __init__(self, says: str, status: int) -> None:
        super().__init__(says)
        self.status = status


def together(ranks: Ranks, work: Callable[[], T]) -> T:
    """Do something on every rank, and fail on all where it failed on one.

    For steps that hold no communication of their own.

    Raises
    ------
    Agreed
        Naming the ranks and nodes that failed, and how; on every rank.
    """
    value: Any = None
    told: _Told | None = None
    try:
        value = work()
    except Failure as failure:
        told = _Told(failure.status, str(failure))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        told = _Told(3, f"{place}{error.strerror or error}")
    failures = ranks.gather(told)
    if any(failures):
        raise _agreed(failures, ranks.nodes)
    result: T = value
    return result


def _agreed(failures: Sequence[_Told | None], nodes: Sequence[str]) -> Agreed:
    groups: dict[str, list[int]] = {}
    for rank, told in enumerate(failures):
        if told:
            groups.setdefault(told.text, []).append(rank)
    lines = []
    for text, failed in groups.items():
        # What all ranks say alike is no rank's own trouble.
        alike = len(failed) == len(nodes)
        lines.append(text if alike else f"{who(failed, nodes)}: {text}")
    return Agreed("\n".join(lines), max(told.status for told in failures if told))


def who(failed: Sequence[int], nodes: Sequence[str]) -> str:
    """Name ranks with their nodes: ``rank 3 on node17``; at most eight of them."""
    named = [f"rank {rank} on {nodes[rank]}" for rank in failed[:8]]
    more = [f"and {len(failed) - 8} more"] if len(failed) > 8 else []
    return ", ".join(named + more)
