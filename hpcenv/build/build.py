"""From a lock to an image in the store: each stage once, the network cut, nothing half-made."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from hpcenv.base.blobs import Digest, digest_of_file
from hpcenv.base.errors import Failure, Outside, Refused
from hpcenv.base.process import run
from hpcenv.base.publish import publish, sweep
from hpcenv.base.record import dump_json
from hpcenv.build import layers, steps
from hpcenv.build.definition import definition
from hpcenv.build.export import OURS
from hpcenv.build.plan import (
    Bootstrap,
    BuildPlan,
    Stage,
    WriteFile,
    inputs,
    keys,
    manifest_of,
    needed,
    plan,
)
from hpcenv.build.scratch import place, scratch, sweep_trees
from hpcenv.engines.engine import Bind, Engine
from hpcenv.engines.userns import as_root_of_tree
from hpcenv.image import pack
from hpcenv.image.store import LOCK, MANIFEST, RECORD, SIF, Image, Record, Store
from hpcenv.lock.model import Artefact, Lock

Say = Callable[[str], None]

TREE_FACTOR = 8
"""Bytes of trees a stage needs at most, for each byte of all packages: TensorFlow's wheel unpacks
to 4.4 times its size, byte code included, and a tree stands beside what is made of it."""

STORE_FACTOR = 4
"""Bytes that layers and the image need at most, for each byte of all packages."""

_BLOBS = PurePosixPath("/media")
_DEADLINE_S = 2 * 3600.0
_BOOTSTRAP_S = 1200.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "dpkg-deb": "dpkg",
    "mksquashfs": "squashfs-tools",
    "unshare": "util-linux",
    "tar": "tar",
}


def build(
    lock: Lock, engine: Callable[[], Engine], store: Store, name: str, tag: str, say: Say
) -> Image:
    """Build what is not in the store yet, and publish the image as ``name:tag``.

    Parameters
    ----------
    engine : callable
        Gives the engine; asked only where a stage has to be run.
    say : callable
        Told of each stage, with the seconds that it took.

    Raises
    ------
    Refused
        If a package in the store is missing, or is not the one that the lock names.
    Outside
        If the engine, a tool, memory or the disk fails.
    """
    began = time.monotonic()
    whole = plan(lock)
    work = _Work(lock, whole, keys(whole), engine, store, say)
    key = work.keys[whole.final]
    if store.with_key(key) is None:
        with store.locked(
            f"pack-{key}", lambda: say("another build of this image is running; waiting")
        ):
            if store.with_key(key) is None:
                work.make()
    image = store.tag(name, tag, key)
    say(f"{image}: {image.sif}  ({time.monotonic() - began:.1f} s)")
    return image


def ours(lock: Lock, store: Store) -> dict[Digest, bytes]:
    """Return the content of what no mirror has: our runtime and patches.

    Raises
    ------
    Refused
        If the store lacks one, or has it changed.
    """
    return {
        artefact.sha256: store.blobs.verified(artefact.sha256).read_bytes()
        for artefact in lock.artefacts
        if artefact.kind in OURS
    }


@dataclass(frozen=True)
class _Work:
    lock: Lock
    plan: BuildPlan
    keys: Mapping[str, Digest]
    engine: Callable[[], Engine]
    store: Store
    say: Say

    def make(self) -> None:
        self._sweep()
        _check_tools()
        self._check_space()
        final = self.plan.stage(self.plan.final)
        wanted = needed(self.plan, self._has)
        if not all(map(self._has, wanted)):
            self._check_engine()
        for stage in self.plan.stages:
            if stage.name in wanted:
                self._ensure(stage)
        self._pack(final)

    def _sweep(self) -> None:
        for folder in (self.store.stages, self.store.packed):
            if folder.is_dir():
                sweep(folder)
        sweep_trees(self.store.scratch)

    def _check_space(self) -> None:
        size = sum(artefact.size for artefact in self.lock.artefacts)
        self.store.root.mkdir(parents=True, exist_ok=True)
        folder = self._place()
        needs = {self.store.root: STORE_FACTOR * size}
        if folder == self.store.scratch:
            needs[self.store.root] += TREE_FACTOR * size
        for path, need in needs.items():
            free = shutil.disk_usage(path).free
            if free < need:
                raise Outside(
                    f"{free / 1e9:.1f} GB are free, and a build of this lock may need "
                    f"{need / 1e9:.1f} GB",
                    where=str(path),
                    remedy="free some, or name a store elsewhere with HPCENV_STORE",
                )

    def _check_engine(self) -> None:
        # Before minutes are spent on what it is not needed for.
        folder = self._place()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        engine = self.engine()
        fatal = [complaint for complaint in engine.check_run(folder) if complaint.fatal]
        if fatal:
            says = "; ".join(complaint.says for complaint in fatal)
            raise Outside(f"{engine.name}: {says}", remedy="; ".join(c.remedy for c in fatal))

    def _place(self) -> Path:
        size = sum(artefact.size for artefact in self.lock.artefacts)
        return place(TREE_FACTOR * size, self.store.scratch)

    def _ensure(self, stage: Stage) -> None:
        """Make a stage's layer where it is missing; those that it needs are there."""
        key = self.keys[stage.name]
        number = [other.name for other in self.plan.stages].index(stage.name) + 1
        title = f"[{number}/{len(self.plan.stages) + 1}] {stage.name}"
        if self._has(stage.name):
            self.say(f"{title}: in the store")
            return
        with self.store.locked(key, lambda: self.say(f"{title}: made by another; waiting")):
            if self._has(stage.name):
                self.say(f"{title}: in the store")
                return
            began = time.monotonic()
            self.say(f"{title}: {_summary(stage)} …")
            self._make_stage(stage)
            self.say(f"{title}: {time.monotonic() - began:.1f} s")

    def _has(self, name: str) -> bool:
        return self.store.stage(self.keys[name]).is_dir()

    def _chain(self, stage: Stage) -> list[Path]:
        """The layers that make a stage's tree, the lowest first."""
        below = self._chain(self.plan.stage(stage.parent)) if stage.parent else []
        return [*below, self.store.stage(self.keys[stage.name])]

    def _make_stage(self, stage: Stage) -> None:
        blobs = self._verified(inputs(stage))
        parent = self._chain(self.plan.stage(stage.parent)) if stage.parent else []
        epoch = self.plan.epoch
        with scratch(self._place(), stage.name) as work:
            work.chmod(0o755)
            tree = work / "tree"
            tree.mkdir(mode=0o755)
            tree.chmod(0o755)
            if parent:
                _unpack(tree, lambda out: layers.write_tree(parent, out, epoch))
            for name, path in stage.takes:
                self._take(self.plan.stage(name), path, tree)
            with publish(self.store.stage(self.keys[stage.name])) as beside:
                beside.mkdir()
                with (beside / "log.txt").open("w", errors="replace") as log:
                    self._run_steps(stage, blobs, work, tree, log)
                self._write_layer(stage, parent, tree, beside)

    def _take(self, other: Stage, path: PurePosixPath, tree: Path) -> None:
        wanted = str(path.relative_to("/"))
        folders = [self.store.stage(self.keys[other.name])] if other.keeps else self._chain(other)
        _unpack(
            tree,
            lambda out: layers.write_tree(
                folders, out, self.plan.epoch, lambda found: _below(found, wanted)
            ),
        )

    def _run_steps(
        self, stage: Stage, blobs: Mapping[str, Path], work: Path, tree: Path, log: IO[str]
    ) -> None:
        def tell(line: str) -> None:
            log.write(line + "\n")

        for step in stage.steps:
            if isinstance(step, Bootstrap):
                _bootstrap(step, blobs, work, tree, self.plan.epoch, tell)
        rest = [step for step in stage.steps if not isinstance(step, Bootstrap)]
        if not rest:
            return
        mounted = work / "inputs"
        mounted.mkdir()
        for name, blob in blobs.items():
            (mounted / name).symlink_to(_BLOBS / blob.relative_to(self.store.blobs.root))
        script = "umask 022\n" + "".join(steps.shell(step) for step in rest)
        # Programs that speak to themselves, such as Gloo, look this name up.
        hosts = work / "hosts"
        hosts.write_text("127.0.0.1 localhost\n")
        binds = [Bind(mounted, steps.INPUTS), Bind(hosts, PurePosixPath("/etc/hosts"))]
        if blobs:
            binds.append(Bind(self.store.blobs.root, _BLOBS))
        try:
            self.engine().run(
                tree,
                script,
                binds=binds,
                env=steps.environment(self.plan.epoch),
                deadline=_DEADLINE_S,
                log=tell,
            )
        except Outside as failure:
            raise Outside(f"stage {stage.name}: {failure.says}", remedy=failure.remedy) from None

    def _write_layer(self, stage: Stage, parent: Sequence[Path], tree: Path, folder: Path) -> None:
        keeps = [str(path.relative_to("/")) for path in stage.keeps]

        def kept(path: str) -> bool:
            return not keeps or any(_below(path, keep) for keep in keeps)

        with _packed(tree) as whole:
            found = layers.scan(whole, kept)
        before = layers.tree_of([layers.read_index(layer) for layer in parent])
        index = layers.difference(found, {} if keeps else before)
        with _packed(tree, list(index.entries)) as changed:
            layers.write_layer(folder, index, changed, self.plan.epoch)

    def _verified(self, artefacts: Sequence[Artefact]) -> dict[str, Path]:
        """Return the blobs of artefacts by the name that steps know, each just checked."""

        def check(artefact: Artefact) -> tuple[str, Path]:
            try:
                blob = self.store.blobs.verified(artefact.sha256)
            except Failure as failure:
                says = f"{artefact.name} {artefact.version} ({steps.file_name(artefact)})"
                raise Refused(
                    f"{says}: {failure.says}", where=failure.where, remedy=failure.remedy
                ) from None
            return steps.file_name(artefact), blob

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return dict(pool.map(check, artefacts))

    def _pack(self, final: Stage) -> None:
        began = time.monotonic()
        total = len(self.plan.stages) + 1
        self.say(f"[{total}/{total}] pack: SquashFS into a SIF …")
        chain = self._chain(final)
        files = {
            str(step.path): step.content for step in final.steps if isinstance(step, WriteFile)
        }
        about = pack.About(
            arch=self.plan.arch,
            epoch=self.plan.epoch,
            definition=definition(self.plan, ours(self.lock, self.store)),
            labels=self.plan.labels,
            environment={
                path: text for path, text in files.items() if path.startswith(_ENVIRONMENT)
            },
            runscript=files["/.singularity.d/runscript"],
        )
        key = self.keys[final.name]
        with publish(self.store.packed / key) as beside:
            beside.mkdir()
            sif = beside / SIF
            feed = partial(layers.write_tree, chain, epoch=self.plan.epoch)
            tool = pack.pack(sif, feed, about, as_root_of_tree())
            sif.chmod(0o755)
            record = Record(digest_of_file(sif), key, sif.stat().st_size, (tool,))
            (beside / MANIFEST).write_text(manifest_of(self.plan))
            (beside / LOCK).write_text(dump_json(self.lock))
            (beside / RECORD).write_text(dump_json(record))
        seconds = time.monotonic() - began
        self.say(f"[{total}/{total}] pack: {record.size / 1e6:.0f} MB, {seconds:.1f} s")


