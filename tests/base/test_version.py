"""The order of versions, judged by packaging (PEP 440) and by dpkg."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version as Pep440

from hpcenv.base.record import decode, encode
from hpcenv.base.version import Version

numbers = st.integers(0, 30)
releases = st.lists(numbers, min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
pre = st.builds(lambda kind, n: f"{kind}{n}", st.sampled_from(["a", "b", "rc"]), numbers)
post = numbers.map(lambda n: f".post{n}")
dev = numbers.map(lambda n: f".dev{n}")
local = st.lists(
    st.one_of(numbers.map(str), st.sampled_from(["cpu", "b", "cu", "post"])), min_size=1, max_size=3
)
pep440 = st.builds(
    "{}{}{}{}{}".format,
    releases,
    st.one_of(st.just(""), pre),
    st.one_of(st.just(""), post),
    st.one_of(st.just(""), dev),
    st.one_of(st.just(""), local.map(lambda parts: "+" + ".".join(parts))),
)
revision = st.builds(
    "-{}{}".format,
    st.integers(1, 12),
    st.one_of(
        st.just(""),
        numbers.map(lambda n: f"+b{n}"),
        st.builds("+deb{}u{}".format, st.integers(11, 13), st.integers(1, 3)),
        st.builds("~deb{}u{}".format, st.integers(11, 13), st.integers(1, 3)),
        st.builds("ubuntu{}".format, numbers),
    ),
)
debian = st.builds("{}.{}.{}{}".format, numbers, numbers, st.integers(1, 30), revision)
anything = st.one_of(pep440, debian, st.builds("{}{}".format, releases, st.text(max_size=8)))


def order(left: object, right: object) -> int:
    return (left > right) - (left < right)  # type: ignore[operator]


@settings(max_examples=500)
@given(pep440, pep440)
def test_agrees_with_pep440(left: str, right: str) -> None:
    expected = order(Pep440(left), Pep440(right))
    assert order(Version.parse(left), Version.parse(right)) == expected


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="dpkg is the judge")
@settings(max_examples=60)
@given(debian, debian)
def test_agrees_with_dpkg(left: str, right: str) -> None:
    relation = {-1: "lt", 0: "eq", 1: "gt"}[order(Version.parse(left), Version.parse(right))]
    subprocess.run(["dpkg", "--compare-versions", left, relation, right], check=True)


@given(anything, anything, anything)
def test_the_order_is_total(a: str, b: str, c: str) -> None:
    left, middle, right = sorted(map(Version.parse, (a, b, c)))
    assert left <= middle <= right and left <= right
    assert (left < middle) + (left == middle) + (left > middle) == 1
    if left == middle:
        assert hash(left) == hash(middle)


@given(releases, numbers)
def test_one_more_number_is_newer(release: str, more: int) -> None:
    assert order(Version.parse(f"{release}.{more + 1}"), Version.parse(release)) == 1
    assert Version.parse(f"{release}.0") == Version.parse(release)


@given(anything)
def test_text_comes_back(text: str) -> None:
    version = Version.parse(text)
    assert decode(Version, encode(version)) == version
    assert str(version) == text.strip()


# Each pair as the makers mean it: the older, the newer.
@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("2.35", "2.35.1"),  # glibc; compared as text by a tool that is in use
        ("2.9", "2.35"),
        ("4.1.4-3", "4.1.4-10"),
        ("4.0.2-3", "4.0.2-3+b1"),
        ("1.13.1-1~deb12u1", "1.13.1-1"),
        ("3.2.5a1", "3.2.5"),
        ("5.0.0rc2", "5.0.0rc10"),
        ("1.8.0-rc2", "1.8.0"),
        ("4.1.5~rc2", "4.1.5"),
        ("450.80.02", "450.102.04"),
        ("20.11.9", "22.05.8"),
        ("1.1.1k", "1.1.1w"),  # OpenSSL counts in letters
        ("2.17-317.el7", "2.17-326.el7_9"),
        ("1.0", "1.0.post"),
        ("1.0a", "1.0a1"),
        ("1.0-1.el7", "1.0-1.1"),  # a number beats a word, as rpm has it
    ],
)
def test_known_pairs(older: str, newer: str) -> None:
    assert Version.parse(older) < Version.parse(newer)


def test_parts() -> None:
    version = Version.parse(" 1:4.1.4-3+b1\n")
    assert (version.major, version.minor, version.micro) == (4, 1, 4)
    assert (Version.parse("12").minor, Version.parse("12").micro) == (0, 0)
    assert version == Version.parse("4.1.4-3+b1")  # an epoch has no weight


@pytest.mark.parametrize("text", ["", "none", "-1", "..", "٣.١"])
def test_not_a_version(text: str) -> None:
    with pytest.raises(ValueError, match="does not start with a number"):
        Version.parse(text)
