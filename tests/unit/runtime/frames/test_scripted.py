"""What TorchScript runs has the script's own lines, and in a replay autograd's own nodes."""

import contextlib
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nandiag.runtime.frames import columns
from nandiag.runtime.frames.scripted import as_written, begins_node, call, scripted
from nandiag.runtime.guard import AnomalyStop

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

BAD = 5
needs_columns = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python tells no columns before 3.11")


@torch.jit.script
def root_of(x: Tensor) -> Tensor:
    return torch.sqrt(x)


@torch.jit.script
def distance(one: Tensor, other: Tensor) -> Tensor:
    squares = (one - other).pow(2).sum(-1) ** 1.0
    return root_of(squares).mean() + (one / (other.abs() + 1)).mean() / 4


class Distance(nn.Module):
    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return torch.sqrt((one - other).pow(2).sum(-1)).mean()

    @torch.jit.export
    def logarithm(self, one: Tensor, other: Tensor) -> Tensor:
        apart = (one - other).abs()
        return torch.log(apart).mean()


def traced(one, other):
    return torch.sqrt((one - other).pow(2).sum(-1)).mean()


class Places(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((func._schema.name, scripted(str(func)), begins_node(str(func))))
        return func(*args, **(kwargs or {}))

    def frames(self, op):
        return next(found for name, found, _ in self.seen if name == op)


def words():
    return torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)


@needs_columns
@pytest.mark.parametrize(
    ("op", "expressions"),
    [
        ("aten::sqrt", ["torch.sqrt(x)", "root_of(squares)"]),
        ("aten::sum", ["(one - other).pow(2).sum(-1)"]),
        ("aten::sub", ["one - other"]),
        ("aten::pow", ["(one - other).pow(2).sum(-1) ** 1.0"]),  # two can be this one: all of the line's expression
        ("aten::abs", ["other.abs()"]),
    ],
)
def test_an_op_has_its_expression_in_each_scripted_function(op, expressions):
    with Places() as places:
        distance(*words())
    frames = places.frames(op)
    told = [columns(frame) for frame in frames]
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert [lines[line - 1][start:end] for line, start, end in told][: len(expressions)] == expressions
    assert frames[-1].code.co_name == "distance"
    assert frames[-1].kind == "user"


def test_outside_of_torchscript_there_are_none():
    with Places() as places:
        torch.sqrt(torch.ones(3))
    assert places.frames("aten::sqrt") is None
    assert not any(one for _, _, one in places.seen)


def test_a_node_for_many_ops_is_known_by_what_it_begins_with():
    for _ in range(4):
        result = distance(*words())
    with Places() as places:
        result = distance(*words())
    assert "Add" not in type(result.grad_fn).__name__
    assert places.seen[2][::2] == ("aten::detach", True)  # behind the words, and ahead of all other ops
    assert places.frames("aten::sqrt")


def test_as_written_has_nodes_of_autograds_own():
    one, other = words()
    for _ in range(4):
        native = call(distance, one, other)
    with as_written():
        again = call(distance, one, other)
    assert type(again.grad_fn).__name__ == "AddBackward0"
    assert torch.equal(native, again)
    assert type(call(distance, one, other).grad_fn).__name__ != "AddBackward0"


def train(loss_of):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with contextlib.suppress(AnomalyStop):
        for step in range(BAD + 2):
            output, target = model(torch.randn(6, 4)), torch.randn(6, 4)
            if step == BAD:
                target[2] = output[2].detach()
            optimizer.zero_grad()
            loss_of(output, target).backward()
            optimizer.step()


def line_of(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize(
    ("make", "op", "text"),
    [
        (lambda: distance, "aten.div.Tensor", "return torch.sqrt(x)"),
        (lambda: torch.jit.script(Distance()).logarithm, "aten.log.default", "return torch.log(apart)"),
    ],
    ids=["function", "method"],
)
def test_the_line_within_a_scripted_loss_is_named(work, make, op, text):
    worker = work()
    train(make())
    looked = worker.looked[0]
    assert (looked.outcome, looked.method, looked.step) == ("found", "replay", BAD), looked
    assert (looked.site.op, looked.site.file, looked.site.line) == (op, __file__, line_of(text))


@pytest.mark.parametrize("level", ["step", "op"])
def test_what_is_differentiated_at_once_has_the_line_of_its_call(work, level):
    worker = work(level=level)
    train(torch.jit.script(Distance()))
    looked = worker.looked[0]
    assert (looked.outcome, looked.phase, looked.step) == ("found", "backward", BAD), looked
    assert (looked.site.line, looked.site.forward_op) == (line_of("loss_of(output, target)"), None)


def test_a_trace_has_the_lines_of_the_script(work):
    worker = work()
    compiled = torch.jit.trace(traced, words())
    assert Path(__file__).name in str(compiled.graph)
    assert "nandiag" not in str(compiled.graph).replace(__file__, "")
    train(compiled)
    looked = worker.looked[0]
    assert (looked.outcome, looked.phase, looked.step) == ("found", "backward", BAD), looked
    assert looked.site.line == traced.__code__.co_firstlineno + 1
