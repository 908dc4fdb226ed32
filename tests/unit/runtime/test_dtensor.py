"""The NaN check on DTensor, seen from one of two ranks whose mesh has no process group: a collective would fail."""

import inspect
import threading
import types
import warnings

import pytest
import torch
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import nandiag.dtensor
from nandiag.errors import NandiagError
from nandiag.runtime import anomaly_mode, dtensor
from nandiag.runtime.anomaly_mode import Support, without_nan_check

ISNAN = torch.ops.aten.isnan.default
ANY = torch.ops.aten._is_any_true.default
# Before, DTensor has fewer rules, and a mesh without a process group can do less.
OLD = torch.__version__ < "2.12"
PARTIAL = [] if OLD else [Partial("sum"), Partial("avg"), Partial("max"), Partial("min")]
OTHERS = [Replicate(), Shard(0), Shard(1), *PARTIAL]
FORMULAS = [torch.max] if OLD else [torch.max, torch.median, torch.nansum]


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch):
    """A process that nobody has enabled it in yet, whatever other tests armed; and it must be so again afterwards."""
    armed = dtensor._ours.items() <= dtensor._handlers().items()
    dtensor.uninstall()
    before = dict(dtensor._handlers())
    monkeypatch.setattr(anomaly_mode, "SUPPORT", Support())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    nandiag.dtensor.disable()
    assert not anomaly_mode.SUPPORT.held
    monkeypatch.undo()
    assert dtensor._handlers() == before
    if armed:
        dtensor.install()


@pytest.fixture
def mesh(monkeypatch):
    if "_rank" in inspect.signature(DeviceMesh).parameters:
        return DeviceMesh("cpu", [0, 1], _init_backend=False, _rank=1)
    # Up to torch 2.7 a mesh asks the default process group for this rank.
    monkeypatch.setattr(device_mesh, "get_rank", lambda: 1)
    return DeviceMesh("cpu", [0, 1], _init_backend=False)


def part(mesh, value, placement=None):
    local = torch.ones(4, 4)
    local[0, 0] = value
    return DTensor.from_local(local, mesh, [placement or Replicate()], run_check=False)


class Given(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, gradient):
        ctx.gradient = gradient
        return tensor.clone()

    @staticmethod
    def backward(ctx, _):
        return ctx.gradient, None


def checked(mesh, value, placement):
    """Have the engine check a gradient of this placement; return what it raised."""
    whole = Replicate() if placement.is_partial() else placement
    leaf = part(mesh, 1.0, whole).requires_grad_()
    with torch.autograd.detect_anomaly():
        try:
            Given.apply(leaf, part(mesh, value, placement)).backward(part(mesh, 1.0, whole))
        except RuntimeError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("placement", OTHERS, ids=str)
def test_the_engine_looks_at_this_ranks_part_alone(mesh, placement):
    with nandiag.dtensor.enabled():
        assert checked(mesh, 1.0, placement) == ""
        assert checked(mesh, float("inf"), placement) == ""
        assert "GivenBackward' returned nan values" in checked(mesh, float("nan"), placement)


def test_without_support_the_check_fails(mesh):
    if dtensor.torch_answers():
        pytest.skip("the installed torch has mended it")
    assert "_is_any_true" in checked(mesh, 1.0, Replicate())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_a_nan_is_seen_in_every_dtype_and_in_no_clean_part(dtype):
    for clean in (torch.zeros(0, 3), torch.ones(3, 3), torch.full((3,), -float("inf"))):
        assert not dtensor._any_nan(clean.to(dtype))
    for place in range(6):
        bad = torch.full((6,), -float("inf"))
        bad[place] = float("nan")
        assert dtensor._any_nan(bad.to(dtype))
        assert dtensor._any_nan(bad.to(dtype).reshape(2, 3).t())


def test_numbers_without_a_nan_are_answered_too():
    assert not dtensor._any_nan(torch.arange(3))


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda one: one.__name__)
def test_a_formula_that_asks_isnan_itself_gets_torchs_answer(mesh, formula):
    gradients = []
    for check in (False, True):
        leaf = part(mesh, 3.0).requires_grad_()
        with nandiag.dtensor.enabled(), torch.autograd.set_detect_anomaly(check):
            formula(leaf * leaf).backward()
        gradients.append(leaf.grad.to_local())
    assert torch.equal(*gradients)