_ENVIRONMENT = "/.singularity.d/env/"


def _summary(stage: Stage) -> str:
    found = inputs(stage)
    size = sum(artefact.size for artefact in found) / 1e6
    return f"{len(found)} packages, {size:.0f} MB" if found else "no packages"


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith(top + "/")


def _check_tools() -> None:
    missing = {tool: package for tool, package in _TOOLS.items() if shutil.which(tool) is None}
    if missing:
        raise Outside(
            f"a build needs {', '.join(missing)}, which this host lacks",
            remedy=f"sudo apt-get install -y {' '.join(sorted(set(missing.values())))}",
        )


def _bootstrap(
    step: Bootstrap, blobs: Mapping[str, Path], work: Path, tree: Path, epoch: int, tell: Say
) -> None:
    """Make the tree by mmdebstrap from the verified packages alone, without a network."""
    repository = work / "repository"
    repository.mkdir(mode=0o755)
    for name, blob in blobs.items():
        (repository / name).symlink_to(blob)
    env = {
        "PATH": _PATH,
        "HOME": str(work),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "TMPDIR": str(work),
        "SOURCE_DATE_EPOCH": str(epoch),
    }
    run(["sh", "-ec", steps.INDEX], deadline=_BOOTSTRAP_S, env=env, cwd=repository).must(
        "indexing the packages"
    )
    outcome = run(
        [
            *as_root_of_tree(),
            *("unshare", "--net", "--mount", "--", "sh", "-c", 'umask 022; exec "$@"', "sh"),
            *steps.bootstrap(step, str(repository), str(tree)),
        ],
        deadline=_BOOTSTRAP_S,
        env=env,
        on_line=lambda stream, line: tell(line),
    )
    outcome.must("making the root file system of Debian packages")


