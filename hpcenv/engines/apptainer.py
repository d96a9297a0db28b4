"""Apptainer, and the Singularity that it grew from.

``spython`` is not used here: its client takes whichever program PATH has first, runs it without a
deadline, and leaves children behind; what it wraps is one argument vector, which stands below.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcenv.base.errors import BadInput, Outside
from hpcenv.base.process import run
from hpcenv.base.publish import unfinished
from hpcenv.base.version import Version
from hpcenv.engines import capabilities, userns
from hpcenv.engines.engine import Bind, Complaint

OLDEST = {"apptainer": "1.1", "singularity-ce": "3.11", "singularity": "3.8"}
"""Oldest versions whose ``exec`` is used here: ``--no-eval``, ``--no-mount bind-paths``."""

FULL_BYTES = 256 << 20
"""Free space below which a folder counts as full; what a build really needs, the builder knows."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BASIC = {"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8"}
# NUL ends a value, CR is dropped from quoted ones, and the shell parser that reads an image's
# environment takes the other two for marks of its own, at which everything after is lost.
_LOST = re.compile("[\0\r\x80\x81]")
_SCRIPT = "hpcenv-script"
_PROBE_S = 20.0
_TAIL = 20

# Nothing of the host: minimal /dev, own /tmp, no home, no environment, own process ids; the
# network is a loopback interface alone. The host's name would stay in what is built.
_ISOLATED = (
    *("--writable", "--containall", "--no-home", "--no-umask", "--no-mount", "bind-paths"),
    *("--net", "--network", "none", "--hostname", "localhost", "--pwd", "/"),
)


