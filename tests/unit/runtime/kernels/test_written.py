"""Batch norms write running statistics that their schemas do not mark: which arguments those are."""

import pytest
import torch

from nandiag.runtime.kernels.written import _STATISTICS, targets_of, unsaid

ATEN = torch.ops.aten


@pytest.mark.parametrize("name", _STATISTICS)
def test_they_are_where_the_schema_has_them(name):
    schema = getattr(ATEN, name.partition("::")[2]).default._schema
    found = [one.name for one in schema.arguments[_STATISTICS[name]]]
    assert found == ["running_mean", "running_var"]


def reads_them(name):
    return "backward" in name or "functional" in name or "no_training" in name or "no_update" in name


def test_no_op_that_takes_them_is_left_out():
    schemas = [
        one for one in torch._C._jit_get_all_schemas() if one.name.startswith("aten::") and not one.overload_name
    ]
    taking = {one.name for one in schemas if any(word.name == "running_mean" for word in one.arguments)}
    normal = {one for one in taking if "batch_norm" in one and not reads_them(one)}
    assert normal == set(_STATISTICS)


def test_what_is_only_read_is_not_written():
    x, mean, invstd = torch.rand(2, 3), torch.zeros(3), torch.ones(3)
    args = (x, None, None, mean, invstd, 1e-5)
    assert unsaid(ATEN.batch_norm_elemt.default, args) == []
    out = torch.rand(2, 3)
    assert targets_of(ATEN.batch_norm_elemt.default, args, [x, mean, invstd], [out], mutable=False) == [out]


@pytest.mark.parametrize(("func", "rest"), [
    (ATEN.batch_norm_update_stats.default, lambda mean, var: (mean, var, 0.1)),
    (ATEN.native_batch_norm.default, lambda mean, var: (None, None, mean, var, True, 0.1, 1e-5)),
])  # fmt: skip
def test_what_is_told_is_what_changes(func, rest):
    mean, var = torch.full((3,), 5.0), torch.full((3,), 7.0)
    args = (torch.rand(4, 3), *rest(mean, var))
    func(*args)
    assert not torch.equal(mean, torch.full((3,), 5.0))
    found = unsaid(func, args)
    assert len(found) == 2
    assert found[0] is mean
    assert found[1] is var


def test_without_statistics_there_are_none():
    assert unsaid(ATEN._native_batch_norm_legit.no_stats, (torch.rand(4, 3), None, None, True, 0.1, 1e-5)) == []
