"""Settings as people write them, and what they are told about mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcenv.base.errors import BadFile, BadInput
from hpcenv.runtime.train.optimizers import Adam, Sgd
from hpcenv.runtime.train.settings import bundled, load_settings, same_run


def test_every_bundled_setting_is_valid_and_bears_its_name() -> None:
    assert "digits" in bundled()
    for name in bundled():
        assert load_settings(name).name == name


def test_changes_are_toml_and_else_text() -> None:
    changed = load_settings(
        "digits",
        ["epochs=3", "collective=mpi4py", 'data.folder="/d"', "optimizer.momentum=0.5",
         "deterministic=true", "learning_rate.base=1"],
    )  # fmt: skip
    assert (changed.epochs, changed.collective, changed.data.folder) == (3, "mpi4py", "/d")
    assert changed.optimizer == Sgd(momentum=0.5)
    assert changed.deterministic is True
    assert changed.learning_rate.base == 1.0


def test_all_mistakes_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'schema = 1\nname = "x"\nmodel = "digits-cn"\nepohs = 3\n'
        '[optimizer]\nkind = "adam"\nmomentum = 0.9\n[learning_rate]\nbase = "a"\n'
    )
    with pytest.raises(BadFile) as caught:
        load_settings(str(file))
    assert caught.value.status == 2
    lines = str(caught.value).splitlines()
    assert [line.split(":")[1] for line in lines] == ["3", "4", "7", "9"]
    assert "did you mean 'digits-cnn'?" in lines[0]
    assert "epohs: unknown key; did you mean 'epochs'?" in lines[1]
    assert "momentum" in lines[2] and "'beta1'" in lines[2]
    assert "should be a number" in lines[3]


@pytest.mark.parametrize(
    ("reference", "changes", "says"),
    [
        ("digts", [], "did you mean 'digits'?"),
        ("no/such.toml", [], "cannot read it"),
        ("no/such.toml", ["epochs=1"], "cannot read it"),
        ("digits", ["epohs=2"], "did you mean 'epochs'?"),
        ("digits", ["epochs=0"], "'epochs' is at least 1"),
        ("digits", ["epochs"], "--set takes key=value"),
        ("digits", ["seed=-1"], "'seed' is from 0"),
        ("digits", ["seed.a=1"], "'seed' is not a table"),
        ("digits", ["name=a/b"], "'name' names a folder"),
        ("digits", ["every.log=0"], "at least 1"),
        ("digits", ["precision=mixed_bfloat"], "did you mean 'mixed_bfloat16'?"),
        ("digits", ["optimizer.kind=sdg"], "none of 'sgd', 'adam'"),
    ],
)
def test_each_mistake_has_its_words(reference: str, changes: list[str], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_settings(reference, changes)
    assert says in str(caught.value)
    assert caught.value.status == 2


def test_a_run_goes_on_under_the_same_settings_alone() -> None:
    old = load_settings("digits")
    longer = load_settings("digits", ["epochs=99", "every.log=1", "collective=mpi4py"])
    assert same_run(old, longer) == []
    other = load_settings("digits", ["seed=2", "learning_rate.base=0.5"])
    assert same_run(old, other) == [
        "learning_rate.base: 0.02 then, 0.5 now",
        "seed: 1 then, 2 now",
    ]
    adam = load_settings("digits", ["optimizer={kind='adam'}"])
    assert isinstance(adam.optimizer, Adam)
    assert "optimizer.kind: 'sgd' then, 'adam' now" in same_run(old, adam)
