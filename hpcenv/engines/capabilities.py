"""The capabilities that root really has.

Root of a container, of a batch job or of a CI machine often lacks some: what is not in the
bounding set of this process, no program started from it can have. An engine that asks for all of
them then fails at once; one that asks for those that are there works.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

# In the order of their numbers, linux/capability.h; apptainer knows these 41.
_IN_ORDER = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
    NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO
    SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME
    SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG
    WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""
NAMES = tuple(_IN_ORDER.split())


def bounding() -> frozenset[str]:
    """Return the capabilities that root can have here, such as ``CAP_SYS_ADMIN``."""
    return parse_bounding(Path("/proc/self/status").read_text())


def parse_bounding(status: str) -> frozenset[str]:
    """Read the bounding set from the text of ``/proc/PID/status``. Pure."""
    match = re.search(r"^CapBnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    bits = int(match[1], 16) if match else 0
    return frozenset(f"CAP_{name}" for number, name in enumerate(NAMES) if bits >> number & 1)


def missing(have: frozenset[str]) -> list[str]:
    """Return the known capabilities that are not there, in the order of their numbers. Pure."""
    return [f"CAP_{name}" for name in NAMES if f"CAP_{name}" not in have]


def configure(conf: str, have: frozenset[str]) -> tuple[str, str]:
    """Make an apptainer's root ask for what is there. Pure.

    Parameters
    ----------
    conf : str
        Text of its ``apptainer.conf``.
    have : frozenset of str
        What root has.

    Returns
    -------
    conf, capabilities : str
        Texts of ``apptainer.conf`` and of ``capability.json`` beside it.
    """
    if not missing(have):
        return conf, ""
    ours = "root default capabilities = file"
    conf, count = re.subn(r"^root default capabilities *=.*$", ours, conf, flags=re.MULTILINE)
    if not count:
        conf += f"\n{ours}\n"
    names = [f"CAP_{name}" for name in NAMES if f"CAP_{name}" in have]
    return conf, json.dumps({"users": {"root": names}}) + "\n"


def not_there(conf: str, capabilities: str, have: frozenset[str]) -> list[str]:
    """Return the capabilities that root's containers will ask for and that are not there. Pure."""
    match = re.search(r"^root default capabilities *= *(\w+)", conf, re.MULTILINE)
    mode = match[1] if match else "full"
    if mode == "file":
        try:
            asked = set(json.loads(capabilities or "{}").get("users", {}).get("root", []))
        except ValueError:
            asked = set()
        return [name for name in missing(have) if name in asked]
    return missing(have) if mode == "full" else []
