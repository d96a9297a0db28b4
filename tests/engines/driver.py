"""Run one script by `Apptainer.run`: asked on stdin, told on stdout, both in JSON."""

import json
import signal
import sys
import time
from pathlib import Path, PurePosixPath

from hpcenv.base.errors import Failure
from hpcenv.engines.apptainer import Apptainer
from hpcenv.engines.engine import Bind


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    signal.signal(signal.SIGTERM, _stop)
    asked = json.load(sys.stdin)
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        print(line, file=sys.stderr, flush=True)

    binds = [Bind(Path(s), PurePosixPath(t), bool(w)) for s, t, w in asked.get("binds", [])]
    error, began = None, time.monotonic()
    try:
        Apptainer(Path(asked["program"])).run(
            Path(asked["tree"]),
            asked["script"],
            binds=binds,
            env=asked.get("env", {}),
            deadline=asked.get("deadline", 60),
            log=log,
        )
    except Failure as failure:
        error = f"{failure.status} {failure}"
    print(json.dumps({"lines": lines, "error": error, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main()
