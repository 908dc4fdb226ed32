"""Who steps alike: asked once, answered alike everywhere, waited for by nobody who need not."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from nandiag.runtime.together import census
from nandiag.runtime.together.census import Members, all_joined, laid_out_alike, stand_apart


@pytest.fixture
def store():
    return dist.HashStore()


def at_once(*calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(20) for future in [pool.submit(call) for call in calls]]


def test_all_who_want_it_hear_yes(store):
    answers = at_once(*(lambda rank=rank: all_joined(store, Members(rank, 3, 0)) for rank in range(3)))
    assert answers == [(True, "")] * 3


def test_one_that_stands_apart_frees_the_others_at_once(store):
    stand_apart(store)
    joined, why = all_joined(store, Members(0, 2, 0))
    assert not joined
    assert why == "not every rank needs the others within its steps"


def test_nobody_is_waited_for_for_ever_and_who_comes_later_hears_the_same(store, monkeypatch):
    monkeypatch.setattr(census, "PATIENCE", 0.05)
    assert all_joined(store, Members(0, 2, 0))[0] is False
    assert all_joined(store, Members(1, 2, 0))[0] is False


def test_what_a_rank_comes_to_a_second_time_is_asked_anew(store, monkeypatch):
    """A script that swallows the stop of a step may meet another harm in it, and the others need not."""
    monkeypatch.setattr(census, "has_peers", lambda: True)
    monkeypatch.setattr(census, "own_store", lambda name: dist.PrefixStore(name, store))
    monkeypatch.setattr(census, "members", lambda: Members(0, world, 0))
    world = 1
    assert census.all_come("left/7")
    world = 2
    assert not census.all_come("left/7", 0.05)
    assert not census.all_come("left/8", 0.05)


@pytest.mark.parametrize(("sizes", "kept"), [((2, 2, 2, 2), 2), ((2, 2, 4, 2), 0)])
def test_nodes_count_only_where_all_ranks_name_the_same_size(sizes, kept, store):
    who = [Members(rank, 4, size) for rank, size in enumerate(sizes)]
    at_once(*(lambda one=one: all_joined(store, one) for one in who))
    assert {laid_out_alike(store, one).ranks_per_node for one in who} == {kept}
