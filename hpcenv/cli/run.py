"""`hpcenv run`: the launch that the triple can carry, with what it needs and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hpcenv.cli import output

if TYPE_CHECKING:
    from hpcenv.compat.model import Judged


def run(
    image: Annotated[
        str, typer.Argument(metavar="IMAGE", help="name:tag of the store, a SIF, or a folder.")
    ],
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="What each rank runs, after --.")
    ],
    ranks: Annotated[int, typer.Option("-n", "--ntasks", min=1, help="Ranks.")],
    nodes: int = typer.Option(None, "-N", "--nodes", min=1, help="Nodes."),
    per_node: int = typer.Option(None, "--ntasks-per-node", min=1, help="Ranks a node."),
    site: str = typer.Option(None, "--site", help="A profile; else this machine is looked at."),
    launcher: str = typer.Option(
        None, "--launcher", help="Only launches by this: mpirun, srun, an MPI's name, pmix …"
    ),
    env: Annotated[
        list[str] | None,
        typer.Option("--env", help="NAME or NAME=VALUE for the ranks; all else starts clean."),
    ] = None,
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the line; run nothing."),
) -> None:
    """Run COMMAND on every rank inside IMAGE. Its exit status is the command's own."""
    import os
    import shutil

    from hpcenv.base.errors import Outside
    from hpcenv.cli import settings as where
    from hpcenv.cli.triple import triple
    from hpcenv.engines.select import usable_engine
    from hpcenv.launch.command import command as compose
    from hpcenv.launch.command import shell_line

    settings = where.load()
    about = triple(
        image, site, settings, ranks=ranks, nodes=nodes, per_node=per_node, launcher=launcher
    )
    best = _best(about.judged, os.environ)
    made = compose(
        about.site,
        usable_engine(settings.engines),
        about.path,
        best.launch,
        [finding.mend for finding in best.findings if finding.mend],
        command,
        ambient=os.environ,
        uid=os.getuid(),
        env=_named(env or [], os.environ),
    )
    if dry_run:
        output.show(shell_line(made, os.environ, shutil.which))
        return
    try:
        os.execvpe(made.argv[0], list(made.argv), dict(made.env))
    except OSError as error:
        raise Outside(
            f"cannot start {made.argv[0]}: {error.strerror}",
            remedy="is the profile that of this machine?  hpcenv site detect",
        ) from None


def _best(judged: Sequence[Judged], ambient: Mapping[str, str]) -> Judged:
    """The best launch that can be made from here; refused where none will work."""
    from hpcenv.base.errors import Refused
    from hpcenv.compat.model import Outlook
    from hpcenv.launch.command import lacks

    able = [item for item in judged if item.launch.model == "hybrid"]
    ready = [item for item in able if lacks(item.launch, ambient) is None]
    if not able:
        raise Refused(
            "the site offers no way of starting ranks: neither an MPI nor Slurm is known of it",
            remedy="hpcenv site detect shows what was looked for, and where",
        )
    if not ready:
        raise Refused(str(lacks(able[0].launch, ambient)))
    best = ready[0]
    reasons = [finding for finding in best.findings if finding.predicts is not None]
    if best.outlook in (Outlook.FAILS, Outlook.SINGLETONS, Outlook.MAY_HANG):
        why = "; ".join(finding.says for finding in reasons)
        raise Refused(
            f"{best.outlook}: no launch of this site makes these ranks one world\n  {why}",
            remedy="\n  ".join(dict.fromkeys(f.remedy for f in reasons if f.remedy)) or None,
        )
    if best.outlook is Outlook.UNKNOWN:
        for finding in reasons:
            output.say(f"hpcenv: {finding.rule}: {finding.says}")
    return best


def _named(words: Sequence[str], ambient: Mapping[str, str]) -> dict[str, str]:
    """NAME takes the caller's own value, NAME=VALUE gives one."""
    from hpcenv.base.errors import BadInput

    named = {}
    for word in words:
        name, given, value = word.partition("=")
        if not given and name not in ambient:
            raise BadInput(f"--env {name}: it is not set here", remedy=f"--env {name}=VALUE")
        named[name] = value if given else ambient[name]
    return named
