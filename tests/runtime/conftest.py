"""Ranks inside the default image; or on a Python of one's own, while working on the runtime.

With HPCENV_TEST_PYTHON=/path/to/python3, a Python that has TensorFlow, Horovod and mpi4py, the
ranks are started there, from this checkout, and no image is needed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.runtime.ranks_inside import Inside

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def inside(request: pytest.FixtureRequest, tmp_path: Path) -> Inside:
    """Ranks inside the default image, started as `hpcenv run` starts them."""
    own = os.environ.get("HPCENV_TEST_PYTHON")
    if own:
        env = dict(os.environ) | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        env |= {"OMPI_MCA_rmaps_base_oversubscribe": "1"}
        return Inside([], env, True, tmp_path)
    image = request.getfixturevalue("default_image")
    site = request.getfixturevalue("host_site")
    program = str(Path(sys.executable).with_name("hpcenv"))
    # Node-local folders of the test's own: what one test staged, another must not find.
    env = dict(os.environ) | {"TMPDIR": str(tmp_path)}
    return Inside([program, "run", str(image), "--site", str(site)], env, False, tmp_path)
