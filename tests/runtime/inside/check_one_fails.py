"""One rank fails in the middle of a run, while the others wait for it: all must end.

Usage: check_one_fails.py FOLDER HOW [KEY=VALUE …]
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from hpcenv.base.errors import Outside
from hpcenv.runtime.console import run_ranks
from hpcenv.runtime.ranks import Ranks
from hpcenv.runtime.train import learner
from hpcenv.runtime.train.run import train
from hpcenv.runtime.train.settings import load_settings

rank = {"it": 0}


class Failing(learner.Learner):
    def step(self, share, rate, number, stop):
        if number == 7 and rank["it"] == 1:
            how = sys.argv[2]
            if how == "disk":
                raise Outside("the disk is gone", where="/data/7")
            if how == "defect":
                raise KeyError("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(share, rate, number, stop)


def body(ranks: Ranks) -> int:
    rank["it"] = ranks.rank
    learner.Learner = Failing
    return train(
        load_settings("digits", ["model=mlp", *sys.argv[3:]]), Path(sys.argv[1]), False, ranks
    )


os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
sys.exit(run_ranks("check", body))
