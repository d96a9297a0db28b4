"""The command line: parse, call, print. Each group is a module; imports stay inside functions."""

from __future__ import annotations

import typer

import hpcenv
from hpcenv.cli import build, engine, explain, lock, output, recipe, run, site, validate

app = typer.Typer(
    name="hpcenv",
    help="Base images pinned to a site's MPI, a verdict before the job, and the proof.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


app.add_typer(engine.app, name="engine")
app.add_typer(site.app, name="site")
app.add_typer(recipe.app, name="recipe")
app.command("lock")(lock.lock)
app.command("build")(build.build)
app.command("render")(build.render)
app.add_typer(build.app, name="image")
app.command("fetch")(lock.fetch)
app.command("explain")(explain.explain)
app.command("validate-mpi")(validate.validate_mpi)
app.command("run")(run.run)


def _version(wanted: bool) -> None:
    if wanted:
        output.show(f"hpcenv {hpcenv.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    with output.plain_errors():
        app()
