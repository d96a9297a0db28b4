"""What the Containerfile and the definition file share: getting, and checking, what goes in.

Both are complete in themselves: whoever builds them needs their own tool, and a mirror of Debian
and an index of Python packages, which are arguments. What is on no mirror, our own runtime and
patches, stands in the file as the text that it is: it can be read there, and where one line of it
changes, one line of the file does. Everything, from wherever, is checked against its SHA-256.
"""

from __future__ import annotations

import io
import re
import shlex
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from hpcenv.base.blobs import Digest
from hpcenv.base.errors import BadInput
from hpcenv.build import steps
from hpcenv.build.plan import Bootstrap, BuildPlan, Stage, inputs
from hpcenv.lock.model import Artefact

_PIECE = 48 << 10

Ours = Mapping[Digest, bytes]
"""The content of artefacts that no mirror has."""

OURS = ("local", "patch")
"""Kinds of artefacts that no mirror has."""

MIRRORS = "MIRRORS"
INDEX = "INDEX"

DOWNLOAD = """\
import concurrent.futures, hashlib, html, os, re, sys, time
import urllib.error, urllib.parse, urllib.request
folder, mirrors, index = sys.argv[1], sys.argv[2].split(), sys.argv[3].rstrip("/")
def read(url, tries=4):
    try:
        with urllib.request.urlopen(url, timeout=120) as answer:
            return answer.read()
    except urllib.error.HTTPError:
        raise
    except OSError:
        if tries == 1:
            raise
    time.sleep(3)
    return read(url, tries - 1)
def places(project, path):
    if project == "-":
        return [mirror.rstrip("/") + "/" + path for mirror in mirrors]
    page = index + "/" + re.sub("[-_.]+", "-", project).lower() + "/"
    links = map(html.unescape, re.findall("href=[\\"']([^\\"']+)", read(page).decode()))
    name = lambda link: urllib.parse.unquote(urllib.parse.urlsplit(link).path.split("/")[-1])
    return [urllib.parse.urljoin(page, link) for link in links if name(link) == path]
def get(line):
    digest, project, path = line.split()
    file = os.path.join(folder, path.split("/")[-1])
    right = lambda content: hashlib.sha256(content).hexdigest() == digest
    if os.path.exists(file) and right(open(file, "rb").read()):
        return
    for url in places(project, path):
        try:
            content = read(url)
        except urllib.error.HTTPError:
            continue
        if right(content):
            with open(file + ".part", "wb") as out:
                out.write(content)
            os.replace(file + ".part", file)
            return
    raise SystemExit(path + ": no mirror has it with the SHA-256 " + digest)
os.makedirs(folder, exist_ok=True)
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    for done in pool.map(get, sys.stdin.read().splitlines()):
        pass
"""
"""A Python program, of the standard library alone, that downloads what its input lists."""


def listing(artefacts: Sequence[Artefact]) -> list[str]:
    """Return a line for each artefact that is downloaded: SHA-256, project, file or path."""
    return [
        f"{artefact.sha256} {'-' if artefact.kind == 'deb' else artefact.name} {artefact.file}"
        for artefact in artefacts
        if artefact.kind not in OURS
    ]


def download(artefacts: Sequence[Artefact], folder: str, words: str) -> str:
    """Return shell lines that bring artefacts from mirrors into a folder.

    Parameters
    ----------
    folder : str
        Made here; a plain path.
    words : str
        Mirrors and index, each one shell word.
    """
    lines = listing(artefacts)
    if not lines:
        return f"mkdir -p {folder}\n"
    program = _words(map(_quoted, DOWNLOAD.strip("\n").split("\n")))
    return (
        f"mkdir -p {folder}\n"
        f"printf '%s\\n' \\\n{program} > {folder}/.download.py\n"
        f"printf '%s %s %s\\n' \\\n{_words(lines)}"
        f" | python3 {folder}/.download.py {folder} {words}\n"
    )


def embed(artefacts: Sequence[Artefact], ours: Ours, folder: str) -> list[str]:
    """Return shell lines that write what no mirror has into a folder, in pieces.

    A piece is short enough for the one argument that a builder gives to its shell: 128 KiB on
    Linux (MAX_ARG_STRLEN in execve(2)).

    Raises
    ------
    BadInput
        If a patch is not a text.
    """
    commands: list[str] = []
    for artefact in artefacts:
        if artefact.kind not in OURS:
            continue
        name = shlex.quote(steps.file_name(artefact))
        content = ours[artefact.sha256]
        commands.append(f"mkdir -p {folder}\n")
        if artefact.kind == "patch":
            commands += _write(_text(content, artefact.file), f"{folder}/{name}")
        else:
            commands += _write_wheel(content, f"{folder}/.runtime", f"{folder}/{name}")
        commands.append(
            f"echo '{artefact.sha256}  '{name} | (cd {folder} && sha256sum --check --quiet)\n"
        )
    return list(_gather(commands))


