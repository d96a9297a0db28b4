"""A way of starting an image's ranks on a site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpcenv.image.facts import Pmi


@dataclass(frozen=True)
class Launch:
    """One launch of the table.

    Attributes
    ----------
    launcher : {"mpirun", "srun"}
        What starts the ranks, on the host.
    mpi : str, optional
        Name of the site's MPI installation that an ``mpirun`` belongs to.
    pmi : Pmi, optional
        What an ``srun`` is asked for; None for ``--mpi=none`` and for ``mpirun``.
    mpi_type : str, optional
        The word for ``srun --mpi=``, such as ``pmix_v4``.
    model : {"hybrid", "bind"}
        Hybrid: the image's MPI under the host's launcher. Bind: the host's MPI bound over it.
    rootless : bool
        Whether each rank's container has a user namespace of its own.
    nodes, ranks_per_node : int
        At least 1 each.
    """

    launcher: Literal["mpirun", "srun"]
    model: Literal["hybrid", "bind"]
    rootless: bool
    nodes: int
    ranks_per_node: int
    mpi: str | None = None
    pmi: Pmi | None = None
    mpi_type: str | None = None

    @property
    def ranks(self) -> int:
        """The world's size."""
        return self.nodes * self.ranks_per_node

    def __str__(self) -> str:
        kind = f" --mpi={self.mpi_type}" if self.mpi_type else ""
        of = f" ({self.mpi})" if self.mpi else ""
        return f"{self.model}  {self.launcher}{kind}{of}"


@dataclass(frozen=True)
class Mend:
    """What avoids a finding, as data that `hpcenv run` applies.

    Attributes
    ----------
    env : mapping
        Environment for the ranks.
    launcher_args : tuple of str
        More arguments for the launcher.
    engine_args : tuple of str
        More arguments for the engine's ``exec``.
    use : Launch, optional
        Another launch to take instead.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    launcher_args: tuple[str, ...] = ()
    engine_args: tuple[str, ...] = ()
    use: Launch | None = None
