"""What is found behind gradients that ranks have exchanged: all of them look together, or it is inferred."""

import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nandiag.events import Looked
from nandiag.runtime.collectives.own_part import call_again
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.exchanges import others, shared
from nandiag.runtime.replay.exchanges.others import with_others, with_own
from nandiag.runtime.replay.exchanges.shared import Shared, may_break_behind
from nandiag.runtime.tape.calls.exchanged import Mingled
from nandiag.runtime.tape.entry import BACKWARD, CALL, ROOT, Entry
from nandiag.runtime.tape.packed.words import Given, Made

CASE = Case(3, [], joint=False, ends=True)
FOUND = Looked("found", "replay", 3, source="op")
MARKED = replace(FOUND, facts={"own_gradients": True, "reconstructed": True})
FINITE = CASE.nothing("finite", "run again, it is finite")
REFUSED = CASE.nothing("refused", "too slow")


def entry(function, *words, kind=CALL, grad=False):
    made = Entry(kind, function, grad=grad, modes=None)
    made.args, made.words = (), list(words)
    return made


def given():
    return Given.__new__(Given)


TENSOR = torch.ones(1)
EXCHANGE = Mingled("all_reduce", (), {})
GRADIENT = entry(torch.Tensor.grad.__get__)
END = entry(None, kind=BACKWARD)


def op(index):
    return SimpleNamespace(index=index)


@pytest.mark.parametrize(
    ("word", "hangs"),
    [
        (None, False),  # made of numbers: it is as it was, whatever the others gave
        (Made(entry(torch.log), 0, weakref.ref(TENSOR)), False),
        (Made(GRADIENT, 0, weakref.ref(TENSOR)), True),
        (given(), True),  # what that holds is not known
    ],
)
def test_what_ran_behind_an_exchange_may_hang_on_the_others_part(word, hangs):
    behind = entry(torch.div, *([] if word is None else [word]))
    seen = Shared([END, entry(EXCHANGE), behind], again=False)
    assert seen.played(EXCHANGE, 4) is EXCHANGE
    seen.ran(behind, 4, 6)
    assert ("own_gradients" in with_own(FOUND, op(5), seen).facts) is hangs
    assert "own_gradients" not in with_own(FOUND, op(4), seen).facts  # it came before


def test_nothing_hangs_on_the_others_where_they_are_there():
    seen = Shared([END, entry(EXCHANGE)], again=True)
    assert seen.played(EXCHANGE, 4) == EXCHANGE.again
    assert with_own(FOUND, op(5), seen) is FOUND


@pytest.fixture
def ddp(monkeypatch):
    """A DDP model of two ranks, each of which has given the gradients that the test has: ``ddp(others)``."""

    def reduced(gradient, group):
        gradient.add_(others.pop(0) / 2)

    others = []
    monkeypatch.setattr(shared.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(shared.dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(shared.dist, "all_reduce", reduced)
    model = torch.nn.Linear(2, 1)
    return SimpleNamespace(
        module=model, reducer=None, require_backward_grad_sync=True, process_group="group", parameters_to_ignore=[],
        others=others,
    )  # fmt: skip


def test_ddp_leaves_the_mean_of_all_ranks(ddp):
    ddp.module.weight.grad = torch.tensor([[2.0, 0.0]])
    ddp.others += [torch.tensor([[4.0, 2.0]]), torch.zeros(1)]
    end = entry(None, kind=BACKWARD)
    Shared([entry(ddp, kind=ROOT), END, end], again=True).backward_ended(end, 7)
    assert ddp.module.weight.grad.tolist() == [[3.0, 1.0]]
    assert ddp.module.bias.grad is None  # no rank has one


def test_what_comes_behind_ddps_exchange_may_hang_on_it(ddp):
    seen = Shared([entry(ddp, kind=ROOT), END], again=False)
    seen.backward_ended(entry(None, kind=BACKWARD), 3)  # an earlier micro-batch's: nothing is exchanged yet
    assert with_own(FOUND, op(9), seen) is FOUND
    seen.backward_ended(END, 7)
    assert "own_gradients" in with_own(FOUND, op(9), seen).facts


@pytest.mark.parametrize(
    ("behind", "breaks"),
    [
        ([EXCHANGE, torch.div], True), ([torch.div, EXCHANGE], False), ([torch.div], False),
        ([EXCHANGE, torch.nn.utils.clip_grad_norm_], False), ([], False),
    ],
)  # fmt: skip
def test_ranks_come_together_for_calls_that_may_break_by_what_was_exchanged(behind, breaks):
    assert may_break_behind([END, *map(entry, behind)]) is breaks


def test_ranks_come_together_for_calls_behind_ddp(ddp):
    assert may_break_behind([entry(ddp, kind=ROOT), END, entry(torch.div)])
    ddp.require_backward_grad_sync = False
    assert not may_break_behind([entry(ddp, kind=ROOT), END, entry(torch.div)])


@pytest.fixture
def ranks(monkeypatch):
    """The other ranks, who ``come`` if so set; ``asked`` is what this one did."""
    seen = SimpleNamespace(come=True, asked=[])
    monkeypatch.setattr(others, "has_peers", lambda: True)
    monkeypatch.setattr(others, "possible", lambda: True)
    monkeypatch.setattr(others, "stays_away", lambda name: seen.asked.append("away"))
    monkeypatch.setattr(others, "all_come", lambda name, seconds: seen.asked.append("came") or seen.come)
    return seen


def together(looked, again=FOUND, case=CASE, exchanges=(), behind=torch.div):
    entries = [END, entry(EXCHANGE), entry(behind)]
    capture = SimpleNamespace(exchanges=list(exchanges), step_seconds=1.0)
    return with_others(case, looked, entries, capture, lambda one: again if one.joint and one.shares else None)


@pytest.mark.parametrize(("looked", "asked"), [(FOUND, "away"), (REFUSED, "away"), (MARKED, "came"), (FINITE, "came")])
def test_a_rank_that_has_its_own_fault_keeps_nobody_waiting(ranks, looked, asked):
    told = together(looked)
    assert ranks.asked == [asked]
    assert told is (FOUND if asked == "came" else looked)


def test_what_the_ranks_cannot_see_together_stays_what_it_was(ranks):
    assert together(MARKED, again=REFUSED) is MARKED
    ranks.come = False
    assert together(MARKED) is MARKED
    assert together(MARKED, exchanges=[SimpleNamespace(again=False)]) is MARKED
    assert ranks.asked == ["came", "came", "away"]


def test_a_rank_that_does_nothing_there_keeps_nobody_waiting(ranks):
    """Another may: it takes a norm for its log."""
    assert together(FINITE, behind=torch.nn.utils.clip_grad_norm_) is FINITE
    assert ranks.asked == ["away"]


@pytest.mark.parametrize("case", [replace(CASE, ends=False), replace(CASE, handed=True), replace(CASE, apart=True)])
def test_nobody_is_waited_for_where_the_run_goes_on(ranks, case):
    assert together(MARKED, case=case) is MARKED
    assert ranks.asked == []


@pytest.mark.parametrize("words", [((), {"async_op": True}), (("sum", None, True), {})])
def test_an_exchange_is_waited_for_when_it_is_made_again(monkeypatch, words):
    called = []

    def all_reduce(tensor, op="sum", group=None, async_op=False):
        called.append((tensor, op, group, async_op))

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    call_again("all_reduce", ("tensor", *words[0]), words[1])
    assert called == [("tensor", "sum", None, False)]
