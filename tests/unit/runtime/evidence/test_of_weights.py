"""Whether a gradient goes back from an op: what is said of one within a Function's forward."""

import sys

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from nandiag.runtime.evidence.explain import in_float64
from nandiag.runtime.evidence.graph.weights import few_weights, of_weights
from nandiag.runtime.evidence.op import Op, Spot
from nandiag.runtime.frames import stack


def op_on(tensor):
    frames, _ = stack(sys._getframe(1))
    found = Op(0, torch.ops.aten.exp.default, Spot(None, None, frames, "forward", 0), [None], [None])
    found.words = ((tensor,), {})
    return found


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        SEEN[:] = [of_weights(op_on(-x)), of_weights(within(-x))]
        ctx.save_for_backward(x)
        return x.exp()


class Later(Own):
    @staticmethod
    def forward(ctx, x):
        return Own.forward(ctx, x)


SEEN = []


def within(x):
    return op_on(x)


@pytest.mark.parametrize("function", [Own, Later])
def test_within_a_functions_forward_nothing_is_known(function):
    function.apply(torch.ones(3, requires_grad=True))
    assert SEEN == [{}, {}]


@pytest.mark.parametrize("reentrant", [True, False])
def test_where_checkpointing_runs_modules_without_gradients_nothing_is_known_of_them(reentrant):
    layer, seen = torch.nn.Linear(2, 2), []

    def block(x):
        y = layer(x)
        seen.append((y.requires_grad, op_on(y.detach())))
        return y

    loss = checkpoint(block, torch.ones(3, 2, requires_grad=True), use_reentrant=reentrant).sum()
    (trained, op) = seen[0]
    assert trained is not reentrant
    assert of_weights(op, [loss]) == ({} if reentrant else {"of_weights": False, "made_by": []})


def test_of_what_a_tensor_subclass_made_of_its_own_op_nothing_is_known():
    found = op_on(torch.ones(3))
    assert of_weights(found)["of_weights"] is False
    found.apart = True
    assert of_weights(found) == {}


def test_what_made_a_divisor_is_told_too():
    def forward(a, b):
        found = op_on(a)
        found.func, found.words = torch.ops.aten.div.Tensor, ((a, b), {})
        return of_weights(found)

    root = torch.ones(3, requires_grad=True).sqrt()
    assert forward(torch.ones(3), root)["below_by"] == ["SqrtBackward0", "torch::autograd::AccumulateGrad"]


def test_what_is_taken_off_a_constant_is_told_from_the_difference_of_two_that_are_trained():
    z = torch.zeros(3, requires_grad=True)
    off = [1 - z.sigmoid(), torch.ones(3) - z.sigmoid(), torch.sub(1, z.sigmoid())]
    for made in off:
        assert of_weights(op_on(made))["made_by"][:2] == ["RsubBackward1", "SigmoidBackward0"]
    assert of_weights(op_on((z + 1).sigmoid() - z.sigmoid()))["made_by"][:2] == ["SubBackward0", "SigmoidBackward0"]
    assert of_weights(op_on(z.sigmoid() - 1))["made_by"][:2] == ["SubBackward0", "SigmoidBackward0"]


def test_what_a_bound_was_to_keep_is_told_behind_it():
    z = torch.zeros(3, 1, requires_grad=True)
    made = of_weights(op_on(1 - z.sigmoid().squeeze(-1).clamp(1e-7, 1 - 1e-7)))["made_by"]
    assert made[:2] == ["RsubBackward1", "ClampBackward1"]
    assert made[3] == "SigmoidBackward0"


def under(func, tensor):
    found = op_on(tensor)
    found.func = func
    return few_weights(found, lambda leaf: f"w{leaf.numel()}")


def test_the_few_weights_below_zero_that_a_logarithm_is_made_of_are_named():
    log = torch.ops.aten.log.default
    below, above = torch.full((2,), -1.0, requires_grad=True), torch.ones(3, requires_grad=True)
    assert under(log, below.sum() + above.sum()) == {"below_zero": ["w2"], "beside": ["w3"]}
    assert under(log, above.sum()) == {}
    assert under(torch.ops.aten.exp.default, below.sum()) == {}
    assert under(log, torch.full((65,), -1.0, requires_grad=True) * 2) == {}
    assert under(log, sum(torch.full((1,), -1.0, requires_grad=True) * 2 for _ in range(4))) == {}
    assert under(log, torch.ones(2)) == {}
    layer = torch.nn.Linear(2, 2)
    assert under(log, layer(torch.ones(3, 2))) == {}  # of any sign, whatever its weights are


@pytest.mark.parametrize("kept", [torch.exp, torch.square, torch.nn.functional.softplus, lambda w: w.softmax(0),
                                  lambda w: w.reshape(2, 1).sigmoid()])  # fmt: skip
def test_a_weight_that_is_made_positive_already_is_not_blamed_for_being_below_zero(kept):
    log = torch.ops.aten.log.default
    below = torch.full((2,), -1.0, requires_grad=True)
    assert under(log, kept(below).sum() - 5.0) == {}
    assert under(log, kept(below).sum() * torch.full((3,), -1.0, requires_grad=True)) == {"below_zero": ["w3"]}


@pytest.mark.parametrize("signed", [torch.log, torch.sin, torch.cos, lambda w: torch.nn.functional.layer_norm(w, (2,))])
def test_no_weight_is_blamed_for_the_sign_of_what_may_have_any(signed):
    below, above = torch.full((2,), -1.0, requires_grad=True), torch.full((2,), 0.1, requires_grad=True)
    assert under(torch.ops.aten.sqrt.default, signed(above) + below) == {}


def test_elsewhere_what_no_weight_went_into_is_of_the_data():
    def forward(x):
        return of_weights(op_on(x))

    assert forward(torch.ones(3)) == {"of_weights": False, "made_by": []}
    assert forward(torch.ones(3, requires_grad=True))["of_weights"] is True


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e5m2, torch.float8_e4m3fnuz])
def test_a_cast_to_fewer_bits_is_finite_in_float64(dtype):
    found = op_on(torch.tensor([7e4, 1.0]))
    found.func, found.words = torch.ops.aten._to_copy.default, (found.words[0], {"dtype": dtype})
    found.results = [torch.tensor([7e4]).to(dtype)]
    told = in_float64(found)
    assert told["float64_finite"] is True
    assert told["dtype_max"] == torch.finfo(dtype).max
