"""Write the files of the default image's release: its lock, and what is rendered from it.

    scripts/images.py          after a change of the runtime, the recipe, or what renders

The lock that is there is kept but for our own runtime and patches, without the network; for newer
packages give it anew beforehand, by `hpcenv lock tensorflow-horovod --site debian-12-openmpi
--upgrade -o LOCK`. `make images` runs this; a test holds the files together.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from hpcenv.build.build import ours
from hpcenv.build.containerfile import containerfile
from hpcenv.build.definition import definition
from hpcenv.build.plan import manifest_of, plan
from hpcenv.cli import settings
from hpcenv.image.store import Store
from hpcenv.lock.files import load_lock
from hpcenv.lock.model import Lock

ROOT = Path(__file__).resolve().parent.parent
RECIPE = "tensorflow-horovod"
SITE = "debian-12-openmpi"
FOLDER = Path("images") / RECIPE / "2026.12"
LOCK = FOLDER / f"{RECIPE}.{SITE}.lock.json"


def rendered(lock: Lock, store: Store) -> Mapping[Path, str]:
    """Return the files that follow from the lock and the runtime that it names."""
    made = plan(lock)
    own = ours(lock, store)
    return {
        Path("Containerfile"): containerfile(made, own),
        FOLDER / f"{RECIPE}.def": definition(made, own),
        FOLDER / "manifest.json": manifest_of(made),
    }


def main() -> int:
    os.chdir(ROOT)
    FOLDER.mkdir(parents=True, exist_ok=True)
    hpcenv = Path(sys.executable).with_name("hpcenv")
    done = subprocess.run(
        [hpcenv, "lock", RECIPE, "--site", SITE, "-o", LOCK], stdout=subprocess.DEVNULL
    )
    if done.returncode:
        return done.returncode
    here = settings.load()
    for file, text in rendered(load_lock(LOCK), Store(here.store, here.shared)).items():
        file.write_text(text, encoding="utf-8")
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
