"""The plan as a definition file for plain apptainer, complete in itself.

A definition's stage cannot start from another one of the same file. So each that starts from
nothing bootstraps, runs what lies below it, and then its own steps: the builder, where there is
one, and the image.
"""

from __future__ import annotations

import shlex

from hpcenv.build import export, steps
from hpcenv.build.export import INDEX, MIRRORS, Ours
from hpcenv.build.plan import BuildPlan, Stage, inputs, own_files

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
    sections = [export.head(plan, _WAY)]
    for builder in builders:
        sections.append(f"Bootstrap: scratch\nStage: {builder.name}\n")
        sections.append(_setup(plan, builder, ours))
        sections.append(_post(plan, builder))
    sections.append("Bootstrap: scratch\nStage: image\n")
    sections.append(_setup(plan, final, ours))
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


def _setup(plan: BuildPlan, stage: Stage, ours: Ours) -> str:
    """The part that runs on the host: it writes below the new root file system, nowhere else."""
    below = _below(plan, stage)
    wanted = tuple({found.sha256: found for each in below for found in inputs(each)}.values())
    bootstrap = next(step for each in below if (step := export.bootstrap_of(each)))
    others = tuple(artefact for artefact in wanted if artefact not in bootstrap.debs)
    words = f"'{{{{ {MIRRORS} }}}}' '{{{{ {INDEX} }}}}'"
    make = shlex.join(steps.bootstrap(bootstrap, "$REPOSITORY", "-"))
    text = (
        "set -eu\numask 022\n"
        f'INPUTS="${{APPTAINER_ROOTFS:?}}{steps.INPUTS}"\n'
        'REPOSITORY="$INPUTS/repository"\n'
        f"export SOURCE_DATE_EPOCH={plan.epoch}\n"
        + export.download(bootstrap.debs, '"$REPOSITORY"', words)
        + export.download(others, '"$INPUTS"', words)
        + "".join(export.embed(others, ours, '"$INPUTS"'))
        + f'(\ncd "$REPOSITORY"\n{steps.INDEX})\n'
        # A package manager syncs after each file, and a disk makes it wait.
        + "( if [ -w /dev/shm ]; then TMPDIR=/dev/shm; export TMPDIR; fi\n"
        + make.replace("'deb [trusted=yes] copy://$REPOSITORY ./'", _SOURCE)
        + ' ) > "$INPUTS/base.tar"\n'
        + "tar -x -C \"$APPTAINER_ROOTFS\" --numeric-owner -p --exclude='./dev/*' "
        + '-f "$INPUTS/base.tar"\n'
        + 'rm -r "$INPUTS/base.tar" "$INPUTS/.download.py" "$REPOSITORY"\n'
    )
    return _section("setup", text)


_SOURCE = '"deb [trusted=yes] copy://$REPOSITORY ./"'


def _post(plan: BuildPlan, stage: Stage) -> str:
    theirs = own_files(plan.env, plan.unset, plan.labels)
    text = "set -eu\n" + export.exports(plan.epoch)
    for each in _below(plan, stage):
        # Apptainer writes its own files itself, from the sections below.
        kept = tuple(step for step in each.steps if step not in theirs)
        text += export.script(Stage(each.name, each.parent, kept))
    if not stage.keeps:
        text += export.clean(_below(plan, stage))
    return _section("post", text)


def _environment(plan: BuildPlan) -> str:
    unset = "".join(f"export {name}=\n" for name in plan.unset)
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
