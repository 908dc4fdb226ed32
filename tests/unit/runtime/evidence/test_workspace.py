"""What an op returns besides its result, for its gradient alone, is told of nobody."""

import torch


def test_what_an_op_returns_for_its_gradient_alone_is_none_of_its_outputs(work):
    worker = work()
    layer = torch.nn.Linear(3, 5)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scores = layer(torch.randn(4, 2, 3)).log_softmax(-1)
    targets = torch.tensor([[1, 1, 1], [1, 2, 3]])
    torch.nn.functional.ctc_loss(scores, targets, (4, 4), (3, 1), reduction="sum").backward()
    optimizer.step()
    worker.sentinel.finish()
    (loss,) = worker.looked[0].outputs
    assert (loss.shape, loss.posinf, worker.looked[0].site.op) == ((2,), 1, "aten._ctc_loss.default")
