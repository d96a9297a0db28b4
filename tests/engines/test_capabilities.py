"""What root really has, and an engine that asks for no more."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcenv.engines import capabilities

from .helpers import install

HEADER = Path("/usr/include/linux/capability.h")
CONF = "# a comment\nallow pid ns = yes\nroot default capabilities = full\nmount tmp = yes\n"


def test_names_and_numbers_are_the_kernels() -> None:
    if not HEADER.is_file():
        pytest.skip("no linux/capability.h here (linux-libc-dev)")
    found = re.findall(r"^#define CAP_(\w+)\s+(\d+)\s*$", HEADER.read_text(), re.MULTILINE)
    kernel = {int(number): name for name, number in found}
    assert {n: kernel[n] for n in range(len(capabilities.NAMES))} == dict(
        enumerate(capabilities.NAMES)
    )


def test_reads_the_set_that_the_kernel_gave() -> None:
    words = ["setpriv", "--bounding-set=-sys_time,-net_raw"] if os.geteuid() == 0 else []
    code = "from hpcenv.engines.capabilities import bounding; print(*sorted(bounding()))"
    done = subprocess.run(
        [*words, sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    told = subprocess.run(
        [*words, "setpriv", "--dump"], capture_output=True, text=True, check=True
    ).stdout
    line = next(line for line in told.splitlines() if "bounding set" in line)
    names = line.partition(":")[2].strip().split(",")
    assert done.stdout.split() == sorted(
        f"CAP_{name.strip().upper()}" for name in names if not name.strip().startswith("cap_")
    )


@given(st.sets(st.sampled_from(capabilities.NAMES)))
def test_what_is_configured_asks_for_nothing_that_is_not_there(names: set[str]) -> None:
    have = frozenset(f"CAP_{name}" for name in names)
    conf, text = capabilities.configure(CONF, have)
    assert capabilities.not_there(conf, text, have) == []
    assert capabilities.not_there(CONF, "", have) == capabilities.missing(have)
    assert len(conf.splitlines()) == len(CONF.splitlines())
    if len(names) < len(capabilities.NAMES):
        assert set(json.loads(text)["users"]["root"]) == have
    else:
        assert (conf, text) == (CONF, "")


def test_a_file_without_the_setting_gets_it() -> None:
    conf, _ = capabilities.configure("mount tmp = yes\n", frozenset({"CAP_CHOWN"}))
    assert "root default capabilities = file" in conf.splitlines()


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.skipif(os.geteuid() != 0, reason="is about root")
def test_root_that_lacks_some_runs_an_image_without_flags(
    open_folder: Path, engines: Path, tree_tar: Path
) -> None:
    less = ("setpriv", "--bounding-set=-sys_time,-sys_resource")
    tree = open_folder / "less-tree"
    tree.mkdir()
    subprocess.run(["tar", "-C", tree, "-xpf", tree_tar], check=True)

    def exec_id(folder: Path) -> subprocess.CompletedProcess[str]:
        words = [*less, folder / "bin/singularity", "exec", tree, "id", "-u"]
        return subprocess.run(words, capture_output=True, text=True)

    # The one installed with more than this root has cannot; and it is said before.
    failed = exec_id(engines)
    assert failed.returncode and "capability" in failed.stderr
    code = (
        "from pathlib import Path; from hpcenv.engines.apptainer import Apptainer\n"
        f"print(Apptainer(Path({str(engines / 'bin/apptainer')!r})).check())"
    )
    said = subprocess.run(
        [*less, sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "CAP_SYS_TIME" in said and "hpcenv engine install" in said

    # Installing again makes one that asks for what is there.
    assert install(open_folder / "less", *less).returncode == 0
    done = exec_id(open_folder / "less/hpcenv/engines")
    assert (done.returncode, done.stdout) == (0, "0\n")
