"""Profiles as TOML: what is written is read back, what a person wrote is understood or refused."""

from __future__ import annotations

import dataclasses
import enum
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcenv.base.errors import BadFile, BadInput
from hpcenv.base.known import Known, Unknown
from hpcenv.base.version import Version
from hpcenv.image.facts import Family
from hpcenv.site.catalog import known_sites
from hpcenv.site.merge import keep_declared
from hpcenv.site.model import SiteProfile
from hpcenv.site.profile import dump_site, load_site, parse_site
from hpcenv.site.summary import summary, unknowns

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VERSION = st.from_regex(r"\A[0-9]{1,3}(\.[0-9]{1,3}){0,3}(rc[0-9])?(-[a-z0-9+~]{0,5})?\Z")
HOW = st.sampled_from(["read", "ran", "declared", "published"])


def of(kind: Any) -> st.SearchStrategy[Any]:
    """A strategy for any type that a profile is made of."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([of(arg) for arg in args])
    if origin is Known:
        declared = st.builds(Known, of(args[0]), st.just("declared"), st.just("profile"))
        return st.builds(Known, of(args[0]), HOW, TEXT) | declared
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin is tuple:
        return st.lists(of(args[0]), max_size=3).map(tuple)
    if origin is frozenset:
        return st.frozensets(of(args[0]), max_size=4)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(TEXT, of(args[1]), max_size=3)
    if kind is Version:
        return VERSION.map(Version.parse)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = {field.name: of(hints[field.name]) for field in dataclasses.fields(kind)}
        return st.builds(kind, **fields)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXT,
        int: st.integers(-(2**31), 2**31),
        bool: st.booleans(),
        type(None): st.none(),
    }
    return plain[kind]


@settings(max_examples=60)
@given(of(SiteProfile))
def test_what_is_written_is_read_back(profile: SiteProfile) -> None:
    text = dump_site(profile)
    assert parse_site(text, "x") == profile
    # Versions are equal when they order equally; the texts must come back, too.
    assert dump_site(parse_site(text, "x")) == text


@settings(max_examples=60)
@given(of(SiteProfile), of(SiteProfile))
def test_a_declared_fact_outlives_a_detection_and_nothing_else_does(
    detected: SiteProfile, written: SiteProfile
) -> None:
    kept = keep_declared(detected, written)
    for field in ("arch", "libc", "driver", "gpus", "privileged"):
        old, new = getattr(written, field), getattr(detected, field)
        by_hand = isinstance(old, Known) and (old.how, old.where) == ("declared", "profile")
        assert getattr(kept, field) == (old if by_hand else new)
    assert kept.mirrors == detected.mirrors


SHORT = """\
schema = 1
name = "example"
arch = "x86_64"
libc = "2.17"
driver = "450.80.02"
slurm = "none"
cpu_features = ["avx2", "fma"]

