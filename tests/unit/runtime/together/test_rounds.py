"""The largest number over all ranks, by real messages between threads of this process."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from nandiag.runtime.together import rounds
from nandiag.runtime.together.census import Members
from nandiag.runtime.together.rounds import MismatchError, Nodes, Ring, connect

PATIENCE = timedelta(seconds=20)


def together(world, ranks_per_node, levels, keys=None):
    store = dist.HashStore()

    def rank(number):
        ours = connect(store, Members(number, world, ranks_per_node), PATIENCE)
        made = [ours.most(level[number], (keys or [7] * world)[number], PATIENCE) for level in levels]
        return ours, made

    with ThreadPoolExecutor(world) as pool:
        return [future.result(60) for future in [pool.submit(rank, number) for number in range(world)]]


@pytest.mark.parametrize("world", [2, 3, 4, 5, 8])
def test_every_rank_hears_of_the_worst_whoever_has_it(world):
    levels = [[3 if rank == worst else rank % 2 for rank in range(world)] for worst in range(world)] + [[0] * world]
    told = together(world, 0, levels)
    assert [made for _, made in told] == [[3] * world + [0]] * world
    assert {ours.hops for ours, _ in told} == {(world - 1).bit_length()}


def test_many_ranks_on_several_nodes_talk_within_each_node_first(monkeypatch):
    monkeypatch.setattr(rounds, "FLAT", 4)
    told = together(6, 2, [[0, 0, 0, 2, 0, 0], [0] * 6, [1, 0, 0, 0, 0, 0]])
    assert all(isinstance(ours, Nodes) for ours, _ in told)
    assert [made for _, made in told] == [[2, 0, 1]] * 6
    assert {ours.hops for ours, _ in told} == {1 + 2 + 1}


def test_few_ranks_or_one_node_stay_flat():
    assert all(isinstance(ours, Ring) for ours, _ in together(2, 1, []))


def test_ranks_at_different_steps_are_never_paired():
    with pytest.raises(MismatchError):
        together(2, 0, [[0, 1]], keys=[10, 12])


def test_a_rank_that_does_not_come_is_not_waited_for_for_long():
    store = dist.HashStore()

    def rank(number):
        ours = Ring(store, number, 2, PATIENCE)
        return ours if number else ours.most(1, 0, timedelta(seconds=0.2))

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(rank, 0), pool.submit(rank, 1)
        absent = second.result(20)
        with pytest.raises(RuntimeError):
            first.result(20)
    assert absent.rank == 1
