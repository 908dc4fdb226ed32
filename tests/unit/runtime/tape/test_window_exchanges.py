"""What ranks exchange in the loss code, as the tape has it."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch

from nandiag.runtime.collectives import own_part
from nandiag.runtime.tape import exchange


@pytest.fixture
def among_ranks(monkeypatch):
    """The newest collective is none of a group of one that an earlier test made."""
    monkeypatch.setattr(exchange, "_is_shared", lambda: True)


def ended(opened, name, *args, **kwargs):
    """A collective of the script's has returned."""
    exchange._ended(opened.capture, name, args, kwargs, sys._getframe(1))


@pytest.mark.parametrize("name", ["all_gather", "recv"])
def test_what_other_ranks_wrote_is_given_whichever_call_made_the_memory(opened, name):
    target = torch.zeros(2, 3)
    assert opened.capture.tape.maker(target) is not None
    ended(opened, name, [target] if name == "all_gather" else target)
    assert opened.capture.tape.maker(target) is None
    assert target.untyped_storage()._cdata in opened.capture.received


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("gather", ["mine", "theirs"], {}), ("gather", ["mine"], {"gather_list": "theirs"}),
        ("gather", [], {"tensor": "mine", "gather_list": "theirs"}),
        ("all_gather", [], {"tensor": "mine", "tensor_list": "theirs"}),
        ("scatter", ["theirs", "mine"], {}), ("reduce_scatter_tensor", ["theirs", "mine"], {}),
        ("reduce_scatter", [], {"output": "theirs", "input_list": "mine"}),
    ],
)  # fmt: skip
def test_what_a_rank_puts_in_is_not_what_it_was_given(opened, name, args, kwargs):
    tensors = {"mine": torch.zeros(2, 3), "theirs": torch.zeros(2, 3)}
    words = {"mine": tensors["mine"], "theirs": [tensors["theirs"]]}
    ended(opened, name, *(words[one] for one in args), **{key: words[one] for key, one in kwargs.items()})
    assert opened.capture.tape.maker(tensors["mine"]) is not None
    assert opened.capture.tape.maker(tensors["theirs"]) is None


@pytest.mark.parametrize(("mine", "outcome"), [(1.0, 5.0), (math.nan, math.nan)])
def test_a_reduction_in_the_loss_code_gives_what_the_ranks_made_of_it_but_hides_no_fault_of_this_one(
    opened, mine, outcome
):
    count = opened.output.detach().sum() * 0
    with torch._C.DisableTorchFunction():
        count.fill_(5.0)  # what the reduction wrote
    ended(opened, "all_reduce", count)
    maker, _ = opened.capture.tape.maker(count)
    assert maker.name == "all_reduce"
    assert maker.function(torch.tensor(mine)).item() == pytest.approx(outcome, nan_ok=True)


@pytest.mark.parametrize(
    ("figure", "taped"),
    [
        (lambda model: torch.ones(()) * 5, True),  # a count
        (lambda model: torch.ones(3) * 5, True),  # several
        (lambda model: sum(one.grad.square().sum() for one in model.parameters()), True),  # a norm
        (lambda model: model.bias.grad * 1.0, False),  # a gradient
        (lambda model: model.bias.grad, False),
    ],
)
def test_what_goes_with_gradients_behind_the_backward_is_what_the_ranks_made_of_it(opened, model, figure, taped):
    opened.output.sum().backward()
    given = figure(model)
    ended(opened, "all_reduce", given)
    maker, _ = opened.capture.tape.maker(given)
    assert (maker.name == "all_reduce") is taped


def test_a_figure_that_is_still_on_its_way_leads_to_what_this_rank_made(opened, among_ranks):
    opened.output.sum().backward()
    figure = torch.ones(()) * 5
    made, _ = opened.capture.tape.maker(figure)
    ended(opened, "all_reduce", figure, async_op=True)
    sent, _ = opened.capture.tape.maker(figure)
    assert isinstance(sent.function, exchange.Mingled)
    assert [word.entry for word in sent.words] == [made]
    assert figure.untyped_storage()._cdata not in opened.capture.received


