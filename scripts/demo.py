"""From an installed hpcenv to a proved two-rank training.

Types nothing that you could not type: every line after a ``$`` is a command of hpcenv, or one that
hpcenv printed. It stops at the first that fails.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SITE = "site.toml"
RECIPE = "tensorflow-horovod"
RANKS = 2
RUN = "runs/digits"


def main() -> int:
    os.chdir(ROOT)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    began = time.monotonic()

    step("Where this is: the machine, as a site profile")
    show("hpcenv", "site", "detect", "-o", SITE)

    step("An image that fits it")
    image = told("hpcenv", "build", RECIPE, "--site", SITE)

    step("What each way of launching it does: predicted, then seen")
    verdict = told("hpcenv", "validate-mpi", image, "-n", str(RANKS))

    step(f"Training in it on {RANKS} ranks")
    exports(output("hpcenv", "engine", "install"))
    line = told(
        "hpcenv", "run", image, "-n", str(RANKS), "--dry-run", "--", "hpcenv-train", "run", "digits"
    )
    typed(line)
    result = told_json(
        "hpcenv", "run", image, "-n", "1", "--", "hpcenv-train", "report", RUN, "--json"
    )

    summary(image, verdict, result["result"], time.monotonic() - began)
    return 0


def summary(image: str, verdict: str, result: dict[str, Any], seconds: float) -> None:
    images = json.loads(output("hpcenv", "image", "list", "--json"))
    about = next(entry for entry in images if Path(entry["file"]).samefile(image))
    name = f"{about['name']}:{about['tag']}"
    print(
        f"""
==> Done in {seconds:.0f} s

    image       {name}, {about["size"] / 1e6:,.0f} MB
    file        {image}
    verdict     {verdict}
    accuracy    {result["accuracy"]:.1%} of {result["held_out"]:,} held-out digits
    speed       {result["samples_per_s"]:,.0f} samples/s on {result["ranks"]} ranks

What to type next:

    export PATH=$PWD/.venv/bin:$PATH
    hpcenv run {name} -n {RANKS} -- hpcenv-train run digits --fresh --set precision=mixed_bfloat16
    hpcenv render {RECIPE}.*.lock.json --format definition    # to take it away
    hpcenv recipe new mine --from {RECIPE}    # to build on it
"""
    )


def exports(engine: str) -> None:
    """Make the shell's environment such that the line to come is as short as it can be.

    Parameters
    ----------
    engine : str
        What `hpcenv engine install` printed: the line that puts the engine's folder on PATH.
    """
    print(f"    $ {engine}", flush=True)
    name, _, value = engine.removeprefix("export ").partition("=")
    os.environ[name] = os.path.expandvars(value)
    if os.getuid() == 0:
        # Open MPI starts nothing as root unless it is told so twice.
        root = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
        print(f"    $ export {'=1 '.join(root)}=1", flush=True)
        os.environ.update(dict.fromkeys(root, "1"))


def step(title: str) -> None:
    print(f"\n==> {title}", flush=True)


def show(*words: str) -> None:
    """Run a command for people to see."""
    print(f"    $ {shlex.join(words)}", flush=True)
    check(subprocess.run(words, stdin=subprocess.DEVNULL), words)


def told(*words: str) -> str:
    """Run a command for people to see; return its verdict, or else its last line."""
    print(f"    $ {shlex.join(words)}", flush=True)
    text = output(*words)
    print(text, flush=True)
    lines = text.splitlines()
    said = [line.removeprefix("verdict: ") for line in lines if line.startswith("verdict: ")]
    return [*lines, *said][-1]


def told_json(*words: str) -> dict[str, Any]:
    """Run a command for what it knows, not for people to see."""
    data: dict[str, Any] = json.loads(output(*words))
    return data


def typed(line: str) -> None:
    """Do with a line what a person does who pastes it."""
    print(f"    $ {line}", flush=True)
    check(subprocess.run(["bash", "-c", line], stdin=subprocess.DEVNULL), [line])


def output(*words: str) -> str:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    check(done, words)
    return done.stdout.strip()


def check(done: subprocess.CompletedProcess[Any], words: tuple[str, ...] | list[str]) -> None:
    if done.returncode != 0:
        print(
            f"\ndemo: this ended with status {done.returncode}: {' '.join(words)}", file=sys.stderr
        )
        sys.exit(done.returncode)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
