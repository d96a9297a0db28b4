"""Site profiles by name: this user's, this machine's, and those that hpcenv brings."""

from __future__ import annotations

import os
from pathlib import Path

import hpcenv


def folders() -> tuple[Path, ...]:
    """Return where profiles lie; a name in an earlier folder hides the same name in a later one."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return config / "hpcenv/sites", Path("/etc/hpcenv/sites"), bundled()


def bundled() -> Path:
    """Return the folder of the profiles that hpcenv brings: the wheel's, or the checkout's."""
    package = Path(hpcenv.__file__).parent
    installed = package / "recipe/bundled/sites"
    return installed if installed.is_dir() else package.parent / "recipes/sites"


def known_sites() -> dict[str, Path]:
    """Return every profile's name and file, in the order of names."""
    found: dict[str, Path] = {}
    for folder in reversed(folders()):
        if folder.is_dir():
            found.update({file.stem: file for file in folder.glob("*.toml")})
    return dict(sorted(found.items()))