def _unpack(tree: Path, feed: Callable[[IO[bytes]], None]) -> None:
    argv = [
        *as_root_of_tree(),
        *("tar", "-x", "-C", str(tree), "--numeric-owner", "--same-owner", "-p"),
        *("--xattrs", "--xattrs-include=*"),
    ]
    # It ends by itself where this process is killed: its input does.
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stderr is not None
    try:
        try:
            feed(process.stdin)
            process.stdin.close()
        except BrokenPipeError:
            pass  # it says below why it went away
        told = process.stderr.read().decode(errors="replace").strip()
        status = process.wait()
    finally:
        process.kill()
        process.wait()
    if status != 0:
        raise Outside(f"tar ended with status {status}: {told[-2000:]}", where=str(tree))


@contextmanager
def _packed(tree: Path, paths: Sequence[str] | None = None) -> Iterator[IO[bytes]]:
    """Give a tar stream of a tree, or of these paths in it, in a fixed order."""
    listed = tree.parent / "paths"
    if paths is None:
        what = ["--sort=name", "."]
    else:
        listed.write_bytes(b"".join(b"./" + os.fsencode(path) + b"\0" for path in paths))
        what = ["--no-recursion", "--null", "--verbatim-files-from", f"--files-from={listed}"]
    argv = [
        *as_root_of_tree(),
        *("tar", "-c", "-C", str(tree), "--format=pax", "--numeric-owner"),
        *("--xattrs", "--xattrs-include=security.capability"),
        *("--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*"),
        *what,
    ]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    try:
        yield process.stdout
        process.stdout.read()
        told = process.stderr.read().decode(errors="replace").strip()
        if process.wait() != 0:
            raise Outside(f"tar ended with status {process.returncode}: {told[-2000:]}")
    finally:
        process.kill()
        process.wait()
