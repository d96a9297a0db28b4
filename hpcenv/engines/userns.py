"""User namespaces: how an ordinary user owns a root file system with many owners in it.

Root needs nothing of this. An ordinary user becomes root of a namespace in which the ids of
``/etc/subuid`` and ``/etc/subgid`` are the other users; files that such users own inside belong
outside to numbers that only the same mapping can change or remove.
"""

from __future__ import annotations

import getpass
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from hpcenv.base.process import run
from hpcenv.base.publish import remove
from hpcenv.engines.engine import Complaint

ENOUGH = 65536
"""Ids that a root file system of a distribution may use: 16 bits of them."""

_MAPPED = ("unshare", "--map-root-user", "--map-auto", "--")
_TRY_S = 10.0
_REMOVE_S = 600.0
_SYSCTLS = (
    "kernel/unprivileged_userns_clone",
    "kernel/apparmor_restrict_unprivileged_userns",
    "user/max_user_namespaces",
)


def as_root_of_tree() -> tuple[str, ...]:
    """Return the words to put before a program that reads or writes trees.

    None for root. For an ordinary user, those that make it root of a namespace in which its
    sub-ids are the other users: the same numbers that the engine uses.
    """
    return () if os.geteuid() == 0 else _MAPPED


def remove_tree(tree: Path) -> None:
    """Remove a tree with whatever owners it has, if it is there.

    Raises
    ------
    OSError
        If something in it cannot be removed.
    """
    if os.geteuid() != 0 and tree.exists():
        # Without sub-ids this fails, but then nothing in the tree belongs to them either.
        run([*_MAPPED, "rm", "-rf", "--", tree], deadline=_REMOVE_S)
    remove(tree)


def no_namespaces() -> Complaint | None:
    """Say why this user cannot make a user namespace; None where it can."""
    if run(["unshare", "--user", "--map-root-user", "true"], deadline=_TRY_S).ok:
        return None
    found = {name: _sysctl(name) for name in _SYSCTLS}
    return explain_no_namespaces({name: value for name, value in found.items() if value})


def explain_no_namespaces(sysctls: Mapping[str, str]) -> Complaint:
    """Name the setting that forbids user namespaces, from the settings that there are. Pure."""
    says = "this kernel lets an ordinary user make no user namespace"
    if sysctls.get("kernel/unprivileged_userns_clone") == "0":
        return Complaint(
            f"{says}: kernel.unprivileged_userns_clone is 0",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1",
        )
    if sysctls.get("user/max_user_namespaces") == "0":
        return Complaint(
            f"{says}: user.max_user_namespaces is 0",
            "sudo sysctl -w user.max_user_namespaces=15000",
        )
    if sysctls.get("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return Complaint(
            f"{says}: AppArmor restricts them (kernel.apparmor_restrict_unprivileged_userns is 1)",
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile "
            "with `userns,` for the engine",
        )
    return Complaint(
        f"{says}: no setting says why; within a container, its seccomp profile may",
        "ask the site for unprivileged user namespaces, or run as root",
    )


def no_sub_ids() -> Complaint | None:
    """Say why this user cannot be root of a tree with many owners; None where it can."""
    if os.geteuid() == 0 or run([*_MAPPED, "true"], deadline=_TRY_S).ok:
        return None
    if complaint := no_namespaces():
        return complaint
    return explain_no_sub_ids(
        getpass.getuser(),
        os.getuid(),
        {file: _text(Path(file)) for file in ("/etc/subuid", "/etc/subgid")},
        have_newuidmap=shutil.which("newuidmap") is not None,
    )


def explain_no_sub_ids(
    user: str, uid: int, files: Mapping[str, str], *, have_newuidmap: bool
) -> Complaint:
    """Name what is missing for sub-ids, from the text of the files that give them. Pure."""
    for file, text in files.items():
        count = first_block(text, user, uid)
        if count < ENOUGH:
            has = f"only {count} sub-ids" if count else "no sub-ids"
            return Complaint(
                f"{user} has {has} in {file}, where the files of a root file system need {ENOUGH}; "
                "the engine would fall back on the fakeroot command, which forgets the owners and "
                "needs an image whose C library is at least this host's",
                f"sudo usermod --add-subuids 200000-{199999 + ENOUGH} "
                f"--add-subgids 200000-{199999 + ENOUGH} {user}",
            )
    if not have_newuidmap:
        return Complaint(
            "newuidmap is not installed, which gives a user its sub-ids",
            "sudo apt-get install -y uidmap",
        )
    return Complaint(
        "unshare --map-root-user --map-auto failed, though the sub-ids are there",
        "it needs util-linux 2.38 or newer, and newuidmap and newgidmap setuid root",
    )


def first_block(text: str, user: str, uid: int) -> int:
    """Return how many ids the first line for a user in a sub-id file gives; 0 for none. Pure."""
    for line in text.splitlines():
        owner, _, rest = line.partition(":")
        count = rest.partition(":")[2].strip()
        if owner in (user, str(uid)) and count.isdigit():
            return int(count)
    return 0


def _sysctl(name: str) -> str:
    return _text(Path("/proc/sys") / name).strip()


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
