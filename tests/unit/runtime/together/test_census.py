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
    assert "not every rank" in why


def test_nobody_is_waited_for_for_ever_and_who_comes_later_hears_the_same(store, monkeypatch):
    monkeypatch.setattr(census, "PATIENCE", 0.05)
    assert all_joined(store, Members(0, 2, 0))[0] is False
    assert all_joined(store, Members(1, 2, 0))[0] is False


@pytest.mark.parametrize(("sizes", "kept"), [((2, 2, 2, 2), 2), ((2, 2, 4, 2), 0)])
def test_nodes_count_only_where_all_ranks_name_the_same_size(sizes, kept, store):
    who = [Members(rank, 4, size) for rank, size in enumerate(sizes)]
    at_once(*(lambda one=one: all_joined(store, one) for one in who))
    assert {laid_out_alike(store, one).ranks_per_node for one in who} == {kept}
