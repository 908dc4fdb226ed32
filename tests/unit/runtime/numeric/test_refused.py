"""An error about NaN in numpy's arrays ends the script: the line where numpy complained of it is told."""

import numpy as np
import pytest
import torch
from torch import nn

from nandiag.runtime.numeric.warned import HEARD

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def nothing_heard():
    HEARD.clear()
    yield
    HEARD.clear()


class Curriculum:
    def __init__(self, size):
        self.weight, self.rng = np.ones(size), np.random.default_rng(0)

    def draw(self, many):
        p = self.weight / self.weight.sum()
        return self.rng.choice(len(p), size=many, p=p)

    def feedback(self, drawn, loss):
        self.weight[drawn] *= np.exp(loss)  # grows


def trained(curriculum, steps, losses):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        drawn = curriculum.draw(2)
        model(torch.ones(1, 2)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        curriculum.feedback(drawn, losses(step))
    return optimizer


@pytest.mark.parametrize("how", [{}, {"all": "ignore"}])
def test_probabilities_that_numpy_refuses_lead_to_where_it_complained(work, how):
    worker, curriculum = work(), Curriculum(6)
    before = np.seterr(**how)
    try:
        optimizer = trained(curriculum, 4, lambda step: 1000.0 if step == 3 else 0.1)
        with pytest.raises(ValueError, match="NaN") as caught:
            curriculum.draw(2)
    finally:
        np.seterr(**before)
    worker.sentinel.last.take(caught.value)
    (harm,), looked = worker.harms, worker.looked[0]
    assert (harm.what, harm.step, harm.tensors[0].nan > 0) == ("output", 4, True)
    assert (looked.outcome, looked.source, looked.phase) == ("found", "op", "data")
    lines = {looked.site.source.strip(), *looked.facts.get("heard_also", [])}
    assert any("np.exp(loss)  # grows" in line for line in lines), lines
    assert optimizer


def test_an_error_about_nan_of_which_numpy_never_complained_leads_nowhere(work):
    worker, curriculum = work(), Curriculum(6)
    optimizer = trained(curriculum, 3, lambda _: 0.1)
    curriculum.weight[1] = np.nan
    with pytest.raises(ValueError, match="NaN") as caught:
        curriculum.draw(2)
    worker.sentinel.last.take(caught.value)
    assert not worker.harms
    assert not worker.looked
    assert optimizer


def test_an_error_that_is_of_no_numbers_is_not_of_arrays(work):
    worker, curriculum = work(), Curriculum(6)
    trained(curriculum, 3, lambda step: 1000.0 if step == 2 else 0.1)

    def draw(p):
        raise KeyError("nan", p)

    with pytest.raises(KeyError) as caught:
        draw(curriculum.weight / curriculum.weight.sum())
    worker.sentinel.last.take(caught.value)
    assert not worker.harms