def test_a_hook_that_asks_isnan_gets_a_whole_dtensor(mesh):
    seen = []
    leaf = part(mesh, 1.0).requires_grad_()
    with nandiag.dtensor.enabled(), torch.autograd.detect_anomaly():
        middle = leaf * 2
        middle.register_hook(lambda gradient: seen.append(torch.isnan(gradient)))
        middle.sum().backward()
    assert type(seen[0]) is DTensor
    assert seen[0].dtype is torch.bool


def test_enable_is_idempotent_and_disable_takes_it_back(mesh):
    before = dict(dtensor._handlers())
    nandiag.dtensor.enable()
    nandiag.dtensor.enable()
    assert checked(mesh, 1.0, Shard(0)) == ""
    nandiag.dtensor.disable()
    assert dtensor._handlers() == before
    nandiag.dtensor.disable()


def test_contexts_nest_with_each_other_and_with_enable(mesh):
    with nandiag.dtensor.enabled():
        with nandiag.dtensor.enabled():
            nandiag.dtensor.enable()
        nandiag.dtensor.disable()
        assert checked(mesh, 1.0, Shard(0)) == ""
    with pytest.raises(ZeroDivisionError), nandiag.dtensor.enabled():
        raise ZeroDivisionError
    assert ISNAN not in dtensor._handlers()


def test_threads_hold_it_together():
    failures = []

    def work():
        for _ in range(50):
            with nandiag.dtensor.enabled():
                if ANY not in dtensor._handlers():
                    failures.append("gone while held")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert failures == []


def test_an_answer_of_somebody_else_stays(monkeypatch):
    def theirs(op, args, kwargs):
        return op(args[0]._local_tensor)

    monkeypatch.setitem(dtensor._handlers(), ANY, theirs)
    monkeypatch.setattr(dtensor, "torch_answers", lambda: False)
    with nandiag.dtensor.enabled():
        assert dtensor._handlers()[ANY] is theirs
    assert dtensor._handlers()[ANY] is theirs


def local(op, args, kwargs):
    return op(args[0]._local_tensor)


@pytest.mark.skipif(OLD, reason="a mesh without a process group cannot be asked before")
def test_torchs_own_answer_is_taken_once_it_is_right(monkeypatch):
    handlers = dtensor._handlers()
    monkeypatch.setitem(handlers, ISNAN, local)
    monkeypatch.setitem(handlers, ANY, local)
    assert dtensor.torch_answers()
    before = dict(handlers)
    with nandiag.dtensor.enabled():
        assert dtensor._handlers() == before


def test_an_answer_that_needs_a_collective_or_is_wrong_is_not_right(monkeypatch):
    handlers = dtensor._handlers()
    # What has been proposed for torch: a local truth of `isnan`, which first sums up what is partial.
    monkeypatch.setitem(handlers, ANY, local)
    assert not dtensor.torch_answers()
    monkeypatch.setitem(handlers, ISNAN, lambda op, args, kwargs: torch.zeros((), dtype=torch.bool))
    assert not dtensor.torch_answers()


def test_a_dispatcher_that_is_not_known_is_said_in_a_sentence(monkeypatch):
    monkeypatch.setattr(DTensor, "_op_dispatcher", types.SimpleNamespace())
    with pytest.raises(NandiagError, match="cannot be made to work on DTensor"):
        nandiag.dtensor.enable()
    monkeypatch.undo()


def test_the_check_is_off_inside_and_as_before_after():
    def state():
        return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()

    inside = []

    def inference(fail):
        inside.append(state())
        if fail:
            raise ValueError

    with torch.autograd.detect_anomaly():
        without_nan_check(inference)(fail=False)
        with pytest.raises(ValueError):
            without_nan_check(inference)(fail=True)
        assert state() == (True, True)
    with torch.autograd.detect_anomaly(check_nan=False):
        without_nan_check(inference)(fail=False)
        assert state() == (True, False)
    assert inside == [(True, False)] * 3


def test_pipeline_stages_are_left_unchecked_while_held_and_put_back():
    from torch.distributed.pipelining import stage

    names = [name for name in anomaly_mode._INFERENCES if name in vars(stage.PipelineStage)]
    before = {name: vars(stage.PipelineStage)[name] for name in names}
    assert names
    with nandiag.dtensor.enabled(), nandiag.dtensor.enabled():
        now = {name: vars(stage.PipelineStage)[name] for name in names}
        assert all(now[name].__wrapped__ is before[name] for name in names)
    assert {name: vars(stage.PipelineStage)[name] for name in names} == before


def test_who_does_not_hold_it_cannot_release_it():
    support = Support()
    support.hold("one")
    support.release("other")
    assert support.held
    support.release("one")
    assert not support.held
