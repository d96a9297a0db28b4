"""`hpcenv validate-mpi`: what each launch of an image will do, and what it was seen to do."""

from __future__ import annotations

import typer

from hpcenv.cli import output


def validate_mpi(
    image: str = typer.Argument(..., metavar="IMAGE", help="name:tag, a SIF, or a folder."),
    site: str = typer.Option(None, "--site", help="A profile; else this machine is looked at."),
    ranks: int = typer.Option(2, "-n", "--ntasks", min=1, help="Ranks."),
    nodes: int = typer.Option(1, "-N", "--nodes", min=1, help="Nodes."),
    launcher: str = typer.Option(
        None, "--launcher", help="Only launches by this: mpirun, srun, an MPI's name, pmix …"
    ),
    static: bool = typer.Option(False, "--static", help="Predict only; run nothing."),
    queue: bool = typer.Option(
        False, "--queue", help="Let srun ask for nodes where there is no allocation."
    ),
    deadline: float = typer.Option(60.0, "--deadline", min=1, help="Seconds for each launch."),
    as_json: bool = typer.Option(False, "--json", help="Print the record as JSON."),
) -> None:
    """Predict what each launch of IMAGE does, and prove it.

    Exit status 1 where prediction and outcome differ, or nothing works.
    """
    import os
    import shlex

    import hpcenv
    from hpcenv.base.record import dump_json
    from hpcenv.cli import settings as where
    from hpcenv.cli.triple import site_of, triple
    from hpcenv.validate import report as reports
    from hpcenv.validate.seen import unseen

    settings = where.load()
    about = triple(
        image, site, settings, ranks=ranks, nodes=nodes, per_node=None, launcher=launcher
    )
    if static:
        seen = tuple(unseen("not run", "--static") for _ in about.judged)
    else:
        from hpcenv.engines.select import usable_engine
        from hpcenv.validate.prove import prove

        seen = prove(
            about.site,
            site_of("", settings) if about.named else about.site,
            usable_engine(settings.engines),
            about.path,
            about.facts,
            about.judged,
            ambient=os.environ,
            folder=settings.store / "proofs" if nodes > 1 else None,
            deadline=deadline,
            queue=queue,
            say=output.say,
        )
    made = reports.report(
        about.site,
        image,
        about.facts,
        about.judged,
        seen,
        nodes=nodes,
        ranks=ranks,
        options=shlex.join(
            word
            for option, value in (("--site", site), ("--launcher", launcher))
            if value
            for word in (option, value)
        ),
        hpcenv=hpcenv.__version__,
    )
    output.show(dump_json(made) if as_json else reports.render(made))
    raise typer.Exit(made.status)
