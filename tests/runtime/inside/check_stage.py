"""Stage to several nodes, which are one: ranks take turns in being of each.

Usage: check_stage.py SRC DST NODES CHUNK; node k gets its copy in DSTk.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mpi4py import MPI

nodes = int(sys.argv[3])
os.environ["HPCENV_NODE"] = f"node{MPI.COMM_WORLD.Get_rank() % nodes}"

from hpcenv.base import record  # noqa: E402
from hpcenv.runtime.console import run_ranks, show  # noqa: E402
from hpcenv.runtime.ranks import Ranks  # noqa: E402
from hpcenv.runtime.stage.copy import copy  # noqa: E402


def body(ranks: Ranks) -> int:
    target = Path(f"{sys.argv[2]}{ranks.rank % nodes}")
    copied = copy(Path(sys.argv[1]), target, ranks, chunk=int(sys.argv[4]))
    if ranks.rank == 0:
        show(record.dump_json(copied))
    return 0


sys.exit(run_ranks("check", body))
