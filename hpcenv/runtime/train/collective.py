"""What exchanges the gradients: Horovod, mpi4py, or nothing for a single rank."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hpcenv.base.errors import BadInput, Outside
from hpcenv.runtime.ranks import MpiRanks, Ranks, local_rank

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]


class Collective(Protocol):
    """The operations that training needs of a communication library.

    Attributes
    ----------
    name : str
        As the settings call it.
    rank, size, local_rank : int
        This rank, how many there are, and its place on its node.
    """

    name: str
    rank: int
    size: int
    local_rank: int

    def allreduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the means over ranks of float32 tensors; called inside a tf.function."""

    def allreduce_sum(self, values: Doubles) -> Doubles:
        """Return sums over ranks, in float64: of losses, hits, counts."""

    def broadcast(self, arrays: Sequence[Array]) -> list[Array]:
        """Return rank 0's arrays."""

    def barrier(self) -> None:
        """Wait until every rank is here."""


class Single:
    """One rank alone."""

    name = "single"
    rank = 0
    size = 1
    local_rank = 0

    def allreduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        return list(tensors)

    def allreduce_sum(self, values: Doubles) -> Doubles:
        return values

    def broadcast(self, arrays: Sequence[Array]) -> list[Array]:
        return list(arrays)

    def barrier(self) -> None:
        pass


class Mpi4py:
    """MPI_Allreduce of all tensors as one buffer; works wherever mpi4py does."""

    name = "mpi4py"

    def __init__(self, ranks: MpiRanks) -> None:
        # Of its own: the control plane's messages and the tensors' never meet.
        self._world = ranks.world.Dup()
        self._mpi = ranks.mpi
        self.rank = ranks.rank
        self.size = ranks.size
        self.local_rank = local_rank(ranks)

    def allreduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        import tensorflow as tf

        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        total = tf.numpy_function(self._sum, [flat], tf.float32)
        total.set_shape(flat.shape)
        parts = tf.split(total / self.size, [tensor.shape.num_elements() for tensor in tensors])
        return [tf.reshape(part, t.shape) for part, t in zip(parts, tensors, strict=True)]

    def _sum(self, values: Array) -> Array:
        total = np.empty_like(values)
        self._world.Allreduce(values, total, op=self._mpi.SUM)
        return total

    def allreduce_sum(self, values: Doubles) -> Doubles:
        return self._sum(np.ascontiguousarray(values, np.float64))

    def broadcast(self, arrays: Sequence[Array]) -> list[Array]:
        result = []
        for array in arrays:
            buffer = np.array(array, order="C")
            self._world.Bcast(buffer, root=0)
            result.append(buffer)
        return result

    def barrier(self) -> None:
        self._world.Barrier()


class Horovod:
    """Horovod's raw operations; its Keras layer is not used."""

    name = "horovod"

    def __init__(self, ranks: Ranks) -> None:
        import horovod.tensorflow as hvd

        hvd.init()
        self._hvd = hvd
        self.rank = int(hvd.rank())
        self.size = int(hvd.size())
        self.local_rank = local_rank(ranks)
        if (self.rank, self.size) != (ranks.rank, ranks.size):
            raise Outside(
                f"Horovod sees rank {self.rank} of {self.size}, mpi4py rank {ranks.rank} of "
                f"{ranks.size}: they do not use the same MPI",
                where=f"node {ranks.nodes[ranks.rank]}",
                remedy="hpcenv validate-horovod IMAGE; meanwhile: --set collective=mpi4py",
            )

    def allreduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        reduced: list[Any] = self._hvd.grouped_allreduce(list(tensors), op=self._hvd.Average)
        return reduced

    def allreduce_sum(self, values: Doubles) -> Doubles:
        total: Doubles = self._hvd.allreduce(values, op=self._hvd.Sum).numpy()
        return total

    def broadcast(self, arrays: Sequence[Array]) -> list[Array]:
        return [self._hvd.broadcast(array, root_rank=0).numpy() for array in arrays]

    def barrier(self) -> None:
        self._hvd.barrier()


def see_fit(name: str, ranks: Ranks) -> None:
    """See, before anything heavy is imported, that a collective can serve these ranks.

    Raises
    ------
    BadInput
        If it is for one rank and there are more.
    Outside
        If it is not installed.
    """
    if name == "single" and ranks.size > 1:
        raise BadInput(
            f"collective 'single' is for one rank, and {ranks.size} were started: "
            "each would train alone",
            remedy="--set collective=horovod, or start one rank",
        )
    if name != "single" and not isinstance(ranks, MpiRanks):
        raise Outside(
            "mpi4py is not installed, or finds no MPI library",
            remedy="--set collective=single trains on one rank",
        )
    if name == "horovod" and importlib.util.find_spec("horovod") is None:
        raise Outside(
            "Horovod is not installed here",
            remedy="--set collective=mpi4py exchanges gradients without it",
        )


def connect(name: str, ranks: Ranks) -> Collective:
    """Return the collective of that name, ready; raises like `see_fit`.

    Raises
    ------
    Outside
        Also if it sees other ranks than were started.
    """
    see_fit(name, ranks)
    if isinstance(ranks, MpiRanks) and name != "single":
        return Mpi4py(ranks) if name == "mpi4py" else Horovod(ranks)
    return Single()
