"""What follows from the ranks' files: pure, so tried with many."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcenv.base.known import Known, Unknown
from hpcenv.base.version import Version
from hpcenv.compat.model import Outlook
from hpcenv.image.facts import Family, ImageFacts, Mpi
from hpcenv.launch.model import Launch
from hpcenv.validate.seen import RankRecord, Seen, Traces, agree, judge

LIBMPI = "/usr/lib/x86_64-linux-gnu/libmpi.so.40.30.4"
NOT_KNOWN = Unknown("not looked for", "nothing")
CLEAN = Traces(started={}, hung=frozenset(), status=0, timed_out=False, seconds=1.0, tail="")


def launch(ranks: int) -> Launch:
    return Launch("mpirun", "hybrid", False, 1, ranks, "openmpi")


def facts(version: str = "4.1.4", file: str = LIBMPI) -> ImageFacts:
    mpi = Mpi(
        family=Known(Family.OPENMPI, "read", file),
        version=Known(Version.parse(version), "read", file),
        soname="libmpi.so.40",
        file=file,
        abi=NOT_KNOWN,
        pmi=NOT_KNOWN,
        pmix=NOT_KNOWN,
        transports=NOT_KNOWN,
    )
    arch = Known("x86_64", "read", "/bin/sh")
    return ImageFacts(
        schema=1,
        digest=None,
        arch=arch,
        os=NOT_KNOWN,
        libc=NOT_KNOWN,
        python=NOT_KNOWN,
        mpis=Known((mpi,), "read", file),
        tensorflow=NOT_KNOWN,
        horovod=NOT_KNOWN,
        needs=NOT_KNOWN,
    )


def rank(number: int, size: int, /, **change: object) -> RankRecord:
    whole = RankRecord(
        schema=1,
        step="done",
        host=f"n{number % 2}",
        pid=100 + number,
        launcher_rank=number,
        python="3.11.2",
        trace=f"trace.{number}.txt",
        environment={},
        at={},
        library=LIBMPI,
        mount="/",
        version="Open MPI v4.1.4, package: Debian OpenMPI",
        family="openmpi",
        rank=number,
        size=size,
        processor="n",
        ring=True,
        integers=True,
        floats=True,
        large=True,
        bytes_per_second=10**9,
    )
    return dataclasses.replace(whole, **change)  # type: ignore[arg-type]


def world(size: int) -> list[RankRecord]:
    return [rank(number, size) for number in range(size)]


sizes = st.integers(2, 8)


@given(sizes.flatmap(lambda n: st.permutations(world(n))))
def test_a_whole_world_works_in_whatever_order_its_files_are_found(ranks: list[RankRecord]) -> None:
    seen = judge(launch(len(ranks)), ranks, CLEAN, facts())
    assert seen.outlook is Outlook.WORKS
    assert seen.surprises == ()
    assert [r.launcher_rank for r in seen.ranks] == list(range(len(ranks)))


@given(st.data())
def test_whoever_never_came_is_named(data: st.DataObject) -> None:
    size = data.draw(sizes)
    absent = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    started = data.draw(st.sets(st.sampled_from(sorted(absent))))
    timed_out = data.draw(st.booleans())
    ranks = [rank(n, size, step="init") for n in range(size) if n not in absent]
    traces = dataclasses.replace(
        CLEAN, started={n: f"host{n}" for n in started}, timed_out=timed_out, status=1
    )
    seen = judge(launch(size), ranks, traces, facts())
    assert seen.outlook is (Outlook.MAY_HANG if timed_out else Outlook.FAILS)
    for number in range(size):
        assert (f"rank {number} never came" in seen.says) == (number in absent)
        assert (f"host{number}," in seen.says) == (number in started)


@given(sizes)
def test_ranks_that_are_each_alone_are_singletons(size: int) -> None:
    ranks = [
        rank(n, 1, rank=0, ring=None, integers=None, floats=None, large=None) for n in range(size)
    ]
    seen = judge(launch(size), ranks, CLEAN, facts())
    assert seen.outlook is Outlook.SINGLETONS
    assert f"{size} × rank 0 of 1" in seen.says


def test_one_rank_alone_is_what_was_asked_for() -> None:
    alone = rank(0, 1, ring=None, integers=None, floats=None, large=None)
    assert judge(launch(1), [alone], CLEAN, facts()).outlook is Outlook.WORKS


@given(st.data())
def test_a_rank_seen_twice_is_no_world(data: st.DataObject) -> None:
    size = data.draw(sizes)
    one, other = data.draw(st.permutations(range(size)))[:2]
    ranks = [rank(n, size, rank=other if n == one else n) for n in range(size)]
    assert judge(launch(size), ranks, CLEAN, facts()).outlook is Outlook.FAILS


@given(st.data())
def test_worlds_of_different_sizes_are_no_world(data: st.DataObject) -> None:
    size = data.draw(sizes)
    one = data.draw(st.integers(0, size - 1))
    ranks = [rank(n, 1 if n == one else size) for n in range(size)]
    assert judge(launch(size), ranks, CLEAN, facts()).outlook is Outlook.FAILS


@pytest.mark.parametrize("check", ["ring", "integers", "floats", "large"])
@pytest.mark.parametrize("value", [False, None])
@pytest.mark.parametrize("bad", [0, 2])
def test_a_value_that_is_wrong_or_was_never_checked_fails(
    check: str, value: bool | None, bad: int
) -> None:
    ranks = [rank(n, 3, **({check: value} if n == bad else {})) for n in range(3)]
    seen = judge(launch(3), ranks, CLEAN, facts())
    assert seen.outlook is Outlook.FAILS
    assert f"rank {bad} on" in seen.says


def test_a_launcher_that_fails_after_right_ranks_is_no_success() -> None:
    traces = dataclasses.replace(CLEAN, status=134, tail="free(): invalid pointer\n")
    seen = judge(launch(2), world(2), traces, facts())
    assert seen.outlook is Outlook.FAILS
    assert "134" in seen.says
    assert seen.said == ("free(): invalid pointer",)


def test_ranks_that_end_in_mpi_init_fail_at_start() -> None:
    ranks = [rank(n, 2, step="init", rank=None, size=None) for n in range(2)]
    tail = "-----\n\nPMI_Init returned -1\n-----\n"
    seen = judge(launch(2), ranks, dataclasses.replace(CLEAN, status=15, tail=tail), facts())
    assert seen.outlook is Outlook.FAILS
    assert "status 15" in seen.says and "MPI_Init" in seen.says
    assert seen.said == ("PMI_Init returned -1",)


def test_ranks_that_their_own_watchdog_ended_hung() -> None:
    ranks = [rank(0, 2, step="large"), rank(1, 2, step="large")]
    traces = dataclasses.replace(CLEAN, hung=frozenset({"trace.1.txt"}), status=1)
    seen = judge(launch(2), ranks, traces, facts())
    assert seen.outlook is Outlook.MAY_HANG
    assert str(seen) == "hangs"
    assert "rank 0 on n0 in the 24 MiB message" in seen.says
    assert "rank 1 on n1 in the 24 MiB message" in seen.says


def test_a_launcher_that_never_ends_hangs_though_every_rank_was_done() -> None:
    seen = judge(launch(2), world(2), dataclasses.replace(CLEAN, timed_out=True), facts())
    assert seen.outlook is Outlook.MAY_HANG
    assert "after MPI_Finalize" in seen.says


def test_nothing_at_all_is_told_rank_by_rank() -> None:
    seen = judge(launch(2), [], dataclasses.replace(CLEAN, status=213), facts())
    assert seen.outlook is Outlook.FAILS
    assert "rank 0 never came" in seen.says and "rank 1 never came" in seen.says


def test_a_probe_that_cannot_use_what_it_found_proves_nothing() -> None:
    ranks = [rank(n, 2, step="stopped", stopped="unknown family", unprovable=True) for n in (0, 1)]
    seen = judge(launch(2), ranks, CLEAN, facts())
    assert seen.outlook is None
    assert seen.unproved == "cannot prove"


def test_an_image_without_libmpi_fails() -> None:
    stopped = {"step": "stopped", "stopped": "no MPI library", "unprovable": False}
    ranks = [rank(n, 2, library=None, version=None, **stopped) for n in (0, 1)]
    assert judge(launch(2), ranks, CLEAN, facts()).outlook is Outlook.FAILS


def surprises(ranks: list[RankRecord], of: ImageFacts) -> str:
    return " | ".join(judge(launch(len(ranks)), ranks, CLEAN, of).surprises)


def test_a_libmpi_bound_from_outside_is_a_surprise() -> None:
    ranks = [rank(0, 2, mount="/usr/lib/x86_64-linux-gnu"), rank(1, 2)]
    assert "rank 0 on n0" in surprises(ranks, facts()) and "bound" in surprises(ranks, facts())


def test_a_libmpi_that_was_not_read_from_the_image_is_a_surprise() -> None:
    assert "/opt/libmpi.so.40" in surprises(world(2), facts(file="/opt/libmpi.so.40"))


def test_another_version_behind_the_same_name_is_a_surprise() -> None:
    assert "5.0.3" in surprises(world(2), facts(version="5.0.3"))
    assert surprises(world(2), facts(version="4.1.4-3+b1")) == ""


def test_two_libraries_in_one_world_are_a_surprise() -> None:
    ranks = [rank(0, 2), rank(1, 2, library="/opt/libmpi.so.40")]
    assert "different MPI libraries" in surprises(ranks, facts())


def test_every_outcome_agrees_with_its_own_prediction_and_success_with_nothing_bad() -> None:
    for outlook in (Outlook.WORKS, Outlook.SINGLETONS, Outlook.FAILS, Outlook.MAY_HANG):
        assert agree(outlook, outlook)
        assert agree(Outlook.UNKNOWN, outlook)
    for bad in (Outlook.SINGLETONS, Outlook.FAILS, Outlook.MAY_HANG):
        for promise in (Outlook.WORKS, Outlook.SLOW, Outlook.NEVER_RUN):
            assert not agree(promise, bad)
    assert not agree(Outlook.SINGLETONS, Outlook.WORKS)
    assert not agree(Outlook.FAILS, Outlook.WORKS)
    assert agree(Outlook.MAY_HANG, Outlook.WORKS)


def test_what_was_not_seen_says_why() -> None:
    assert str(Seen(None, "no Python", "cannot prove")) == "cannot prove: no Python"
    assert str(Seen(None, "libc 2.17, here 2.36", "not this site")) == "not this site"
