"""One rank's weights are changed behind the trainer's back: the run must end and say whose.

Usage: check_drift.py FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hpcenv.runtime.console import run_ranks
from hpcenv.runtime.ranks import Ranks
from hpcenv.runtime.train import learner
from hpcenv.runtime.train.run import train
from hpcenv.runtime.train.settings import load_settings

changes = ["model=mlp", "every.digest=5", *sys.argv[2:]]
rank = {"it": 0}


class Drifting(learner.Learner):
    def step(self, share, rate, number, stop):
        outcome = super().step(share, rate, number, stop)
        if number == 7 and rank["it"] == 1:
            self.weights[0].assign_add(1e-6 * self.weights[0])
        return outcome


def body(ranks: Ranks) -> int:
    rank["it"] = ranks.rank
    learner.Learner = Drifting
    return train(load_settings("digits", changes), Path(sys.argv[1]), False, ranks)


os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
sys.exit(run_ranks("check", body))
