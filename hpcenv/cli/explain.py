"""`hpcenv explain RULE`: why a rule exists, where its numbers come from, what to do."""

from __future__ import annotations

import typer

from hpcenv.cli import output


def explain(
    rule: str = typer.Argument("", help="A rule's id, such as MPI001; none lists them all."),
) -> None:
    """Print a rule's page: the reason, the numbers with their sources, the remedy."""
    from hpcenv.compat.pages import index, page

    output.show(page(rule) if rule else index())
