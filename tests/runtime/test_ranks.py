"""Ranks: who is who, how failures are told, how many threads each may use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcenv.base.errors import BadInput, Outside
from hpcenv.runtime.ranks import (
    Agreed,
    OneRank,
    connect,
    launched_size,
    local_rank,
    node_name,
    receivers,
    together,
    who,
)
from hpcenv.runtime.train.digest import require_equal
from hpcenv.runtime.train.threads import threads_here, threads_per_rank


def test_receivers_are_the_first_of_each_node() -> None:
    assert receivers(["a", "a", "b", "a", "c", "b"]) == (0, 2, 4)
    assert receivers(["a"]) == (0,)


def test_local_rank_counts_within_the_node() -> None:
    ranks = OneRank("a")
    ranks.nodes = ("a", "b", "a", "b", "b")
    found = []
    for ranks.rank in range(5):
        found.append(local_rank(ranks))
    assert found == [0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("environ", "size"),
    [
        # What each launcher sets, as its documentation says.
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 4),
        ({"PMI_SIZE": "3", "PMI_RANK": "0"}, 3),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, 2),
        ({}, None),
        ({"PMI_SIZE": "?"}, None),
    ],
)
def test_launchers_say_how_many_they_started(environ: dict[str, str], size: int | None) -> None:
    found = launched_size(environ)
    assert (found[0] if found else None) == size


def test_ranks_that_do_not_see_each_other_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without mpi4py, as on this side of the wall, a launched rank can see no other.
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Outside, match=r"started 2 ranks \(PMI_SIZE\), the MPI in here sees 1"):
        connect({"PMI_SIZE": "2"})
    assert connect({}).size == 1
    assert connect({"PMI_SIZE": "1"}).size == 1


def test_the_nodes_name_can_be_set() -> None:
    assert node_name({"HPCENV_NODE": "x"}) == "x"
    assert node_name({}) != ""


def test_failures_of_one_are_failures_of_all() -> None:
    class Three(OneRank):
        """Rank 1 of three; rank 2 failed as well, rank 0 did not."""

        def __init__(self) -> None:
            self.rank, self.size, self.nodes = 1, 3, ("n1", "n2", "n2")

        def gather(self, value):  # type: ignore[no-untyped-def]
            return [None, value, value]

    def fail() -> None:
        raise BadInput("no", where="f")

    with pytest.raises(Agreed) as caught:
        together(Three(), fail)
    assert str(caught.value) == "rank 1 on n2, rank 2 on n2: f: no"
    assert caught.value.status == 2
    assert together(OneRank(), lambda: 7) == 7

    def no_file() -> None:
        raise FileNotFoundError(2, "No such file or directory", "/nix")

    with pytest.raises(Agreed, match="/nix: No such file") as caught:
        together(OneRank(), no_file)
    assert caught.value.status == 3


def test_many_ranks_are_named_in_few_words() -> None:
    assert who([0, 1], ["a", "b"]) == "rank 0 on a, rank 1 on b"
    assert who(range(20), ["a"] * 20).endswith("rank 7 on a, and 12 more")


def test_drifted_ranks_are_named() -> None:
    import numpy as np

    class Four(OneRank):
        def __init__(self, others: list[str]) -> None:
            self.rank, self.size, self.nodes = 0, 4, ("n0", "n1", "n2", "n3")
            self.others = others

        def gather(self, value):  # type: ignore[no-untyped-def]
            return [other or value for other in self.others]

    arrays = [np.arange(3, dtype=np.float32)]
    assert len(require_equal(arrays, Four(["", "", "", ""]), "now")) == 64
    with pytest.raises(Agreed, match="weights of rank 2 on n2 differ"):
        require_equal(arrays, Four(["", "", "x", ""]), "after step 3")
    with pytest.raises(Agreed, match="weights of rank 0 on n0 differ"):
        require_equal(arrays, Four(["", "x", "x", "x"]), "after step 3")
    with pytest.raises(Agreed, match="weights of rank 2 on n2, rank 3 on n3 differ"):
        require_equal(arrays, Four(["", "", "x", "x"]), "after step 3")  # none leads: rank 0's


def test_threads_of_bound_and_unbound_ranks() -> None:
    cores = [frozenset(range(4 * i, 4 * i + 4)) for i in range(4)]
    assert [threads_per_rank(own, cores) for own in cores] == [4, 4, 4, 4]
    everything = frozenset(range(16))
    assert threads_per_rank(everything, [everything] * 2) == 8
    assert threads_per_rank(everything, [everything] * 3) == 5
    assert threads_per_rank(everything, [everything] * 40) == 1
    assert threads_per_rank(frozenset({0}), [frozenset({0}), frozenset({0})]) == 1
    assert threads_here(OneRank()) >= 1


@given(st.lists(st.frozensets(st.integers(0, 7), min_size=1), min_size=1, max_size=6))
def test_threads_never_exceed_the_nodes_cores(on_node: list[frozenset[int]]) -> None:
    cores = len(frozenset().union(*on_node))
    total = sum(threads_per_rank(own, on_node) for own in on_node)
    # At least one each, else no more than there are.
    assert total <= max(cores, len(on_node)) + len(on_node) - 1
    assert all(1 <= threads_per_rank(own, on_node) <= len(own) for own in on_node)
