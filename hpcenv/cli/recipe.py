"""`hpcenv recipe`: what can be built, and a start for one's own."""

from __future__ import annotations

from pathlib import Path

import typer

from hpcenv.cli import output

app = typer.Typer(help="Recipes: list the bundled ones, start one of your own.")

_BASE = typer.Option("mpi-base", "--from", help="The recipe to extend: a bundled name or a file.")
_AS_JSON = typer.Option(False, "--json", help="Print JSON.")


@app.command("list")
def list_(as_json: bool = _AS_JSON) -> None:
    """List the recipes that come with hpcenv."""
    import json

    from hpcenv.recipe.load import bundled_recipes, load_recipe

    recipes = {name: load_recipe(name) for name in bundled_recipes()}
    if as_json:
        plain = {name: recipe.description for name, recipe in recipes.items()}
        output.show(json.dumps(plain, indent=2, ensure_ascii=False))
        return
    width = max(len(name) for name in recipes)
    for name, recipe in recipes.items():
        output.show(f"{name:{width}}  {recipe.description}")


@app.command()
def new(name: str, base: str = _BASE) -> None:
    """Write NAME.toml here: a recipe that extends another, to be filled in."""
    from hpcenv.base.errors import BadInput
    from hpcenv.base.publish import publish
    from hpcenv.recipe.load import new_recipe

    text = new_recipe(name, base)
    file = Path(f"{name}.toml")
    if file.exists():
        raise BadInput("it is there already, and stays as it is", where=str(file))
    with publish(file.absolute()) as beside:
        beside.write_text(text, encoding="utf-8")
    output.show(str(file))
    output.say(f"next: edit it, then  hpcenv build ./{file} --site SITE")