@dataclass(frozen=True)
class Apptainer:
    """One installed apptainer: the path of its program."""

    program: Path
    name: str = "apptainer"

    def version(self) -> tuple[str, Version] | None:
        """Return product and version, such as ``singularity-ce`` and 4.1; None if it is broken."""
        try:
            outcome = run([self.program, "--version"], deadline=_PROBE_S)
        except Outside:
            return None
        return parse_version(outcome.out) if outcome.ok else None

    def modes(self) -> frozenset[str]:
        """Return what works for this user: ``root``, ``setuid``, ``rootless``, ``fakeroot``."""
        if os.geteuid() == 0:
            return frozenset({"root"})
        able = {
            "setuid": self._setuid(),
            "rootless": userns.no_namespaces() is None,
            "fakeroot": userns.no_sub_ids() is None,
        }
        return frozenset(mode for mode, can in able.items() if can)

    def check(self) -> Sequence[Complaint]:
        """Look at what would go wrong when it runs an image."""
        found = self.version()
        if found is None:
            return [Complaint(f"{self.program} does not start", "hpcenv engine install")]
        complaints = [_too_old(*found)]
        if os.geteuid() == 0:
            complaints += [self._root_lacks(), _no_loop()]
        elif not self._setuid():
            complaints += [userns.no_namespaces(), _no_fuse(), _no_squashfuse()]
        return [complaint for complaint in complaints if complaint]

    def check_run(self, work: Path) -> Sequence[Complaint]:
        """Look at what would go wrong when it runs scripts in trees below the folder `work`."""
        # What mounts an image file is not needed for a tree.
        mounting = (_no_loop(), _no_fuse(), _no_squashfuse())
        able = [complaint for complaint in self.check() if complaint not in mounting]
        space = os.statvfs(work)
        free = space.f_bavail * space.f_frsize
        noexec = bool(space.f_flag & os.ST_NOEXEC)
        return [*able, *filter(None, [userns.no_sub_ids(), unfit(work, free, noexec)])]

    def run(
        self,
        tree: Path,
        script: str,
        *,
        binds: Sequence[Bind],
        env: Mapping[str, str],
        deadline: float,
        log: Callable[[str], None],
    ) -> None:
        """Run a shell script in a writable tree, as its root, with the network cut.

        See `Engine.run`; what becomes ``/tmp`` and ``/var/tmp`` lies beside the tree meanwhile.

        Raises
        ------
        Outside
            If the script fails or runs past its deadline, with its last lines.
        """
        tail: collections.deque[str] = collections.deque(maxlen=_TAIL)

        def line(_: object, text: str) -> None:
            tail.append(text)
            log(text)

        with _scratch(tree) as scratch, _mount_points(tree, binds):
            (scratch / "tmp" / _SCRIPT).write_text(script)
            outcome = run(
                self.run_argv(tree, scratch, binds, env, mapped=os.geteuid() != 0),
                deadline=deadline,
                env=_environment(scratch),
                on_line=line,
            )
        if not outcome.ok:
            why = "ran past its deadline" if outcome.timed_out else f"failed ({outcome.status})"
            told = "\n    ".join(tail)
            raise Outside(f"a script in {tree} {why} after {outcome.seconds:.1f} s\n    {told}")

    def run_argv(
        self,
        tree: Path,
        scratch: Path,
        binds: Sequence[Bind],
        env: Mapping[str, str],
        *,
        mapped: bool,
    ) -> list[str]:
        """Return the argument vector by which `run` runs its script. Pure.

        Parameters
        ----------
        scratch : Path
            Holds what becomes ``/tmp`` and ``/var/tmp``, the script in the former.
        mapped : bool
            Whether an ordinary user runs it, root inside by its sub-ids.
        """
        # The engine adds variables of its own, with paths of this host in them; env takes them off.
        variables = [f"{_name(name)}={value}" for name, value in {**_BASIC, **env}.items()]
        return [
            *(str(self.program), "--quiet", "exec", *_ISOLATED, "--workdir", str(scratch)),
            *(["--fakeroot"] if mapped else []),
            *bind_words(binds),
            *(str(tree), "/usr/bin/env", "-i", *variables, "/bin/sh", "-e", f"/tmp/{_SCRIPT}"),
        ]

    def exec_argv(
        self,
        image: Path,
        argv: Sequence[str],
        *,
        binds: Sequence[Bind] = (),
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
    ) -> list[str]:
        """Return the argument vector that runs `argv` in an image. Pure.

        Raises
        ------
        BadInput
            If a variable's name is none, or its value holds what the engine would lose.
        """
        return [
            *(str(self.program), "exec", *bind_words(binds), *env_words(env or {})),
            *(*args, str(image), *argv),
        ]

    def _setuid(self) -> bool:
        product, folder = self._built("LIBEXECDIR")
        with contextlib.suppress(OSError):
            return bool((folder / product / "bin/starter-suid").stat().st_mode & 0o4000)
        return False

    def _built(self, name: str) -> tuple[str, Path]:
        """Return the product that it was built as, and a folder that was built in."""
        listed = run([self.program, "buildcfg"], deadline=_PROBE_S).out
        found = dict(re.findall(r"^(\w+)=(.*)$", listed, re.MULTILINE))
        product = found.get("PACKAGE_NAME", "apptainer").partition("-")[0]
        text = found.get(name) or found.get(f"{product.upper()}_{name}") or "/nonexistent"
        return product, Path(text)

    def _root_lacks(self) -> Complaint | None:
        have = capabilities.bounding()
        if "CAP_SYS_ADMIN" not in have:
            return Complaint(
                "root lacks CAP_SYS_ADMIN here, without which no engine can mount an image",
                "start the surrounding container with --privileged, or be an ordinary user",
            )
        product, folder = self._built("CONFDIR")
        conf = folder / f"{product}.conf"
        asked = capabilities.not_there(_text(conf), _text(folder / "capability.json"), have)
        if not asked:
            return None
        return Complaint(
            f"it asks for {', '.join(asked)}, which root does not have here",
            "hpcenv engine install brings one that asks for what is there; or set `root default "
            f"capabilities = file` in {conf}",
        )


def parse_version(text: str) -> tuple[str, Version] | None:
    """Read what ``--version`` prints. Pure."""
    match = re.match(r"(apptainer|singularity-ce|singularity)(?: version)? (\d\S*)", text.strip())
    return (match[1], Version.parse(match[2])) if match else None


def env_words(env: Mapping[str, str]) -> list[str]:
    """Return the arguments that set an environment inside, whatever the values hold. Pure.

    ``--env`` reads ``NAME=value``; where that holds a second ``=`` or a quote it reads comma
    separated values with quotes doubled, and unless told not to, a shell evaluates the result.
    """
    words: list[str] = []
    evaluated = False
    for name, value in env.items():
        if lost := _LOST.search(value):
            raise BadInput(f"the value of {name} holds {lost[0]!r}, which the engine would lose")
        word = f"{_name(name)}={value}"
        if "=" in value or '"' in value:
            quoted = '"' + word.replace('"', '""') + '"'
            # Named twice: one lone field with one "=" would not be read as quoted.
            word = f"{quoted},{quoted}"
        words += ["--env", word]
        evaluated = evaluated or re.search(r"[$`\\\"]", value) is not None
    return [*(["--no-eval"] if evaluated else []), *words]


