"""What a torch function does besides returning something, told by its name (worker)."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any, NamedTuple

import torch

from nandiag.runtime.births.known import EXPOSES, is_in_place
from nandiag.runtime.memory.known.unwritten import EMPTY

# These return no tensor that needs a gradient, or change one in place, and still matter.
_MUTATORS = frozenset({"__setitem__", "register_hook", "retain_grad", "grad"})
_RANDOM = frozenset({
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "dropout", "dropout1d",
    "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "bernoulli", "bernoulli_", "multinomial",
    "normal", "normal_", "uniform_", "gumbel_softmax", "poisson", "exponential_", "random_", "rrelu", "cauchy_",
    "log_normal_", "geometric_", "scaled_dot_product_attention", "multi_head_attention_forward",
})  # fmt: skip
# After these a tensor lies in other memory, as when one is loaded: it is taken as it is then.
_INITIALISERS = "torch.nn.init"
_REMAKERS = frozenset({"set_", "resize_", "resize_as_", "share_memory_"})
# These end like functions that write into their first argument, and leave its values alone.
_NO_WRITERS = frozenset({"requires_grad_", "detach_"})
_FILLS = frozenset({"zero_", "fill_"})
_COMPARES = ("eq", "ne", "lt", "le", "gt", "ge")
_QUESTIONS = frozenset({"isfinite", "isnan", "isinf", *_COMPARES, *(f"__{name}__" for name in _COMPARES)})
COPIES = frozenset({"clone", "__deepcopy__"})
_FROM_DATA = frozenset({"from_numpy", "as_tensor", "tensor", "frombuffer", "asarray", "from_dlpack"})

# They tell of what a tensor is, not of its values; as properties, and as methods.
_FORMS = frozenset({
    "shape", "ndim", "dtype", "device", "layout", "requires_grad", "is_leaf", "itemsize", "nbytes", "is_cpu",
    "is_cuda", "is_meta", "is_mps", "is_nested", "is_quantized", "is_sparse", "is_sparse_csr", "names", "dim",
    "ndimension", "size", "stride", "numel", "nelement", "element_size", "storage_offset", "is_contiguous",
    "is_floating_point", "is_complex", "is_signed", "is_conj", "is_neg", "is_inference", "is_pinned",
    "is_same_size", "get_device", "__len__", "has_names",
})  # fmt: skip


class Traits(NamedTuple):
    """What a torch function does besides returning something, and whether it takes memory or data from elsewhere."""

    name: str
    mutates: bool
    in_place: bool
    random: bool
    remakes: bool
    from_data: bool
    careful: bool  # something is done before the call is made
    moves: bool  # what is known of a tensor may be so no more when the call has been made
    plain: bool  # it may be noted now and put on the tape later
    fills: bool  # nothing is left of what stood there
    gives_data: bool  # it is ``p.data = value``
    hands_out: bool  # it returns memory of which nothing is written yet
    exposes: bool  # others than torch may write there from now on
    asks: bool  # whether what it is given is finite
    simple: bool  # nothing but its name and its words need be known
    of_form: bool  # it tells of no value
    writes: bool  # into its first word, which it returns, and nothing else


def traits_of(function: Any) -> Traits:
    """Tell by its name what a function does."""
    name = getattr(function, "__name__", "")
    owner = getattr(getattr(function, "__self__", None), "__name__", "") if name in {"__set__", "__get__"} else ""
    sets, gets = (owner, "") if name == "__set__" else ("", owner or name)
    gradient_set = sets == "grad"
    # By the name too: a library's that stands in the place of one of torch's is handed on by torch as if it were that.
    own = isinstance(function, FunctionType) and hasattr(torch.nn.init, name)
    remakes = name in _REMAKERS or own or getattr(function, "__module__", "") == _INITIALISERS
    in_place, random = is_in_place(name), name in _RANDOM
    mutates, from_data = gradient_set or name in _MUTATORS, name in _FROM_DATA
    moves = mutates or in_place or remakes or name in _NO_WRITERS or name == "__set__"
    plain = not (moves or from_data or name in COPIES or name == "__get__")
    simple = plain and not (random or name in EXPOSES or name in EMPTY or name in _QUESTIONS)
    return Traits(
        name, mutates, in_place, random, remakes, from_data, moves or random or name in EXPOSES, moves, plain,
        name in _FILLS, sets == "data", name in EMPTY, name in EXPOSES, name in _QUESTIONS,
        simple, gets in _FORMS, in_place and not (mutates or random or remakes),
    )  # fmt: skip


# Of torch's own functions alone: one of the script's may hold a batch, and there is a new one each step.
traits = functools.lru_cache(maxsize=4096)(traits_of)
