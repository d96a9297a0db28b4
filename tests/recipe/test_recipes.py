"""Recipes: what merges, what is refused, and with which line."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcenv.base.errors import BadFile, BadInput
from hpcenv.recipe.load import bundled_recipes, load_recipe, merge, new_recipe

keys = st.sampled_from("abcd")
leaves = st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=3)
tables = st.recursive(
    st.dictionaries(keys, leaves, max_size=4),
    lambda inner: st.dictionaries(keys, leaves | inner, max_size=4),
    max_leaves=12,
)


def flat(data: dict[str, Any], prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every value that is not a table, by its path."""
    found: dict[tuple[str, ...], Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            found |= flat(value, (*prefix, key))
        else:
            found[*prefix, key] = value
    return found


@given(tables, tables)
def test_merge_keeps_all_of_the_child_and_what_it_does_not_touch(
    parent: dict[str, Any], child: dict[str, Any]
) -> None:
    before = copy.deepcopy((parent, child))
    merged = flat(merge(parent, child))
    mine, theirs = flat(child), flat(parent)
    assert mine.items() <= merged.items()
    for path, value in theirs.items():
        hidden = any(
            path[: len(other)] == other or other[: len(path)] == path for other in mine
        ) or _replaced_by_an_empty_table(child, path)
        if not hidden:
            assert merged[path] == value
    assert merged.keys() <= mine.keys() | theirs.keys()
    assert (parent, child) == before


def _replaced_by_an_empty_table(child: dict[str, Any], path: tuple[str, ...]) -> bool:
    here: Any = child
    for key in path:
        if not isinstance(here, dict) or key not in here:
            return False
        here = here[key]
    return isinstance(here, dict)


@given(tables)
def test_nothing_merged_is_nothing_changed(table: dict[str, Any]) -> None:
    assert merge(table, {}) == table
    assert merge({}, table) == table
    assert merge(table, table) == table


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_a_bundled_recipe_is_called_as_its_file(name: str) -> None:
    assert load_recipe(name).name == name


def test_the_default_recipe_has_the_versions_that_were_measured_together() -> None:
    recipe = load_recipe("tensorflow-horovod")
    assert (recipe.framework.tensorflow, recipe.framework.horovod) == ("2.18.1", "0.28.1")
    assert (recipe.base.os, recipe.base.python) == ("debian:12", "3.11")
    assert "keras==3.15.1" in recipe.python.packages


def write(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return str(file)


def test_a_child_wins_key_by_key_and_keeps_its_own_name(tmp_path: Path) -> None:
    write(
        tmp_path,
        "base/parent.toml",
        'schema = 1\nname = "parent"\ndescription = "theirs"\n'
        '[base]\nos = "debian:12"\npython = "3.11"\npackages = ["a", "b"]\n'
        '[python]\npackages = ["x"]\n',
    )
    child = load_recipe(
        write(
            tmp_path,
            "child.toml",
            'schema = 1\nname = "child"\nextends = "./base/parent.toml"\n'
            '[base]\npackages = ["c"]\n[mpi]\npolicy = "fixed"\nfamily = "mpich"\n',
        )
    )
    assert (child.name, child.description) == ("child", "")
    assert child.base.os == "debian:12"
    assert child.base.packages == ("c",)
    assert child.python.packages == ("x",)
    assert (child.mpi.policy, child.mpi.family) == ("fixed", "mpich")


def test_every_fault_of_a_child_is_told_with_the_childs_line(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "child.toml",
        'schema = 1\nname = "child"\nextends = "mpi-base"\n'
        '[base]\npyhton = "3.11"\npackages = "git"\n[framework]\nhorovod = "0.28.1"\n',
    )
    with pytest.raises(BadFile) as raised:
        load_recipe(file)
    told = [(p.line, p.path) for p in raised.value.problems]
    assert told == [(5, "base.pyhton"), (6, "base.packages"), (7, "framework")]
    assert "did you mean 'python'" in str(raised.value)
    assert raised.value.file == file
    assert raised.value.status == 2


def test_a_fault_of_the_parent_is_told_with_the_parents_file_and_line(tmp_path: Path) -> None:
    parent = write(
        tmp_path,
        "parent.toml",
        'schema = 1\nname = "p"\n[base]\nos = 12\npython = "3.11"\n',
    )
    child = write(
        tmp_path, "child.toml", 'schema = 1\nname = "c"\nextends = "./parent.toml"\n\n\n\n'
    )
    with pytest.raises(BadFile) as raised:
        load_recipe(child)
    assert Path(raised.value.file).resolve() == Path(parent).resolve()
    assert [(p.line, p.path) for p in raised.value.problems] == [(4, "base.os")]


def test_a_ring_is_refused_and_shown(tmp_path: Path) -> None:
    for name, parent in (("a", "b"), ("b", "c"), ("c", "a")):
        write(
            tmp_path,
            f"{name}.toml",
            f'schema = 1\nname = "{name}"\nextends = "./{parent}.toml"\n',
        )
    with pytest.raises(BadInput, match=r"a\.toml → b\.toml → c\.toml → a\.toml"):
        load_recipe(str(tmp_path / "a.toml"))


def test_an_unknown_recipe_names_those_there_are_and_the_nearest() -> None:
    with pytest.raises(BadInput) as raised:
        load_recipe("tensorflow-horovd")
    assert "mpi-base, tensorflow-horovod" in raised.value.says
    assert raised.value.remedy and "did you mean 'tensorflow-horovod'" in raised.value.remedy


def test_an_unknown_parent_is_told_with_the_line_of_extends(tmp_path: Path) -> None:
    file = write(tmp_path, "c.toml", 'schema = 1\nname = "c"\nextends = "mpi-bas"\n')
    with pytest.raises(BadFile, match=r"c\.toml:3: extends: there is no recipe 'mpi-bas'"):
        load_recipe(file)


def test_a_new_recipe_loads_and_extends_what_it_should(tmp_path: Path) -> None:
    made = load_recipe(write(tmp_path, "mine.toml", new_recipe("mine", "tensorflow-horovod")))
    parent = load_recipe("tensorflow-horovod")
    assert made.name == "mine"
    assert (made.framework, made.python, made.base) == (
        parent.framework,
        parent.python,
        parent.base,
    )


@pytest.mark.parametrize("name", ["My Recipe", "../x", "", "-x"])
def test_a_name_that_cannot_be_a_file_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="recipe's name"):
        new_recipe(name, "mpi-base")
