"""What is exchanged behind a backward, and was made of neither a loss nor a gradient: asked for at each exchange."""

import sys

import torch

from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.exchange import is_apart


def walks(ask):
    """How often the makers of an entry are gone through meanwhile."""
    counts = [0]

    def seen(frame, event, _):
        counts[0] += event == "call" and frame.f_code is Entry.makers.fget.__code__

    sys.setprofile(seen)
    try:
        ask()
    finally:
        sys.setprofile(None)
    return counts[0]


def test_a_number_that_is_added_to_at_each_exchange_is_walked_once(opened):
    capture, many = opened.capture, 60

    def sum_up():
        total = torch.zeros(1)
        for _ in range(many):
            total = total + 1.0
            for _ in range(3):
                assert is_apart(capture.tape.maker(total)[0], capture)

    assert walks(sum_up) <= 3 * many


def test_a_long_chain_that_is_asked_for_once_is_no_matter(opened):
    total = torch.zeros(1)
    for _ in range(3000):
        total = total + 1.0
    assert is_apart(opened.capture.tape.maker(total)[0], opened.capture)


def test_what_holds_anything_of_a_loss_is_not_apart_however_it_is_asked(opened, model):
    tape = opened.capture.tape
    plain = torch.zeros(1) + 1.0
    lost = opened.output.detach().sum()
    both = plain + lost
    later = both * 2
    first = [is_apart(tape.maker(one)[0], opened.capture) for one in (later, plain, both, lost)]
    assert first == [False, True, False, False]
    read = model.weight.grad + 0 if model.weight.grad is not None else lost * 1
    assert not is_apart(tape.maker(read)[0], opened.capture)