def unfit(work: Path, free: int, noexec: bool) -> Complaint | None:
    """Say why no tree can be built in a folder: `free` bytes there, mounted noexec or not. Pure."""
    move = "HPCENV_STORE=/another/folder moves it"
    if noexec:
        return Complaint(f"{work} is mounted noexec: nothing in a tree there could run", move)
    if free < FULL_BYTES:
        return Complaint(f"{work} is full: {free / 1e6:.0f} MB are free", f"free some, or {move}")
    return None


def _too_old(product: str, version: Version) -> Complaint | None:
    oldest = OLDEST[product]
    if version >= Version.parse(oldest):
        return None
    return Complaint(
        f"{product} {version} is too old; {oldest} is the oldest that will do",
        "hpcenv engine install",
    )


def _no_loop() -> Complaint | None:
    if Path("/dev/loop-control").exists() or any(Path("/dev").glob("loop[0-9]*")):
        return None
    return Complaint(
        "there is no loop device, by which root's engine mounts an image",
        "modprobe loop; a surrounding container needs --device /dev/loop-control and /dev/loop*",
    )


def _no_fuse() -> Complaint | None:
    device = Path("/dev/fuse")
    if os.access(device, os.R_OK | os.W_OK):
        return None
    if not device.exists():
        return Complaint(
            "there is no /dev/fuse, by which a user's engine mounts an image",
            "sudo modprobe fuse; a surrounding container needs --device /dev/fuse",
        )
    return Complaint("/dev/fuse is not open to this user", "sudo chmod 666 /dev/fuse")


def _no_squashfuse() -> Complaint | None:
    if any(shutil.which(name) for name in ("squashfuse_ll", "squashfuse")):
        return None
    return Complaint(
        "squashfuse is not installed, by which a user's engine mounts an image",
        "sudo apt-get install -y squashfuse",
    )


def bind_words(binds: Sequence[Bind]) -> list[str]:
    """Return the arguments that bind host paths, whatever their names hold. Pure.

    Raises
    ------
    BadInput
        If a path holds what ``--bind`` cannot express: in a target a colon or a comma, in either
        a backslash before one of them.
    """
    words = []
    for bind in binds:
        for path, odd in ((bind.source, r"\\[:,]|\\$"), (bind.target, r"[:,]|\\$")):
            if found := re.search(odd, str(path)):
                raise BadInput(f"cannot bind a path with {found[0]!r} in it: {path}")
        source = re.sub(r"([:,])", r"\\\1", str(bind.source))
        words += ["--bind", f"{source}:{bind.target}:{'rw' if bind.writable else 'ro'}"]
    return words


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise BadInput(f"{name!r} is not the name of an environment variable")
    return name


def _environment(scratch: Path) -> dict[str, str]:
    """The engine's own: what it keeps for a user goes to the scratch folder, and away with it."""
    return {
        "PATH": _PATH,
        "LC_ALL": "C.UTF-8",
        "APPTAINER_CONFIGDIR": str(scratch / "config"),
        "APPTAINER_CACHEDIR": str(scratch / "cache"),
        "APPTAINER_TMPDIR": str(scratch / "engine"),
    }


@contextlib.contextmanager
def _scratch(tree: Path) -> Iterator[Path]:
    scratch = unfinished(tree)
    scratch.mkdir()
    try:
        for name in ("tmp", "var_tmp", "engine"):
            (scratch / name).mkdir()
            (scratch / name).chmod(0o1777)
        yield scratch
    finally:
        userns.remove_tree(scratch)


@contextlib.contextmanager
def _mount_points(tree: Path, binds: Sequence[Bind]) -> Iterator[None]:
    """Make what the binds are mounted on, where the tree lacks it, and take it away again."""
    made: list[Path] = []
    try:
        for bind in binds:
            _make_mount_point(tree, bind, made)
        yield
    finally:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink()


def _make_mount_point(tree: Path, bind: Bind, made: list[Path]) -> None:
    place = tree
    parts = bind.target.parts[1:]
    for depth, part in enumerate(parts, 1):
        place = place / part
        if place.is_symlink():
            # It would be followed on the host, out of the tree.
            raise BadInput(f"cannot bind at {bind.target}: {place} is a symbolic link")
        if place.exists():
            continue
        if depth == len(parts) and not bind.source.is_dir():
            place.touch()
        else:
            place.mkdir()
        made.append(place)
