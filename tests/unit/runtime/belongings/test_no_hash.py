"""A class of the script's whose metaclass says what equals what, and so has no hash, is no hindrance to a replay."""

import torch
from torch import nn


class Schema(type):
    def __eq__(cls, other):
        return isinstance(other, Schema) and cls.__name__ == other.__name__

    __hash__ = None


class Record(metaclass=Schema):
    def __init__(self, size):
        self.seen = [size]


RECORDS = [Record(number) for number in range(3)]


def test_a_step_beside_objects_of_such_a_class_is_run_again(work):
    worker = work()
    net = nn.Linear(4, 4)
    net.record = Record(4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for offset in (9.0, 9.0, -9.0):
        net.record.seen.append(offset)
        loss = torch.log(net(torch.zeros(2, 4)) * 0 + offset).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert [(one.outcome, one.site.op) for one in worker.looked if one.step == 2] == [("found", "aten.log.default")]
    assert net.record.seen == [4, 9.0, 9.0, -9.0]