PACK = """\
import os, sys, zipfile
folder, wheel, *members = sys.argv[1:]
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
    for name in members:
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.create_system, entry.external_attr = 3, 0o100644 << 16
        with open(os.path.join(folder, name), "rb") as file:
            archive.writestr(entry, file.read())
"""
"""A Python program that makes of its members the bytes that `hpcenv.lock.runtime_wheel` makes."""


def _write_wheel(content: bytes, folder: str, wheel: str) -> Iterator[str]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: _text(archive.read(name), name) for name in archive.namelist()}
    parents = sorted({str(PurePosixPath(name).parent) for name in members})
    yield f"mkdir -p \\\n{_words(f'{folder}/{parent}' for parent in parents)}\n"
    for name, text in members.items():
        yield from _write(text, f"{folder}/{name}")
    yield (
        f"printf '%s\\n' \\\n{_words(map(_quoted, PACK.strip().splitlines()))}"
        f" | python3 - {folder} {wheel} \\\n{_words(members)}\n"
        f"rm -r {folder}\n"
    )


def _write(text: str, file: str) -> Iterator[str]:
    """Yield the commands that write a text; the first makes the file anew."""
    *lines, last = text.split("\n")
    to, rows, size = ">", list[str](), 0
    for row in map(_quoted, lines):
        if rows and size + len(row.encode()) > _PIECE:
            yield f"printf '%s\\n' \\\n{_words(rows)} {to} {file}\n"
            to, rows, size = ">>", [], 0
        rows.append(row)
        size += len(row.encode()) + 8
    yield f"printf '%s\\n' \\\n{_words(rows)} {to} {file}\n" if rows else f": > {file}\n"
    if last:
        yield f"printf '%s' {_quoted(last)} >> {file}\n"


def _gather(commands: Iterable[str]) -> Iterator[str]:
    piece = ""
    for command in commands:
        if piece and len(piece.encode()) + len(command.encode()) > _PIECE:
            yield piece
            piece = ""
        piece += command
    if piece:
        yield piece


def _text(content: bytes, name: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{name} is no UTF-8 text, so it cannot be written into a file") from None


def _quoted(line: str) -> str:
    # Always quoted, as a line that begins with # or % would not be the shell's; and no two braces
    # side by side, between which apptainer looks for an argument of the build.
    quoted = "'" + line.replace("'", "'\"'\"'") + "'"
    return re.sub(r"\{(?=\{)", "{''", quoted)


def _words(words: Iterable[str]) -> str:
    return " \\\n".join(f"    {word}" for word in words)


def bootstrap_of(stage: Stage) -> Bootstrap | None:
    """Return the bootstrap of a stage that has one."""
    return next((step for step in stage.steps if isinstance(step, Bootstrap)), None)


def exports(epoch: int) -> str:
    """Return the shell lines that give the steps their environment."""
    variables = steps.environment(epoch).items()
    return "umask 022\n" + "".join(f"export {n}={shlex.quote(v)}\n" for n, v in variables)


def script(stage: Stage) -> str:
    """Return the lines of a stage's steps that run inside."""
    return "".join(steps.shell(step) for step in stage.steps if not isinstance(step, Bootstrap))


def clean(stages: Sequence[Stage]) -> str:
    """Return shell lines that take the inputs away again, each by its own name.

    By nothing but its own name: while apptainer builds, the host's ``/tmp`` and home folder are
    seen inside, and so may be whatever else a site binds.
    """
    files = [
        str(steps.INPUTS / steps.file_name(artefact))
        for stage in stages
        if bootstrap_of(stage) is None
        for artefact in inputs(stage)
    ]
    return f"rm -f {shlex.join(files)}\n" if files else ""


def head(plan: BuildPlan, how: str) -> str:
    """Return the comment at the beginning: what this is, and how it is built."""
    title = plan.labels["org.opencontainers.image.title"]
    rows = [
        f"{title}: {plan.labels.get('org.opencontainers.image.description', '')}".rstrip(": "),
        f"Rendered by hpcenv from the lock {plan.labels['org.hpcenv.lock']}.",
        "Every file that goes in is checked against its SHA-256. It takes two arguments:",
        f"  {MIRRORS}  base URLs of the Debian archives, the security archive's too; by spaces",
        f"  {INDEX}    URL of the simple index of Python packages",
        how,
    ]
    return "".join(f"# {row}\n" for row in rows)
