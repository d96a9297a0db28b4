"""An engine, and a lock whose packages are all in a store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def apptainer(hpcenv: Callable[..., object]) -> Path:
    """The apptainer that hpcenv installs for its user."""
    from hpcenv.cli import settings

    hpcenv("engine", "install")
    return settings.load().engines / "bin/apptainer"
