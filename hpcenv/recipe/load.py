"""Recipes from TOML: bundled by name, or a file; what one extends is merged in.

A recipe is merged onto the one that it ``extends``: tables key by key, the child's value winning;
lists whole. The name, the description and the schema number are never inherited. A parent is
checked before its child, so what is wrong after the merge is the child's, and told with the
child's file and line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hpcenv
from hpcenv.base.errors import BadFile, BadInput, Problem
from hpcenv.base.record import lines_of, load_toml
from hpcenv.recipe.model import Recipe

_OWN = ("schema", "name", "description")


def load_recipe(ref: str) -> Recipe:
    """Return a recipe with everything that it extends merged in.

    Parameters
    ----------
    ref : str
        A bundled recipe's name, or a file: anything with a ``/``, or ending in ``.toml``.

    Raises
    ------
    BadFile
        With all problems of a file, each with its line.
    BadInput
        If there is no such recipe or file, or a recipe extends itself.
    """
    return _load(_find(ref), ())[0]


def bundled_recipes() -> dict[str, Path]:
    """Return the recipes that come with hpcenv: name and file."""
    return {file.stem: file for file in sorted(bundled_folder().glob("*.toml"))}


def bundled_folder() -> Path:
    """Return the folder of recipes and patches: of the installed wheel, or of the checkout."""
    package = Path(hpcenv.__file__).parent
    installed = package / "recipe/bundled"
    return installed if installed.is_dir() else package.parent / "recipes"


def new_recipe(name: str, base: str) -> str:
    """Return the text of a recipe that extends another, for a person to fill in.

    Raises
    ------
    BadInput
        If `name` is not one word of letters, digits, dots and dashes, or there is no such base.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        raise BadInput(
            f"{name!r} cannot be a recipe's name",
            remedy="use lower-case letters, digits, dots and dashes, such as my-training",
        )
    parent = load_recipe(base)
    packages = "".join(f'    "{package}",\n' for package in parent.python.packages)
    return f"""\
schema = 1
name = "{name}"
extends = "{base}"
description = ""

# What you write here wins over {base}, key by key; a list replaces its list, so it starts as
# {base}'s.
[python]
packages = [
{packages}]

# More Debian packages:
# [base]
# packages = [{", ".join(f'"{package}"' for package in parent.base.packages)}]

# An MPI other than the one that fits the site:
# [mpi]
# policy = "fixed"
# family = "openmpi"
# version = "4.1"
"""


def _parent(ref: str, child: Path) -> Path:
    try:
        return _find(ref, child.parent)
    except BadInput as error:
        line = lines_of(child.read_text()).get("extends")
        problem = Problem("extends", error.says, line)
        raise BadFile(str(child), [problem], remedy=error.remedy) from None


def _find(ref: str, folder: Path = Path()) -> Path:
    if "/" in ref or ref.endswith(".toml"):
        file = folder / ref
        if not file.is_file():
            raise BadInput("there is no such recipe file", where=str(file))
        return file
    known = bundled_recipes()
    if ref in known:
        return known[ref]
    near = difflib.get_close_matches(ref, known, 1)
    hint = f"did you mean {near[0]!r}?  " if near else ""
    raise BadInput(
        f"there is no recipe {ref!r}; there are: {', '.join(known)}",
        remedy=f"{hint}A file of your own is given with its path: ./{ref}.toml",
    )


def _load(file: Path, children: tuple[Path, ...]) -> tuple[Recipe, dict[str, Any]]:
    """Return a recipe, and the data that it was made from, for one that extends it."""
    resolved = file.resolve()
    if resolved in children:
        chain = " → ".join(path.name for path in [*children[children.index(resolved) :], resolved])
        raise BadInput(f"it extends itself: {chain}", where=str(file))
    merged: dict[str, Any] = {}

    def fill(own: dict[str, Any]) -> dict[str, Any]:
        inherited = {}
        if isinstance(parent := own.get("extends"), str):
            del own["extends"]
            inherited = _load(_parent(parent, file), (*children, resolved))[1]
            for key in _OWN:
                inherited.pop(key, None)
        merged.update(merge(inherited, own))
        return merged

    return load_toml(Recipe, file, fill), merged


def merge(parent: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parent's data with the child's laid over it: tables by key, all else whole."""
    result = dict(parent)
    for key, value in child.items():
        before = result.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            result[key] = merge(before, value)
        else:
            result[key] = value
    return result