@pytest.mark.parametrize(("members", "taped"), [((3, 7), True), ((7,), False), (None, True)])
def test_a_gradient_that_is_exchanged_is_this_ranks_part_in_a_replay(opened, model, monkeypatch, members, taped):
    group = None if members is None else SimpleNamespace(members=members)
    monkeypatch.setattr(exchange, "RING", SimpleNamespace(newest=lambda: SimpleNamespace(group=group)))
    opened.output.sum().backward()
    ended(opened, "all_reduce", model.bias.grad)
    marked = [one for one in opened.capture.tape.entries if isinstance(one.function, exchange.Mingled)]
    assert bool(marked) is taped
    for one in marked:
        assert one.in_place
        before = torch.tensor([1.0, 2.0])
        assert one.function(before) is before
        assert one.function.may_be_made


@pytest.mark.parametrize(("source", "received"), [(7, False), (3, True)])
def test_a_rank_that_sends_what_it_has_to_all_receives_nothing(opened, model, monkeypatch, source, received):
    told = []
    monkeypatch.setattr(exchange.dist, "get_rank", lambda: 7)
    monkeypatch.setattr(opened.capture, "births", SimpleNamespace(received=told.append))
    ended(opened, "broadcast", model.bias, source)
    assert [one is model.bias for one in told] == [True] * received


@pytest.mark.parametrize(("name", "again"), [("all_reduce", True), ("all_reduce_coalesced", False)])
def test_an_exchange_that_ranks_could_not_make_again_is_known(opened, among_ranks, model, name, again):
    opened.output.sum().backward()
    given = model.bias.grad
    ended(opened, name, given if again else [given])
    assert [one.again for one in opened.capture.exchanges] == [again]
    with torch._C.DisableTorchFunction():
        unseen = model.weight.grad  # of which the tape knows nothing
    ended(opened, "all_reduce", unseen)
    assert [one.again for one in opened.capture.exchanges] == [again, False]


@pytest.fixture
def second_of_two(monkeypatch):
    """This rank is the second of two, and has just called the collective that is told: ``call(name)``."""
    monkeypatch.setattr(own_part.dist, "get_rank", lambda: 7)

    def call(name):
        newest = SimpleNamespace(op=name, group=SimpleNamespace(members=(3, 7)))
        monkeypatch.setattr(own_part, "RING", SimpleNamespace(newest=lambda: newest))

    return call


@pytest.mark.parametrize(
    ("name", "shapes", "at"),
    [
        ("all_gather", [[(3,), (3,)], (3,)], 1), ("all_gather_into_tensor", [(6,), (3,)], slice(3, 6)),
        ("scatter", [(3,), [(3,), (3,)]], slice(0, 3)), ("reduce_scatter", [(3,), [(3,), (3,)]], slice(0, 3)),
        ("reduce_scatter_tensor", [(3,), (6,)], slice(0, 3)), ("all_to_all", [[(3,), (3,)], [(3,), (3,)]], 1),
        ("all_to_all_single", [(6,), (6,)], slice(3, 6)),
    ],
)  # fmt: skip
def test_what_a_rank_gets_back_of_its_own_leads_to_what_it_put_in(opened, second_of_two, name, shapes, at):
    def made(shape):
        return [made(one) for one in shape] if isinstance(shape, list) else opened.output.new_zeros(shape)

    given = [made(shape) for shape in shapes]
    second_of_two(name)
    ended(opened, name, *given)
    written = given[0][1] if isinstance(given[0], list) else given[0]
    maker, _ = opened.capture.tape.maker(written)
    assert maker.name == name
    put = given[1][1] if isinstance(given[1], list) else given[1]
    assert not maker.function(put).isnan().any()
    bad = maker.function(torch.full_like(put, math.nan))
    found = bad if isinstance(at, int) else bad[at]
    assert found.isnan().all()
    assert int(bad.isnan().sum()) == found.numel()
    if isinstance(given[0], list):
        assert opened.capture.tape.maker(given[0][0]) is None
        assert given[0][0].untyped_storage()._cdata in opened.capture.received
        assert written.untyped_storage()._cdata not in opened.capture.received


def test_parts_of_sizes_of_their_own_are_all_taken_for_received(opened, second_of_two):
    given = [opened.output.new_zeros(6), opened.output.new_zeros(6)]
    second_of_two("all_to_all_single")
    ended(opened, "all_to_all_single", *given, [2, 4], [2, 4])
    assert opened.capture.tape.maker(given[0]) is None


@pytest.mark.parametrize("functional", [False, True])
def test_what_a_functional_collective_returns_in_the_loop_is_made_again_by_all_ranks(opened, functional):
    """Whether a gradient goes back through it or not: it is a call of the loop's, as any other."""
    exchange._between(opened.capture, SimpleNamespace(functional=functional))
    assert opened.capture.communicates is functional
