"""The dropout of cuDNN's recurrent layers goes on in a state that each call moves, though its schema says nothing."""

import pytest
import torch
from torch import nn

BAD, LAST = 3, 6


class Recurrent(nn.Module):
    """As ``nn.LSTM`` on a device, which has one state for all its layers of this kind; drops all where that is 3."""

    def __init__(self, state):
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.ones(4)), nn.Linear(4, 2)
        self._state = [lambda: state]  # torch keeps it out of everybody's sight

    def forward(self, x):
        words = x, [self.weight], 4, None, x, None, 2, 4, 0, 2, False, 0.1, True, False, [], self._state[0]()
        return self.out(torch.ops.aten._cudnn_rnn(*words)[0])


@pytest.fixture
def cudnn(stand_in):
    def forward(x, weights, *words):
        state = words[-1].numpy()
        dropped, state[0] = x * weights[0] * (state[0] != BAD), state[0] + 1
        return dropped, x[:1].clone(), x[:0].clone(), x.clone(), weights[0].clone()

    def backward(x, weights, *_):
        return torch.zeros_like(x), torch.zeros_like(x), torch.zeros(0), [torch.ones_like(one) for one in weights]

    stand_in("_cudnn_rnn", forward)
    stand_in("_cudnn_rnn_backward", backward)


def train(state, loss_of):
    model = Recurrent(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(LAST):
        x = torch.randn(3, 4)
        optimizer.zero_grad()
        loss_of(model(x), step).backward()
        optimizer.step()


def test_a_replay_leaves_the_state_where_the_step_had_left_it(work, cudnn):
    worker, state = work(), torch.zeros(8, dtype=torch.uint8)
    train(state, lambda made, step: (made / (made.detach() * (step != BAD))).sum())
    assert worker.looked[0].outcome == "found"
    assert state[0] == LAST


def test_a_finite_run_with_other_numbers_dropped_is_not_complete(work, cudnn):
    worker, state = work(), torch.zeros(8, dtype=torch.uint8)
    train(state, lambda made, _: (made - made[0]).norm() + made.std(0, correction=0).log().clamp(max=1).sum())
    looked = worker.looked[0]
    assert (looked.outcome, looked.facts["complete"], looked.step) == ("finite", False, BAD), looked
    assert "dropped" in looked.reason
