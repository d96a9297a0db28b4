"""What of a tree goes into a layer: pure decisions, one path at a time.

A build leaves traces of when and where it ran: times, logs, caches, byte code bound to the time
of its source, the host's resolv.conf. None of them is content. Owners, modes, capabilities and
hard links are.
"""

from __future__ import annotations

import re
from enum import Enum


class Fate(Enum):
    """What becomes of an entry."""

    KEEP = "keep"
    EMPTY = "empty"  # the file stays, its content goes
    DROP = "drop"


_INSIDE = re.compile(
    # Folders that stay, without what is in them.
    r"(dev|proc|sys|run|tmp|mnt|media|var/tmp|var/cache/apt|var/lib/apt/lists)/.+"
)
_DROP = re.compile(
    r"""
      root/\.(cache|config|local|python_history|bash_history|wget-hsts)(/.*)?
    | var/cache/ldconfig/aux-cache | var/cache/debconf/.*-old
    | var/lib/dbus/machine-id
    | var/lib/systemd/(catalog/database|random-seed)
    | var/lib/dpkg/(status|available|diversions|statoverride)-old
    | var/lib/dpkg/lock(-frontend)? | var/lib/dpkg/triggers/Lock
    | var/lib/apt/(extended_states\.lock|daily_lock)
    | etc/(passwd|shadow|group|gshadow|subuid|subgid)- | etc/\.pwd\.lock
    | etc/apt/apt\.conf\.d/99mmdebstrap
    | \.dockerenv
    """,
    re.VERBOSE,
)
_LOG = re.compile(r"var/log/.+")
_EMPTY = re.compile(
    r"etc/(machine-id|resolv\.conf|hostname|hosts|apt/sources\.list)|var/lib/dpkg/available"
)
_BY_HASH = 1


def fate(path: str, *, folder: bool, head: bytes = b"") -> Fate:
    """Decide about one entry.

    Parameters
    ----------
    path : str
        Below the root, without a leading slash.
    folder : bool
        Whether it is a directory.
    head : bytes
        The first eight bytes of a file or more.
    """
    if _INSIDE.fullmatch(path) or _DROP.fullmatch(path):
        return Fate.DROP
    if _LOG.fullmatch(path) and not folder:
        return Fate.DROP
    if path.endswith(".pyc") and not folder and not hash_based(head):
        return Fate.DROP
    if _EMPTY.fullmatch(path) and not folder:
        return Fate.EMPTY
    return Fate.KEEP


def hash_based(head: bytes) -> bool:
    """Whether byte code is bound to its source's hash and never checked (PEP 552), not to a time.

    The second word of a ``.pyc`` holds two flags: bit 0, by hash; bit 1, to be checked.
    """
    return len(head) >= 8 and int.from_bytes(head[4:8], "little") == _BY_HASH
