"""Whether tensors are finite: exact in every dtype and layout, and never alarmed by what is only large."""

import itertools
import math

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from nandiag.runtime.look import finite
from nandiag.runtime.look.finite import extent, fact, is_bad, local, norm_of, norms, quiet, read

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
EIGHTS = tuple(
    getattr(torch, name) for name in ("float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz") if hasattr(torch, name)
)
BAD = (math.nan, math.inf, -math.inf)


def largest(dtype):
    return torch.full((7,), torch.finfo(dtype).max, dtype=dtype)


def all_finite(tensors):
    """What a look concludes: the filter first, and the exact look where it is not sure."""
    if all(math.isfinite(value) for value in read(norms(tensors))):
        return True
    return not any(map(is_bad, tensors))


def spoiled(dtype, value, index=3):
    tensor = torch.ones(7, dtype=dtype)
    tensor[index] = value
    return tensor


@pytest.mark.parametrize(("dtype", "value"), list(itertools.product(FLOATS, BAD)))
def test_one_bad_element_is_seen(dtype, value):
    for index in (0, 3, 6):
        bad = spoiled(dtype, value, index)
        assert is_bad(bad)
        assert not math.isfinite(read(norms([bad]))[0])
        assert not all_finite([torch.ones(5, dtype=dtype), bad])


@pytest.mark.parametrize("count", [3, 1 << 14])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_extent_is_that_of_aminmax_whatever_way_it_is_taken(dtype, count):
    data = torch.linspace(-2, 3, count).to(dtype)
    assert [one.item() for one in extent(data)] == [-2.0, 3.0]
    data[1] = -math.inf
    assert [one.item() for one in extent(data)] == [-math.inf, 3.0]
    data[2] = math.nan
    assert all(math.isnan(one.item()) for one in extent(data))


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_large_or_tiny_is_finite(dtype):
    small = torch.full((7,), torch.finfo(dtype).tiny, dtype=dtype)
    for tensor in (largest(dtype), -largest(dtype), small, torch.zeros(7, dtype=dtype)):
        assert not is_bad(tensor)
        assert all_finite([tensor, tensor])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_norm_of_half_precision_does_not_overflow_at_once(dtype):
    many = torch.full((1 << 12,), 3e4, dtype=dtype)
    assert all(map(math.isfinite, read(norms([many]))))
    assert all(map(math.isfinite, read(norms([many, many]))))


@pytest.mark.parametrize("dtype", EIGHTS)
def test_float8(dtype):
    good = torch.ones(6).to(dtype)
    bad = torch.tensor([1.0, math.nan]).to(dtype)
    assert not is_bad(good)
    assert is_bad(bad)
    assert not all_finite([good, bad])
    assert fact(bad).nan == 1


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex(dtype):
    assert not is_bad(torch.ones(3, dtype=dtype))
    assert not is_bad(torch.ones(3, dtype=dtype).conj())
    for value in (complex(0, math.nan), complex(math.inf, 0)):
        bad = torch.tensor([1, value], dtype=dtype)
        assert is_bad(bad)
        assert is_bad(bad.conj())
        assert not all_finite([bad])


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse():
    dense = torch.diag(torch.tensor([1.0, math.nan, 3.0]))
    for sparse in (dense.to_sparse(), dense.to_sparse_csr()):
        assert is_bad(sparse)
        assert not all_finite([sparse])
        assert not is_bad(torch.eye(3).to_sparse())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3, dtype=torch.long), torch.ones(3, dtype=torch.bool), torch.empty(0), torch.empty(3, device="meta"),
        torch.empty(3, 0, dtype=torch.float16),
    ],
)  # fmt: skip
def test_what_holds_no_numbers_is_never_bad(tensor):
    assert local(tensor) is None
    assert not is_bad(tensor)
    assert all_finite([tensor])
    assert fact(tensor).bad == 0


def test_memory_that_was_freed_is_not_read():
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    assert local(tensor) is None
    assert not is_bad(tensor)
    assert norms([tensor]) == []
    (norm,) = norms([tensor, torch.ones(9)])
    assert norm.item() == 3


def test_views_and_expanded_tensors():
    base = spoiled(torch.float32, math.inf)
    assert not is_bad(base[:3])
    assert is_bad(base[3:])
    assert is_bad(torch.tensor(math.nan).expand(4, 4))
    assert is_bad(torch.randn(4, 5).t().contiguous().t() / 0)
    assert is_bad(base.requires_grad_())


@pytest.mark.parametrize(
    "sizes", [(3,), (3, 3), (1 << 16, 1 << 10), (1, 1, 1), (1 << 16, 7, 7, 5000), (1 << 12,) * 18, (5000,) * 15]
)
def test_groups_of_every_size(sizes):
    """Small groups are laid side by side, large ones looked at tensor by tensor: each must see the last element."""
    for place in range(len(sizes)):
        tensors = [torch.ones(size) for size in sizes]
        assert all_finite(tensors)
        tensors[place][-1] = math.nan
        assert not math.isfinite(math.hypot(*read(norms(tensors))))


@pytest.mark.parametrize("sizes", [(1 << 15, 3, 3, 3, 3), (3,) * 5 + (1 << 15,) * 2, (1 << 14,) * 9, (1 << 15, 3)])
def test_of_many_tensors_the_small_ones_are_seen_side_by_side(sizes):
    """As they are on a device, and in half precision on the CPU as well."""
    for place in range(len(sizes)):
        tensors = [torch.ones(size, 2, dtype=torch.bfloat16).t() for size in sizes]
        expected = math.sqrt(2 * sum(sizes))
        assert math.isclose(math.hypot(*read(norms(tensors))), expected, rel_tol=1e-5)
        tensors[place][1, -1] = math.nan
        assert not math.isfinite(math.hypot(*read(norms(tensors))))


