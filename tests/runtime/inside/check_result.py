"""The result of a run against its checkpoint, judged by one process with Keras's own functions.

Usage: check_result.py FOLDER DATA
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import keras
import numpy as np

from hpcenv.runtime.data import digits
from hpcenv.runtime.models import MODELS
from hpcenv.runtime.train import checkpoint


def main() -> None:
    folder = Path(sys.argv[1])
    result = json.loads((folder / "result.json").read_text())
    newest = checkpoint.newest(folder / "checkpoints", sys.exit)
    assert newest is not None and newest.state.seen == result["seen"]
    keras.config.set_dtype_policy(result["precision"])
    model = MODELS[result["model"]]()
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    held_out = digits.load(Path(sys.argv[2])).held_out
    model.set_weights(list(newest.arrays[: len(model.trainable_variables)]))
    logits = model.predict(held_out.images / np.float32(255), batch_size=100, verbose=0)
    assert logits.dtype == np.float32
    correct = int((logits.argmax(1) == held_out.labels).sum())
    loss = float(
        np.mean(
            keras.ops.convert_to_numpy(
                keras.losses.sparse_categorical_crossentropy(
                    held_out.labels, logits, from_logits=True
                )
            )
        )
    )
    assert len(held_out) == result["held_out"] == 1000
    slack = 0 if result["precision"] == "float32" else 2  # batches of another width round anew
    assert abs(correct - result["correct"]) <= slack, (correct, result["correct"])
    assert abs(loss - result["loss"]) < (1e-5 if slack == 0 else 1e-2), (loss, result["loss"])
    print("right", correct)


main()
