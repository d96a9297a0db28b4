"""Starting ranks where the runtime is."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent / "inside"


class Inside:
    """Starts ranks in `folder`, which they see as it is."""

    def __init__(self, prefix: list[str], env: dict[str, str], own: bool, folder: Path) -> None:
        self._prefix = prefix
        self._env = env
        self._own = own
        self.folder = folder

    def argv(self, ranks: int, *words: str | Path) -> list[str]:
        """The words that start the ranks."""
        plain = [str(word) for word in words]
        if self._own:
            modules = {
                "hpcenv-train": ["-m", "hpcenv.runtime.train.cli"],
                "hpcenv-stage": ["-m", "hpcenv.runtime.stage.cli"],
                "python3": [],
            }
            python = os.environ["HPCENV_TEST_PYTHON"]
            return ["mpirun", "-n", str(ranks), python, *modules[plain[0]], *plain[1:]]
        return [*self._prefix, "-n", str(ranks), "--", *plain]

    def start(self, ranks: int, *words: str | Path) -> subprocess.Popen[str]:
        """Start and return at once; stdout and stderr come as one."""
        return subprocess.Popen(
            self.argv(ranks, *words),
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(
        self, ranks: int, *words: str | Path, status: int = 0, seconds: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end; asserts the exit status."""
        done = subprocess.run(
            self.argv(ranks, *words),
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == status, f"{done.args}\n{done.stdout}\n{done.stderr}"
        return done

    def script(self, ranks: int, name: str, *words: str | Path, status: int = 0) -> str:
        """Run a script of tests/runtime/inside on each rank; returns what they printed."""
        file = self.folder / name
        shutil.copyfile(SCRIPTS / name, file)
        done = self.run(ranks, "python3", file, *words, status=status)
        return done.stdout + done.stderr