def test_mixed_dtypes_are_grouped():
    tensors = [torch.ones(3), torch.ones(3, dtype=torch.float64), torch.ones(2), torch.ones(2, dtype=torch.complex64)]
    scalars = norms(tensors)
    assert sorted(str(one.dtype) for one in scalars) == ["torch.float32", "torch.float64"]
    assert math.isclose(math.hypot(*read(scalars)), 10**0.5, rel_tol=1e-6)
    assert norms([]) == []


def test_a_norm_is_the_norm():
    tensors = [torch.randn(20, 3), torch.randn(7)]
    expected = torch.cat([one.flatten() for one in tensors]).norm()
    torch.testing.assert_close(norms(tensors)[0], expected)
    many = [torch.randn(size) for size in (1 << 16, 9, 100, 1 << 13, 1)]
    torch.testing.assert_close(norms(many)[0], torch.cat(many).norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (7,), (300, 211), (2, 3, 40, 50)])
def test_the_norm_of_one_tensor_is_that_of_torch_however_it_lies(dtype, shape):
    data = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(3))
    for one in (data, data.transpose(0, -1) if data.dim() else data, data[..., ::2] if data.dim() else data):
        assert torch.allclose(norm_of(one), torch.linalg.vector_norm(one))


@pytest.mark.parametrize("value", [*BAD, 3e19])
def test_the_norm_of_one_tensor_is_not_finite_where_an_element_is_not_or_a_square_is_none(value):
    data = torch.ones(100, 100)
    data[50, 50] = value
    before = data.clone()
    assert not math.isfinite(norm_of(data).item())
    assert torch.equal(data.nan_to_num(), before.nan_to_num())


def test_reading_keeps_the_order():
    assert read([torch.tensor(1.5), torch.tensor(2, dtype=torch.long), torch.tensor(math.inf)]) == [1.5, 2, math.inf]


# ---------------------------------------------------------------------- facts


def test_a_fact():
    tensor = torch.tensor([[0.0, -3.0, math.nan], [math.inf, 2.5, -math.inf]])
    seen = fact(tensor, "x")
    assert (seen.name, seen.dtype, seen.shape, seen.numel, seen.device) == ("x", "float32", (2, 3), 6, "cpu")
    assert (seen.nan, seen.posinf, seen.neginf, seen.zeros) == (1, 1, 1, 1)
    assert (seen.min, seen.max, seen.absmax, seen.absmin) == (-3.0, 2.5, 3.0, 2.5)
    assert seen.first_bad == (0, 2)
    assert seen.placement is None


def test_a_fact_on_nothing_but_bad_values():
    seen = fact(torch.full((2, 2), math.nan))
    assert (seen.min, seen.max, seen.absmax, seen.absmin, seen.first_bad) == (None, None, None, None, (0, 0))


@pytest.mark.parametrize(("values", "least"), [([0, 3, -2], 2.0), ([0.0, 0.0], None), ([0.0, -1e-30, 1.0], 1e-30)])
def test_the_least_size_that_is_not_0(values, least):
    assert fact(torch.tensor(values)).absmin == (None if least is None else pytest.approx(least))


def test_a_fact_on_a_scalar():
    assert fact(torch.tensor(math.inf)).first_bad == ()
    assert fact(torch.tensor(4.0)).first_bad is None


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_a_fact_on_whole_numbers(dtype):
    seen = fact(torch.tensor([3, 0, 7, 0], dtype=dtype))
    assert (seen.zeros, seen.min, seen.max, seen.nan, seen.posinf) == (2, 0.0, 7.0, 0, 0)
    assert seen.first_bad is None
    assert fact(torch.tensor([True, False])).zeros == 1
    assert fact(torch.empty(0, dtype=dtype)).min is None


@pytest.mark.parametrize("shape", [(40,), (40, 3), (2, 40), (1, 1, 90), (5, 2, 9)])
def test_chunks_count_each_element_once(shape, monkeypatch):
    tensor = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    tensor.view(-1)[-1] = math.nan
    tensor.view(-1)[1] = math.inf
    whole = fact(tensor)
    monkeypatch.setattr(finite, "_CHUNK", 8)
    assert max(part.numel() for part in finite._chunks(tensor)) <= 8
    assert fact(tensor) == whole
    assert (whole.nan, whole.posinf, whole.zeros) == (1, 1, 1)
    assert whole.max == tensor.numel() - 2


def test_a_fact_does_not_write():
    tensor = spoiled(torch.float32, math.nan).requires_grad_()
    version = tensor._version
    fact(tensor)
    is_bad(tensor)
    assert (tensor._version, tensor.grad) == (version, None)


# ---------------------------------------------------------------------- unseen


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        seen.append(func)
        return func(*args, **(kwargs or {}))


class Ops(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        seen.append(func)
        return func(*args, **(kwargs or {}))


seen = []


def test_our_own_calls_are_seen_by_no_mode_and_make_no_graph():
    seen.clear()
    tensor = torch.ones(3, requires_grad=True)
    with Functions(), Ops():
        with quiet():
            assert not torch.is_grad_enabled()
            result = norms([tensor, tensor])[0] * 2
        assert torch.is_grad_enabled()
        assert seen == []
        tensor + 1
        assert len(seen) == 2
    assert result.grad_fn is None


def test_quiet_puts_grad_mode_back_after_an_error():
    with pytest.raises(ValueError, match="x"), quiet():
        raise ValueError("x")
    assert torch.is_grad_enabled()
    with torch.no_grad():
        with quiet():
            pass
        assert not torch.is_grad_enabled()
