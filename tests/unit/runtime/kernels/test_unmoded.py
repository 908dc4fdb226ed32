"""CTC under a dispatch mode: torch hands lengths on as tensors, and a device refuses those that lie on the CPU."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from nandiag.events import ProbeDark
from nandiag.runtime.kernels.unmoded import unmoded

pytestmark = pytest.mark.filterwarnings("ignore:.*may also be overridden")
BAD, LAST = 3, 5
aten = torch.ops.aten


@pytest.fixture
def as_on_a_device(stand_in):
    """The ops that take lengths as tensors fail, as they do where these lie beside inputs on a device."""

    def refuses(*_):
        raise RuntimeError("Expected all tensors to be on the same device, but got input_lengths is on cpu")

    stand_in("_ctc_loss.Tensor", refuses)
    stand_in("_ctc_loss_backward.Tensor", refuses)


def train(model, optimizer):
    targets = torch.randint(1, 7, (3, 6), generator=torch.Generator().manual_seed(1))
    for step in range(LAST):
        frames, labels = torch.tensor([10, 2 if step == BAD else 10, 10]), torch.tensor([3, 4, 2])
        x = torch.randn(10, 3, 8, generator=torch.Generator().manual_seed(step))
        loss = nn.functional.ctc_loss(model(x).log_softmax(-1), targets, frames, labels)  # too long
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["step", "op"])
def test_a_step_with_ctc_is_run_again_and_watched(work, as_on_a_device, level):
    worker, model = work(level=level), nn.Linear(8, 7)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", BAD), looked.reason
    assert looked.site.source.endswith("# too long")
    assert looked.site.op == "aten._ctc_loss.Tensor"
    assert worker.events(ProbeDark) == []


def test_what_is_watched_comes_to_the_same_bits(work, as_on_a_device):
    def weights():
        torch.manual_seed(0)
        model = nn.Linear(8, 7)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
        return list(model.parameters())

    plain = weights()
    work(level="op")
    for one, other in zip(weights(), plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


class Unmoded(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return unmoded(func)(*args, **(kwargs or {}))


@pytest.mark.parametrize("asked", ["tensors", "lists"])
def test_a_library_is_called_in_the_words_in_which_it_takes_the_call(stand_in, asked):
    called = []

    def made(words):
        return lambda log_probs, *_: (called.append(words), (log_probs.sum((0, 2)), log_probs))[1]

    stand_in("_use_cudnn_ctc_loss.Tensor", lambda *_: asked == "tensors")
    stand_in("_use_cudnn_ctc_loss", lambda *_: asked == "lists")
    stand_in("_cudnn_ctc_loss.Tensor", made("tensors"))
    stand_in("_cudnn_ctc_loss", made("lists"))
    words = torch.zeros(4, 2, 5), torch.ones(4, dtype=torch.int32), torch.tensor([4, 4]), torch.tensor([2, 2]), 0
    with Unmoded():
        assert aten._use_cudnn_ctc_loss.Tensor(*words) is True
        aten._cudnn_ctc_loss.Tensor(*words, True, False)
    assert called == [asked]


def test_an_op_that_is_the_same_under_a_mode_is_left_alone():
    assert unmoded(aten.add.Tensor) is aten.add.Tensor


def test_the_mean_is_taken_of_lengths_that_lie_where_the_loss_does():
    """Torch divides by the tensor that it was given then, on the CPU; of lists it makes one beside the loss."""
    frames, labels = torch.tensor([4, 4]), torch.tensor([3, 0])
    scores, targets = torch.empty(4, 2, 5, device="meta"), torch.ones(2, 3, dtype=torch.long)
    divided = []

    class Seen(Unmoded):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            divided.extend(args if func is aten.div.Tensor else ())
            return super().__torch_dispatch__(func, types, args, kwargs)

    with Seen():
        nn.functional.ctc_loss(scores, targets, frames, labels)
    assert [one.device.type for one in divided] == ["meta", "meta"]
    assert unmoded(aten.clamp_min.default)(labels, 1).tolist() == [3, 1]  # the script's own are where they were
