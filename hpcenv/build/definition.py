"""The plan as a definition file for plain apptainer, complete in itself.

A definition's stage cannot start from another one of the same file. So each that starts from
nothing bootstraps, runs what lies below it, and then its own steps: the builder, where there is
one, and the image. What was downloaded for the first serves both.
"""

from __future__ import annotations

import shlex

from hpcenv.build import export, steps
from hpcenv.build.export import INDEX, MIRRORS, Ours
from hpcenv.build.plan import BuildPlan, Stage, inputs, keys, own_files

_WAY = (
    "Built by:  apptainer build --build-arg MIRRORS='…' --build-arg INDEX='…' IMAGE.sif THIS\n"
    "# on a Linux host with mmdebstrap, dpkg and python3"
)

_SECTION = 48 << 10


def definition(plan: BuildPlan, ours: Ours) -> str:
    """Return the definition file.

    Parameters
    ----------
    ours : mapping of Digest to bytes
        The content of the runtime and the patches, which are written into it.
    """
    final = plan.stage(plan.final)
    builders = [plan.stage(name) for name, _ in final.takes]
    folder = f"/var/tmp/hpcenv-{keys(plan)[final.name][:16]}"
    sections = [export.head(plan, _WAY)]
    for builder in builders:
        sections.append(f"Bootstrap: scratch\nStage: {builder.name}\n")
        sections.append(_setup(plan, builder, ours, folder, last=False))
        sections.append(_post(plan, builder))
    sections.append("Bootstrap: scratch\nStage: image\n")
    sections.append(_setup(plan, final, ours, folder, last=True))
    if final.takes:
        rows = "".join(f"    {path} {path}\n" for _, path in final.takes)
        # One copies from one stage at a time; there is but one builder.
        sections.append(f"%files from {builders[0].name}\n{rows}")
    sections.append(_post(plan, final))
    sections.append(_environment(plan))
    sections.append(_section("runscript", plan.entry))
    labels = "".join(f"    {name} {value}\n" for name, value in plan.labels.items())
    sections.append(f"%labels\n{labels}")
    return "\n".join(sections)


def _setup(plan: BuildPlan, stage: Stage, ours: Ours, folder: str, *, last: bool) -> str:
    below = _below(plan, stage)
    wanted = {artefact.sha256: artefact for each in below for artefact in inputs(each)}
    bootstrap = next(step for each in below if (step := export.bootstrap_of(each)))
    repository = f"{folder}/repository"
    debs = "".join(
        f"ln -f {folder}/{shlex.quote(steps.file_name(deb))} {repository}/\n"
        for deb in bootstrap.debs
    )
    inside = {
        artefact.sha256: artefact
        for each in below
        for artefact in inputs(each)
        if artefact not in bootstrap.debs
    }
    copies = "".join(
        f"cp {folder}/{shlex.quote(steps.file_name(artefact))} $APPTAINER_ROOTFS/mnt/\n"
        for artefact in inside.values()
    )
    make = shlex.join(steps.bootstrap(bootstrap, repository, "-"))
    text = (
        "set -eu\numask 022\n"
        + f"export SOURCE_DATE_EPOCH={plan.epoch}\n"
        + export.download(
            tuple(wanted.values()), folder, f"'{{{{ {MIRRORS} }}}}' '{{{{ {INDEX} }}}}'"
        )
        + "".join(export.embed(tuple(wanted.values()), ours, folder))
        + f"rm -rf {repository}\nmkdir {repository}\n{debs}"
        + f"(\ncd {repository}\n{steps.INDEX})\n"
        # A package manager syncs after each file, and a disk makes it wait.
        + f"( if [ -w /dev/shm ]; then TMPDIR=/dev/shm; export TMPDIR; fi; {make} )"
        f" > {folder}/base.tar\n"
        + f"tar -x -C $APPTAINER_ROOTFS --numeric-owner -p --exclude='./dev/*' "
        f"-f {folder}/base.tar\n" + copies + (f"rm -rf {folder}\n" if last else "")
    )
    return _section("setup", text)


def _post(plan: BuildPlan, stage: Stage) -> str:
    theirs = own_files(plan.env, plan.unset, plan.labels)
    text = "set -eu\n" + export.exports(plan.epoch)
    for each in _below(plan, stage):
        # Apptainer writes its own files itself, from the sections below.
        kept = tuple(step for step in each.steps if step not in theirs)
        text += export.script(Stage(each.name, each.parent, kept))
    if not stage.keeps:
        text += export.CLEAN
    return _section("post", text)


def _environment(plan: BuildPlan) -> str:
    unset = f"unset {' '.join(plan.unset)}\n" if plan.unset else ""
    lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in plan.env.items())
    return _section("environment", unset + lines)


def _below(plan: BuildPlan, stage: Stage) -> list[Stage]:
    parents = _below(plan, plan.stage(stage.parent)) if stage.parent else []
    return [*parents, stage]


def _section(name: str, text: str) -> str:
    """Return a section, in pieces where it is long.

    Apptainer reads a section as one token of at most 64 KiB (Go's ``bufio.MaxScanTokenSize``),
    joins sections of one name, and takes a line that starts with "%" for the next one.
    """
    found, size = f"%{name}\n", 0
    for line in text.rstrip("\n").split("\n"):
        row = f"    {line}\n" if line else "\n"
        size += len(row.encode())
        if size > _SECTION:
            found, size = f"{found}%{name}\n", len(row.encode())
        found += row
    return found
