"""Logins of Debian archives, as apt keeps them: ``auth.conf``, and ``auth.conf.d/*.conf``.

They are read at the moment of a request and go nowhere else: no profile, lock or message has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

_FOLDER = Path("/etc/apt")


def apt_login(url: str, folder: Path = _FOLDER) -> tuple[str, str] | None:
    """Return user and password that apt would send to a URL; None where it would send none.

    As apt has it, an entry without a protocol is for https alone.
    """
    parts = urlsplit(url)
    for file in (folder / "auth.conf", *sorted(folder.glob("auth.conf.d/*.conf"))):
        for entry in _entries(file):
            scheme, _, place = entry["machine"].rpartition("://")
            host, _, path = place.partition("/")
            if (
                parts.scheme == (scheme or "https")
                and host in (parts.hostname, parts.netloc.rpartition("@")[2])
                and parts.path.startswith(f"/{path}")
            ):
                return entry.get("login", ""), entry.get("password", "")
    return None


def _entries(file: Path) -> Iterator[dict[str, str]]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:  # none, or not ours to read: apt itself would go on without
        return
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    words = " ".join(lines).split()
    entry: dict[str, str] = {}
    for key, value in zip(words[::2], words[1::2], strict=False):
        if key == "machine":
            if "machine" in entry:
                yield entry
            entry = {}
        entry[key] = value
    if "machine" in entry:
        yield entry
