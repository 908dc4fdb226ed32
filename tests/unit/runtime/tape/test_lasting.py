"""What lived on behind a step, and what comes out when it is made again."""

import math
from weakref import ref

import pytest
import torch

from nandiag.runtime.memory.there import storage_of
from nandiag.runtime.tape.entry import CALL, Entry
from nandiag.runtime.tape.packed.lasting import GONE, OTHERWISE, UNSEEN, Lasting
from nandiag.runtime.tape.packed.words import Made
from nandiag.runtime.tape.state import modes


def lasting(real, **options):
    """Return the call that made ``real``, and what compares it, used in the step behind."""
    maker, user = (Entry(CALL, torch.add, grad=True, modes=modes()) for _ in range(2))
    user.step, user.words = 1, [Made(maker, 0, ref(real))]
    return maker, Lasting([maker, user], **options)


def test_it_is_given_the_numbers_that_were_used():
    real, again = torch.ones(3), torch.zeros(3)
    maker, compared = lasting(real)
    assert compared.put_right(maker, [again]) == {OTHERWISE}
    assert torch.equal(again, real)
    assert compared.put_right(maker, [again]) == set()


def test_nothing_is_written_into_memory_that_the_script_has():
    real, weight = torch.ones(3), torch.zeros(3)
    maker, compared = lasting(real, brought={storage_of(weight)})
    assert compared.put_right(maker, [weight]) == {OTHERWISE}
    assert not weight.any()


@pytest.mark.parametrize("outputs", [[], [torch.zeros(4)], [torch.zeros(3, dtype=torch.float64)]])
def test_what_cannot_be_compared_is_in_doubt(outputs):
    real = torch.ones(3)
    maker, compared = lasting(real)
    assert compared.put_right(maker, outputs) == {GONE}


def test_what_is_gone_is_in_doubt():
    maker, compared = lasting(torch.ones(3))
    assert compared.put_right(maker, [torch.ones(3)]) == {GONE}


@pytest.mark.parametrize(
    ("value", "made", "wrote"), [(math.inf, 0.0, 1), (2.0, 0.0, 0), (math.nan, math.nan, 0), (math.inf, math.nan, 0)]
)
def test_harm_that_others_wrote_is_no_harm_of_what_is_made_again(value, made, wrote):
    real, again, seen = torch.full((3,), value), torch.full((3,), made), []
    maker, compared = lasting(real, exposed=[ref(real)], others_wrote=seen.append)
    assert compared.put_right(maker, [again]) == {UNSEEN}
    assert [id(one) for one in seen] == [id(again)] * wrote
