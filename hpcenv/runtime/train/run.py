"""A run, from settings to result."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcenv.base import record
from hpcenv.base.errors import BadInput, Refused
from hpcenv.runtime.console import Progress, say, show
from hpcenv.runtime.data import digits
from hpcenv.runtime.ranks import Ranks, together
from hpcenv.runtime.stage.copy import Copied, stage_for_node
from hpcenv.runtime.stage.words import words
from hpcenv.runtime.train import checkpoint, collective, describe, folder, order, report
from hpcenv.runtime.train.digest import digest, require_equal
from hpcenv.runtime.train.log import Log
from hpcenv.runtime.train.settings import Settings
from hpcenv.runtime.train.stopping import STATUS, StopWish
from hpcenv.runtime.train.threads import threads_here

Array = npt.NDArray[Any]

EXCHANGE_TOLERANCE = 1e-5
"""Of the largest mean: float32 sums in any order stay well below, a lost rank far above."""

_JUDGE_WIDTH = 250


def train(settings: Settings, where: Path, fresh: bool, ranks: Ranks) -> int:
    """Train, on all ranks; return the exit status (0 finished, 75 stopped and saved)."""
    first = ranks.rank == 0
    began = time.monotonic()
    source = Path(settings.data.folder)
    together(ranks, lambda: collective.see_fit(settings.collective, ranks))
    together(ranks, lambda: digits.see_there(source) if first else None)
    standing = ranks.broadcast(
        together(ranks, lambda: folder.prepare(where, settings, fresh) if first else None)
    )
    if standing == "finished":
        if first:
            say(f"{where} holds this run, finished; --fresh trains anew, more epochs go on")
            show(report.text(folder.read_result(where), where))
        return 0
    log = Log(where if first else None)
    log.write(
        "start",
        standing=standing,
        ranks=ranks.size,
        nodes=len(set(ranks.nodes)),
        settings=record.encode(settings),
    )
    staged = stage_for_node(source, ranks) if settings.data.stage else None
    if staged:
        log.write("staged", **record.encode(staged))
        if first:
            say(words(staged))
    data = together(ranks, lambda: digits.load(Path(staged.folder) if staged else source))

    wish = StopWish()
    wish.listen()
    run = _Run(settings, ranks, where, log, data, staged, wish, began)
    return run.to_the_end()


@dataclass
class _Sums:
    """Sums over this rank's samples since they were last told."""

    loss: float = 0.0
    hits: float = 0.0
    count: float = 0.0

    def array(self) -> npt.NDArray[np.float64]:
        return np.array([self.loss, self.hits, self.count], np.float64)


