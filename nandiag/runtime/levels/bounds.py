"""What the outputs of torch's own modules cannot exceed, by what went in and their weights (worker).

Most of what modules put out need not be read: where a bound of its 2-norm lies far below what a float32 holds, all of
it is finite. To read the weights for that is cheap where they are smaller than the output. Each rule is an inequality
of norms: of Cauchy and Schwarz for products (Golub and Van Loan, Matrix Computations, 2.3), that of a mean square of 1
for normalisations, and |f(x)| <= |x| for activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from nandiag.runtime.look.finite import norm_of
from nandiag.runtime.memory.there import is_there

# Squares of what is smaller, and their sums, are finite in float32 too.
ROOM = 1e15
# Where the weights are larger than this part of an output, it is read itself.
_SHARE = 0.5
_LEAST_EPS, _ROUNDING = 1e-12, 1e-6
_WIDE = frozenset({torch.float32, torch.float64})
_TYPES = frozenset({Tensor, nn.Parameter})
_Rule: TypeAlias = Callable[[Any, float, int], float]
_modes = (torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack)


def bound_of(module: nn.Module, norm: float, output: Tensor) -> float | None:
    """Return what the 2-norm of ``output`` cannot exceed, None where no rule of ours says so, or it is not far below.

    ``norm``: a bound of that of the one tensor that ``module`` was given, which lay on the CPU. No element of either is
    read; the caller keeps autograd off.
    """
    rule = _RULES.get(type(module))
    if rule is None or not (norm < ROOM and _is_plain(output) and _is_as_made(module) and _is_light(module, output)):
        return None
    bound = rule(module, norm, output.numel())
    return bound if bound < ROOM else None


def is_free() -> bool:
    """Whether no mode, of the script's or of ours, stands between a module and what it computes."""
    return not any(many() for many in _modes)


def _is_plain(tensor: Tensor) -> bool:
    plain = type(tensor) in _TYPES and tensor.dtype in _WIDE and tensor.is_cpu and tensor.layout is torch.strided
    return plain and is_there(tensor)


def _is_as_made(module: nn.Module) -> bool:
    """Whether the module's forward is torch's own, and no hook changes what goes in or comes out."""
    hooked = module._forward_hooks or module._forward_pre_hooks
    hooked = hooked or hooks._global_forward_hooks or hooks._global_forward_pre_hooks
    return not hooked and "forward" not in vars(module) and type(module).forward is _FORWARDS[type(module)]


def _is_light(module: nn.Module, output: Tensor) -> bool:
    weights = [one for one in module._parameters.values() if one is not None]
    return sum(map(Tensor.numel, weights)) <= _SHARE * output.numel()


def _norm(weight: Tensor | None) -> float:
    """Return the 2-norm of a weight as it is now: anything may have written into it."""
    if weight is None:
        return 0.0
    return norm_of(weight).item() if _is_plain(weight) else math.inf


# ---------------------------- rules, of the module, a bound of its input's norm, and how many elements come out


def _of_contraction(_: nn.Module, norm: float, __: int) -> float:
    return norm


def _of_leaky(module: nn.LeakyReLU, norm: float, _: int) -> float:
    return norm * max(1.0, abs(module.negative_slope))


def _of_dropout(module: nn.Dropout, norm: float, _: int) -> float:
    return norm / (1.0 - module.p) if module.p < 1.0 else math.inf


def _of_linear(module: nn.Linear, norm: float, size: int) -> float:
    return norm * _norm(module.weight) + math.sqrt(size) * _norm(module.bias)


def _of_convolution(module: Any, norm: float, size: int) -> float:
    if module.padding_mode != "zeros":
        return math.inf
    # No element goes into more products with one filter than that has taps.
    taps = math.prod(module.kernel_size)
    return norm * math.sqrt(taps) * _norm(module.weight) + math.sqrt(size) * _norm(module.bias)


def _of_normalisation(module: Any, norm: float, size: int) -> float:
    """Of one that divides by the deviation, or the root of the mean square, of what it was given itself."""
    least = _LEAST_EPS if module.eps is None else module.eps  # None: that of the dtype
    if least < _LEAST_EPS:
        return math.inf
    weight = 1.0 if module.weight is None else _norm(module.weight)
    inner = math.sqrt(size) + _ROUNDING * norm / math.sqrt(least)
    return weight * inner + math.sqrt(size) * _norm(getattr(module, "bias", None))


def _of_batch_normalisation(module: nn.BatchNorm2d, norm: float, size: int) -> float:
    by_batch = module.training or module.running_mean is None
    return _of_normalisation(module, norm, size) if by_batch else math.inf


def _of_pooling(module: nn.Module, norm: float, size: int) -> float:
    """No element is larger than the largest of what went in, but where the script divides sums by its own number."""
    return math.sqrt(size) * norm if getattr(module, "divisor_override", None) is None else math.inf


_RULES: dict[type[nn.Module], _Rule] = {
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Tanh, nn.Hardswish, nn.Flatten), _of_contraction),
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), _of_dropout),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _of_convolution),
    **dict.fromkeys((nn.LayerNorm, nn.GroupNorm, nn.RMSNorm), _of_normalisation),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _of_batch_normalisation),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d), _of_pooling),
    nn.LeakyReLU: _of_leaky,
    nn.Linear: _of_linear,
}
_FORWARDS = {kind: kind.forward for kind in _RULES}
