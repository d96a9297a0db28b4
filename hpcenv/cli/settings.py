"""Where things lie for this user: the one place that reads HPCENV_* and the configuration files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hpcenv.base.record import load_toml

_SYSTEM = Path("/etc/hpcenv/config.toml")


@dataclass(frozen=True)
class _File:
    site: str | None = None
    store: str | None = None
    shared_store: str | None = None


@dataclass(frozen=True)
class Settings:
    """What every command needs to know of its surroundings.

    Attributes
    ----------
    store : Path
        The user's own: blobs, stages, images.
    shared : Path, optional
        A read-only store of the site, in which images are looked for after the user's own.
    engines : Path
        Where `hpcenv engine install` puts engines.
    site : str, optional
        The site profile to use where no ``--site`` is given: a name or a file.
    """

    store: Path
    shared: Path | None
    engines: Path
    site: str | None


def load() -> Settings:
    """Read the configuration files and the environment, the latter winning.

    Raises
    ------
    BadFile
        If a configuration file is not right.
    """
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share") / "hpcenv"
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "hpcenv/config.toml"
    files = [load_toml(_File, file) for file in (config, _SYSTEM) if file.is_file()]

    def setting(name: str) -> str | None:
        value = os.environ.get(f"HPCENV_{name.upper()}")
        return value or next((v for v in (getattr(f, name) for f in files) if v), None)

    store = setting("store")
    shared = setting("shared_store")
    return Settings(
        store=Path(store).expanduser() if store else data / "store",
        shared=Path(shared).expanduser() if shared else None,
        engines=data / "engines",
        site=setting("site"),
    )
