"""One step of training, written out: gradients here, their mean over ranks, the update.

This is the module to read, and to copy for another task. Keras makes the layers; the step, the
exchange and the optimizer are plain TensorFlow, with nothing hidden between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hpcenv.runtime.train.collective import Collective
from hpcenv.runtime.train.optimizers import Adam, Sgd

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Share:
    """A rank's part of a batch.

    Attributes
    ----------
    images : array of uint8
        (width, 28, 28, 1); of one width in every step, so that the step is compiled once.
    labels : array of int32
        (width,).
    real : array of float32
        1 for samples, 0 for what only fills the width.
    scale : float
        Makes the mean over ranks of ``scale · sum of losses`` the mean over the whole batch, also
        when ranks hold unequal numbers of samples: ranks / samples in the batch.
    """

    images: Array
    labels: Array
    real: Array
    scale: float


@dataclass(frozen=True)
class Outcome:
    """What a step found on this rank: sums over its samples, and whether any rank is to stop."""

    loss: float
    hits: float
    stop: bool


class Learner:
    """A model, its optimizer, and what exchanges their gradients.

    Parameters
    ----------
    model : keras.Model
        From images in 0 … 1 to float32 logits.
    optimizer : Sgd or Adam
    collective : Collective

    Attributes
    ----------
    weights : list of tf.Variable
        The model's trainable weights, float32.
    slots : list of list of tf.Variable
        What the optimizer keeps beside each.
    """

    def __init__(self, model: Any, optimizer: Sgd | Adam, collective: Collective) -> None:
        self.model = model
        self.optimizer = optimizer
        self.collective = collective
        # A Keras 3 variable holds TensorFlow's in `value`.
        self.weights = [variable.value for variable in model.trainable_variables]
        self.slots = [
            [tf.Variable(tf.zeros_like(weight)) for _ in range(optimizer.slots)]
            for weight in self.weights
        ]
        # No control flow hangs on a tensor, so AutoGraph has nothing to rewrite.
        self._step = tf.function(self._one_step, autograph=False)
        self._gradients = tf.function(self._gradients_here, autograph=False)
        self._mean = tf.function(collective.allreduce_mean, autograph=False)
        self._judge = tf.function(self._judge_here, autograph=False)

    # -- the step --------------------------------------------------------------------------------

    def _gradients_here(
        self, images: Any, labels: Any, real: Any, scale: Any
    ) -> tuple[list[Any], Any, Any]:
        with tf.GradientTape() as tape:
            loss, hits = self._judge_here(images, labels, real)
            scaled = loss * scale
        return tape.gradient(scaled, self.weights), loss, hits

    def _judge_here(self, images: Any, labels: Any, real: Any) -> tuple[Any, Any]:
        """Return the sum of losses and the number of right answers."""
        logits = self.model(tf.cast(images, tf.float32) / 255.0, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        right = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)
        return tf.reduce_sum(losses * real), tf.reduce_sum(tf.cast(right, tf.float32) * real)

    def _one_step(
        self, images: Any, labels: Any, real: Any, scale: Any, rate: Any, number: Any, stop: Any
    ) -> tuple[Any, Any, Any]:
        gradients, loss, hits = self._gradients_here(images, labels, real, scale)
        # The wish to stop rides along, so that all ranks stop after the same step.
        *means, stop = self.collective.allreduce_mean([*gradients, stop])
        for weight, slots, mean in zip(self.weights, self.slots, means, strict=True):
            new_weight, new_slots = self.optimizer.update(weight, mean, slots, rate, number)
            weight.assign(new_weight)
            for slot, new_slot in zip(slots, new_slots, strict=True):
                slot.assign(new_slot)
        return loss, hits, stop

    # -- from outside ----------------------------------------------------------------------------

    def step(self, share: Share, rate: float, number: int, stop: bool) -> Outcome:
        """Take one step, together with all ranks.

        Parameters
        ----------
        share : Share
            This rank's part of the batch.
        rate : float
            The learning rate.
        number : int
            Which step this is, from 1.
        stop : bool
            Whether this rank was asked to stop.
        """
        # As tensors: a Python number would compile the step anew for each value.
        numbers = [tf.constant(float(value), tf.float32) for value in (rate, number, stop)]
        loss, hits, stops = self._step(*_tensors(share), _scale(share), *numbers)
        return Outcome(float(loss), float(hits), float(stops) > 0)

    def judge(self, share: Share) -> Outcome:
        """Return the sums for samples without learning from them."""
        loss, hits = self._judge(*_tensors(share))
        return Outcome(float(loss), float(hits), False)

    def exchange(self, share: Share) -> tuple[list[Array], list[Array]]:
        """Return this rank's gradients, and the means over ranks as the step would get them."""
        gradients, _, _ = self._gradients(*_tensors(share), _scale(share))
        means = self._mean(gradients)
        return [each.numpy() for each in gradients], [each.numpy() for each in means]

    def arrays(self) -> list[Array]:
        """Return the weights, then the slots."""
        return [variable.numpy() for variable in self._variables()]

    def restore(self, arrays: Sequence[Array]) -> None:
        """Take over what `arrays` returned.

        Raises
        ------
        ValueError
            If number, shapes or types are not this model's.
        """
        variables = self._variables()
        theirs = [(array.shape, array.dtype.name) for array in arrays]
        ours = [(tuple(variable.shape), variable.dtype.name) for variable in variables]
        if theirs != ours:
            raise ValueError(f"arrays {theirs} do not fit the model's {ours}")
        for variable, array in zip(variables, arrays, strict=True):
            variable.assign(array)

    def _variables(self) -> list[Any]:
        return [*self.weights, *(slot for slots in self.slots for slot in slots)]


def _tensors(share: Share) -> tuple[Any, Any, Any]:
    return (
        tf.constant(share.images, tf.uint8),
        tf.constant(share.labels, tf.int32),
        tf.constant(share.real, tf.float32),
    )


def _scale(share: Share) -> Any:
    return tf.constant(share.scale, tf.float32)


def exchange_error(
    gradients: Sequence[Array], means: Sequence[Array], sums: Sequence[Array], size: int
) -> tuple[float, float]:
    """Compare exchanged means with those computed apart.

    Parameters
    ----------
    gradients, means : sequence of array
        This rank's gradients, and the means that the collective gave.
    sums : sequence of array
        The gradients' sums over ranks in float64, by another way.
    size : int
        How many ranks.

    Returns
    -------
    error, spread : float
        The largest difference between a mean and ``sum / size``, and between this rank's gradient
        and ``sum / size``, both over the largest absolute mean.
    """
    expected = np.concatenate([np.ravel(each) / size for each in sums])
    seen = np.concatenate([np.ravel(each).astype(np.float64) for each in means])
    own = np.concatenate([np.ravel(each).astype(np.float64) for each in gradients])
    largest = max(float(np.abs(expected).max()), float(np.finfo(np.float32).tiny))
    return (
        float(np.abs(seen - expected).max()) / largest,
        float(np.abs(own - expected).max()) / largest,
    )