[[mpis]]
name = "openmpi"
launcher = "/apps/bin/mpirun"
[mpis.library]
family = "openmpi"
version = "4.0.3"
pmix = "none"
"""


def test_a_short_profile_written_by_hand() -> None:
    site = parse_site(SHORT, "short.toml")
    assert site.arch == Known("x86_64", "declared", "profile")
    assert site.driver == Known(Version.parse("450.80.02"), "declared", "profile")
    assert site.slurm == Known(None, "declared", "profile")
    assert isinstance(site.mpis, Known)
    (mpi,) = site.mpis.value
    assert mpi.launcher == Known("/apps/bin/mpirun", "declared", "profile")
    assert mpi.library.family == Known(Family.OPENMPI, "declared", "profile")
    assert mpi.library.pmix is None
    # What was left out is unknown, and says what would tell; nothing is made up.
    missing = dict(unknowns(site))
    assert set(missing) == {
        "cpus",
        "os",
        "kernel",
        "gpus",
        "fabrics",
        "engines",
        "privileged",
        *(f"mpis[openmpi].{name}" for name in ("needs", "ucx", "libfabric")),
        *(f"mpis[openmpi].library.{name}" for name in ("abi", "pmi", "transports")),
    }
    assert all(unknown.ask for unknown in missing.values())


def test_a_pmix_that_is_left_out_is_unknown_and_not_absent() -> None:
    site = parse_site(SHORT.replace('pmix = "none"\n', ""), "short.toml")
    assert isinstance(site.mpis, Known)
    assert isinstance(site.mpis.value[0].library.pmix, Unknown)


def test_what_was_declared_is_written_plainly_again() -> None:
    data = tomllib.loads(dump_site(parse_site(SHORT, "short.toml")))
    wrote = tomllib.loads(SHORT)
    assert {key: data[key] for key in wrote if key != "mpis"} == {
        key: item for key, item in wrote.items() if key != "mpis"
    }
    assert data["mpis"][0]["library"]["version"] == "4.0.3"


def test_every_error_at_once_with_its_line() -> None:
    wrong = SHORT.replace("arch =", "arhc =").replace('"2.17"', "2.17")
    wrong = wrong.replace('family = "openmpi"', 'family = "openmp"').replace("version =", "vers =")
    wrong += 'fabrics = [{ kind = "infiniband" }]\n'
    lines = wrong.splitlines()
    with pytest.raises(BadFile) as caught:
        parse_site(wrong, "short.toml")
    told = str(caught.value).splitlines()
    for part, words in (
        ("arhc", "did you mean 'arch'?"),
        ("libc = ", "should be a version"),
        ('family = "', "did you mean 'openmpi'?"),
        ("vers =", "did you mean 'version'?"),
        ("fabrics", "unknown key"),  # it stands in the last table, not at the top
    ):
        number = next(n for n, line in enumerate(lines, 1) if part in line)
        assert any(line.startswith(f"short.toml:{number}: ") and words in line for line in told)
    assert len(told) == 5


def test_a_wrong_fact_in_its_long_form_is_found_on_its_line() -> None:
    text = SHORT.replace('"450.80.02"', '{ value = 450, how = "guessed", where = "x" }')
    with pytest.raises(BadFile) as caught:
        parse_site(text, "f")
    assert [problem.line for problem in caught.value.problems] == [5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema = 1\nname =\n", "f:2: not TOML"),
        ("schema = 2\nname = 'x'\n", "f:1: schema: 2 is none of 1"),
        ("schema = 1\n", "'name' is missing"),
        ("schema = 1\nname = 'x'\nmpis = [3]\n", "f:3: mpis[0]: should be a table"),
        ("schema = 1\nname = 'x'\nslurm = 'nine'\n", "f:3: slurm: should be a table"),
        ("schema = 1\nname = 'x'\nlibc = { unknown = 'why' }\n", "f:3: libc: an unknown fact has"),
    ],
)
def test_bad_files(text: str, words: str) -> None:
    with pytest.raises(BadFile) as caught:
        parse_site(text, "f")
    assert words in str(caught.value)


def test_a_site_that_nobody_knows() -> None:
    with pytest.raises(BadInput, match=r"no site 'exmaple'; did you mean 'example'\? known: "):
        load_site("exmaple")
    with pytest.raises(BadInput, match=r"no site 'zzz'; known: .*debian-12-mpich") as caught:
        load_site("zzz")
    assert caught.value.remedy is not None and "site detect" in caught.value.remedy


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        load_site(str(tmp_path / "no.toml"))
    with pytest.raises(BadInput, match="Is a directory"):
        load_site(str(tmp_path) + "/")
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    with pytest.raises(BadInput, match="not UTF-8"):
        load_site(str(tmp_path / "latin.toml"))


def test_every_bundled_profile_reads_and_shows() -> None:
    sites = known_sites()
    assert {"example", "debian-12-openmpi", "debian-12-mpich"} <= set(sites)
    for name in sites:
        site = load_site(name)
        assert site.name == name
        assert summary(site).startswith("site")


def test_a_users_profile_hides_a_bundled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "hpcenv/sites").mkdir(parents=True)
    (tmp_path / "hpcenv/sites/example.toml").write_text('schema = 1\nname = "mine"\n')
    assert load_site("example").name == "mine"
    assert load_site("debian-12-mpich").name == "debian-12-mpich"
