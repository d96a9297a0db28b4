"""What this runtime is and can do, as versioned JSON for the host's side."""

from __future__ import annotations

import importlib.util
import platform
from dataclasses import dataclass
from importlib import metadata
from typing import Literal, get_args, get_type_hints

from hpcenv.runtime.train.settings import Data, Settings, bundled

_NAMED = {
    "hpcenv-runtime": ("hpcenv-runtime", "hpcenv"),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "keras": ("keras",),
    "horovod": ("horovod",),
    "mpi4py": ("mpi4py",),
    "numpy": ("numpy",),
}


@dataclass(frozen=True)
class Description:
    """What ``hpcenv-train describe`` prints.

    Attributes
    ----------
    versions : dict
        Of Python and of each package that is installed.
    mpi_library : str or None
        The first line that the MPI library says of itself; None where none can be loaded.
    collectives : tuple of str
        Those whose packages are installed.
    precisions, models, data, settings : tuple of str
        What settings can name, and the settings that come with the runtime.
    """

    schema: Literal[1]
    versions: dict[str, str]
    collectives: tuple[str, ...]
    precisions: tuple[str, ...]
    models: tuple[str, ...]
    data: tuple[str, ...]
    settings: tuple[str, ...]
    mpi_library: str | None = None


def describe() -> Description:
    """Describe this runtime; imports neither TensorFlow nor Horovod, and starts no MPI."""
    hints = get_type_hints(Settings)
    needs = {"horovod": ("horovod", "mpi4py"), "mpi4py": ("mpi4py",), "single": ()}
    return Description(
        schema=1,
        versions=versions(),
        collectives=tuple(
            name
            for name in get_args(hints["collective"])
            if all(importlib.util.find_spec(module) for module in needs[name])
        ),
        precisions=get_args(hints["precision"]),
        models=get_args(hints["model"]),
        data=get_args(get_type_hints(Data)["name"]),
        settings=tuple(sorted(bundled())),
        mpi_library=_mpi_library(),
    )


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter, where installed."""
    found = {"python": platform.python_version()}
    for name, distributions in _NAMED.items():
        for distribution in distributions:
            try:
                found[name] = metadata.version(distribution)
                break
            except metadata.PackageNotFoundError:
                continue
    return found


def _mpi_library() -> str | None:
    if importlib.util.find_spec("mpi4py") is None:
        return None
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    text: str = MPI.Get_library_version()
    return " ".join(text.rstrip("\x00").splitlines()[0].split())