class _Run:
    def __init__(
        self,
        settings: Settings,
        ranks: Ranks,
        where: Path,
        log: Log,
        data: digits.Digits,
        staged: Copied | None,
        wish: StopWish,
        began: float,
    ) -> None:
        self.settings = settings
        self.ranks = ranks
        self.where = where
        self.log = log
        self.data = data
        self.staged = staged
        self.wish = wish
        self.began = began
        self.first = ranks.rank == 0
        self.threads = 1 if settings.deterministic else threads_here(ranks)
        _set_up_tensorflow(self.threads, settings)
        self.collective = together(ranks, lambda: collective.connect(settings.collective, ranks))
        self.learner = self._learner()
        self.seen = 0
        self.steps = 0
        self.steps_here = 0
        self.resumed_from: int | None = None
        self.trained = 0
        self.training_s = 0.0

    @property
    def global_batch(self) -> int:
        return self.settings.batch_per_rank * self.ranks.size

    def _learner(self) -> Any:
        import keras

        from hpcenv.runtime.models import MODELS
        from hpcenv.runtime.train.learner import Learner

        keras.config.set_dtype_policy(self.settings.precision)
        # Each rank begins elsewhere: only rank 0's weights, sent to all, make them one model.
        keras.utils.set_random_seed((self.settings.seed + self.ranks.rank) % 2**32)
        return Learner(MODELS[self.settings.model](), self.settings.optimizer, self.collective)

    # -- phases ----------------------------------------------------------------------------------

    def to_the_end(self) -> int:
        self._begin()
        exchange = self._check_exchange()
        total = self.settings.epochs * len(self.data.train)
        progress = Progress(self.settings.name, total, quiet=not self.first)
        epoch_sums, log_sums = _Sums(), _Sums()
        while self.seen < total:
            stop = self._step(epoch_sums, log_sums)
            progress.at(self.seen, f"{self._speed():,.0f} samples/s")
            epoch, position = divmod(self.seen, len(self.data.train))
            if self.steps % self.settings.every.log == 0:
                self._log_step(log_sums)
                log_sums = _Sums()
            if self.steps_here == 1 or self.steps % self.settings.every.digest == 0:
                self._require_equal(f"after step {self.steps}")
            if position == 0:
                progress.clear()
                self._end_epoch(epoch, epoch_sums)
                epoch_sums = _Sums()
            if stop and self.seen < total:
                progress.clear()
                return self._stopped()
            if self.steps % self.settings.every.checkpoint == 0:
                self._save()
        progress.clear()
        return self._finished(exchange)

    def _begin(self) -> None:
        """Start from rank 0's weights, or from the newest whole checkpoint."""
        before = self.ranks.gather(digest(self.learner.arrays()))
        found = None
        if self.first:
            found = checkpoint.newest(self.where / folder.CHECKPOINTS, say)
        together(self.ranks, lambda: self._take(found))
        state = self.ranks.broadcast(found.state if found else None)
        self.learner.restore(self.collective.broadcast(self.learner.arrays()))
        if state:
            self.seen, self.steps, self.resumed_from = state.seen, state.steps, state.seen
        now = self._require_equal("at the start")
        self.log.write("weights", distinct_before=len(set(before)), distinct=1, sha256=now)
        if state and self.first:
            more = f"; it had {state.ranks} rank(s)" if state.ranks != self.ranks.size else ""
            say(f"goes on after {state.seen:,} samples, {state.steps} steps{more}")

    def _take(self, found: checkpoint.Checkpoint | None) -> None:
        if found is None:
            return
        try:
            self.learner.restore(found.arrays)
        except ValueError as error:
            raise BadInput(
                f"the checkpoint does not fit: {error}", where=str(self.where), remedy="--fresh"
            ) from None

    def _check_exchange(self) -> folder.Exchange:
        """See that the collective gives the mean of the ranks' gradients, before relying on it."""
        from hpcenv.runtime.train.learner import exchange_error

        batch = order.batch(self.settings.seed, 0, len(self.data.train), self.global_batch)
        gradients, means = self.learner.exchange(self._share(batch.samples))
        sums = [self.ranks.sum(each.astype(np.float64)) for each in gradients]
        error, spread = exchange_error(gradients, means, sums, self.ranks.size)
        pairs = self.ranks.gather((error, spread))
        worst = folder.Exchange(max(e for e, _ in pairs), max(s for _, s in pairs))
        self.log.write("exchange", **record.encode(worst))

        def judge() -> None:
            if not error <= EXCHANGE_TOLERANCE:
                raise Refused(
                    f"{self.collective.name} did not give the mean of the ranks' gradients: it is "
                    f"off by {error:.2g} of the largest one (a rank alone is off by {spread:.2g})",
                    remedy="hpcenv validate-horovod IMAGE; meanwhile: --set collective=mpi4py",
                )
            if self.ranks.size > 1 and worst.spread == 0.0:
                raise Refused("all ranks computed the same gradient: they see the same samples")

        together(self.ranks, judge)
        return worst

    def _step(self, *sums: _Sums) -> bool:
        """Take one step; return whether to stop after it."""
        samples = len(self.data.train)
        batch = order.batch(self.settings.seed, self.seen, samples, self.global_batch)
        share = self._share(batch.samples)
        rate = self._rate()
        began = time.perf_counter()
        outcome = self.learner.step(share, rate, self.steps + 1, self.wish.made)
        took = time.perf_counter() - began
        if self.steps_here:  # the first one compiles
            self.training_s += took
            self.trained += len(batch.samples)
        self.seen = batch.seen
        self.steps += 1
        self.steps_here += 1
        for each in sums:
            each.loss += outcome.loss
            each.hits += outcome.hits
            each.count += float(share.real.sum())
        return bool(outcome.stop)

    def _rate(self) -> float:
        epoch = self.seen / len(self.data.train)
        return self.settings.learning_rate.at(epoch, self.settings.epochs, self.global_batch)

    def _share(self, batch: order.Integers) -> Any:
        """Return the part of a batch of training samples that is this rank's."""
        return self._part(self.data.train, batch, self.settings.batch_per_rank)

    def _part(self, samples: digits.Samples, chosen: order.Integers, width: int) -> Any:
        from hpcenv.runtime.train.learner import Share

        places, real = order.share(chosen, self.ranks.rank, self.ranks.size, width)
        return Share(
            images=samples.images[places],
            labels=samples.labels[places],
            real=real.astype(np.float32),
            scale=self.ranks.size / len(chosen),
        )

    # -- what is told, kept and checked ----------------------------------------------------------

    def _totals(self, sums: _Sums) -> tuple[float, float, int]:
        """Mean loss, accuracy and count over all ranks: sums first, then one division."""
        loss, hits, count = self.collective.allreduce_sum(sums.array())
        return loss / count, hits / count, round(count)

    def _log_step(self, sums: _Sums) -> None:
        loss, accuracy, _ = self._totals(sums)
        self.log.write(
            "step",
            step=self.steps,
            seen=self.seen,
            epoch=round(self.seen / len(self.data.train), 4),
            loss=loss,
            accuracy=accuracy,
            learning_rate=self._rate(),
            samples_per_s=round(self._speed(), 1),
        )

    def _end_epoch(self, epoch: int, sums: _Sums) -> None:
        loss, accuracy, _ = self._totals(sums)
        held_loss, held_accuracy, _ = self._held_out()
        self.log.write(
            "epoch",
            epoch=epoch,
            seen=self.seen,
            loss=loss,
            accuracy=accuracy,
            held_out_loss=held_loss,
            held_out_accuracy=held_accuracy,
        )
        if self.first:
            say(
                f"epoch {epoch}/{self.settings.epochs}  loss {loss:.4f}  accuracy {accuracy:.1%}  "
                f"held out {held_accuracy:.1%}  {self._speed():,.0f} samples/s"
            )

    def _held_out(self) -> tuple[float, float, int]:
        samples = self.data.held_out
        width = _JUDGE_WIDTH * self.ranks.size
        sums = _Sums()
        for begin in range(0, len(samples), width):
            chosen = np.arange(begin, min(begin + width, len(samples)), dtype=np.int64)
            share = self._part(samples, chosen, _JUDGE_WIDTH)
            outcome = self.learner.judge(share)
            sums.loss += outcome.loss
            sums.hits += outcome.hits
            sums.count += float(share.real.sum())
        return self._totals(sums)

    def _speed(self) -> float:
        return self.trained / self.training_s if self.training_s else 0.0

    def _require_equal(self, when: str) -> str:
        return require_equal(self.learner.arrays(), self.ranks, when)

    def _save(self) -> None:
        # Never a checkpoint of weights that only one rank holds.
        sha256 = self._require_equal(f"after step {self.steps}")
        if self.first:
            checkpoint.save(
                self.where / folder.CHECKPOINTS,
                self.seen,
                self.steps,
                self.ranks.size,
                self.learner.arrays(),
            )
        self.log.write("checkpoint", step=self.steps, seen=self.seen, sha256=sha256)

    def _stopped(self) -> int:
        self._save()
        self.log.write("stopped", step=self.steps, seen=self.seen)
        self.log.close()
        if self.first:
            say(f"asked to stop: saved after step {self.steps}; the same command goes on")
        self.ranks.barrier()
        return STATUS

    def _finished(self, exchange: folder.Exchange) -> int:
        loss, accuracy, count = self._held_out()
        self._save()
        result = folder.Result(
            schema=1,
            name=self.settings.name,
            model=self.settings.model,
            collective=self.settings.collective,
            precision=self.settings.precision,
            ranks=self.ranks.size,
            nodes=len(set(self.ranks.nodes)),
            threads_per_rank=self.threads,
            epochs=self.settings.epochs,
            steps=self.steps,
            seen=self.seen,
            correct=round(accuracy * count),
            held_out=count,
            accuracy=accuracy,
            loss=loss,
            samples_per_s=round(self._speed(), 1),
            seconds=round(time.monotonic() - self.began, 2),
            weights_sha256=digest(self.learner.arrays()),
            exchange=exchange,
            bytes_staged=self.staged.bytes if self.staged else 0,
            bytes_read=self.staged.bytes_read if self.staged else 0,
            resumed_from=self.resumed_from,
            versions=describe.versions(),
        )
        self.log.write("finished", **record.encode(result))
        self.log.close()
        if self.first:
            folder.write_result(self.where, result)
            show(report.text(result, self.where))
        self.ranks.barrier()
        return 0


def _set_up_tensorflow(threads: int, settings: Settings) -> None:
    """Set threads and devices; before anything else touches TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1 if settings.deterministic else 2)
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()


def default_folder(settings: Settings) -> Path:
    """Where the results of a run go when nobody says otherwise."""
    return Path("runs") / settings.name
