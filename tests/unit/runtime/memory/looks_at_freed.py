"""Each look is given tensors whose memory was let go of: run by test_there.py in a process of its own."""

import contextlib
import sys

import torch
from torch import nn

from nandiag.runtime.evidence.explain import in_float64, inputs_of, outputs_of
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.op import Op, Spot
from nandiag.runtime.guard import Refused
from nandiag.runtime.levels.ops.watch import OpWatch
from nandiag.runtime.levels.ops.watched import Watched, _told, all_finite
from nandiag.runtime.look.extremes import Extremes, Look
from nandiag.runtime.look.finite import each_norm, fact, is_bad, is_blank, local, norms
from nandiag.runtime.look.frozen import Frozen
from nandiag.runtime.look.losses import Losses
from nandiag.runtime.look.weights import Weights
from nandiag.runtime.memory.kept import copies
from nandiag.runtime.memory.overwritten import Overwritten
from nandiag.runtime.replay.exchanges.carrier import _largest
from nandiag.runtime.replay.rerun import Player
from nandiag.runtime.replay.trace.tracer import Tracer
from nandiag.runtime.replay.update.again import _as_before
from nandiag.runtime.replay.update.instead import Attempt, stand_in
from nandiag.runtime.tape.entries import Given, Tape
from nandiag.runtime.tape.loop.traits import traits
from nandiag.runtime.tape.loop.window import Window
from nandiag.runtime.tape.state import Contents, equal
from nandiag.runtime.together.replicas import _sum

SPOT = Spot(None, None, (), "forward", 0)


def op(tensor):
    return Op(1, torch.ops.aten.mul.Tensor, SPOT, [], [], words=((tensor, tensor), {}), results=[tensor])


def watched(tensor):
    look = Look(tensor)
    one = Watched(1, torch.ops.aten.mul.Tensor, SPOT, [], [], words=((tensor,), {}), looks=[look], made=[look])
    one.tell()
    return one.words, _told(look)


def buffered(tensor):
    module = nn.Module()
    module.register_buffer("buffer", tensor)
    module.attribute = tensor
    frozen = Frozen()
    frozen.take_stock([module], set())
    assert frozen.bad() == []
    norms(frozen.changed())
    Contents([module]).put_back()


def optimised(tensor):
    parameter = nn.Parameter(torch.ones(tensor.shape, dtype=tensor.dtype))
    optimizer = torch.optim.SGD([parameter])
    optimizer.state[parameter] = {"held": tensor}
    assert Weights().bad(optimizer) == []
    with _as_before(optimizer, [parameter], None, Attempt(), first=None):
        pass


def rerun(tensor):
    player = Player(Tracer({}, joint=False), {}, [])
    given = Given(tensor, strong=True)
    given.version, given.written = -1, True
    return player._again(given)


def seen(tensor):
    losses = Losses()
    losses.seen(tensor, 0)
    return [one.value.item() for one in losses.pending]


def overwrite(tensor):
    overwritten = Overwritten(ends=False)
    overwritten.before([tensor])
    overwritten.close()


LOOKS = {
    "each_norm": lambda one: each_norm([one]),
    "norms": lambda one: norms([one]),
    "many norms": lambda one: norms([one] * 5),
    "is_bad": is_bad,
    "is_blank": is_blank,
    "fact": fact,
    "local": local,
    "look": lambda one: Extremes().look(one),
    "all_finite": lambda one: all_finite([one] * 5),
    "watched": watched,
    "op look": lambda one: OpWatch()._look(one),
    "losses": seen,
    "buffered": buffered,
    "optimised": optimised,
    "stand_in": stand_in,
    "rerun": rerun,
    "inputs_of": lambda one: inputs_of(op(one)),
    "outputs_of": lambda one: outputs_of(op(one)),
    "in_float64": lambda one: in_float64(op(one)),
    "storage": storage,
    "stat": lambda one: Tracer({}, joint=False)._stat(one),
    "copies": lambda one: copies((one,), {}),
    "overwritten": overwrite,
    "equal": lambda one: equal(one, one),
    "largest": lambda one: _largest([one]),
    "sum": _sum,
    "before": lambda one: Window(Tape())._before(traits(torch.Tensor.add_), (one, 1.0), {}),
}


def shrunk(make, left=0, view=lambda one: one):
    def new():
        base = make()
        seen = view(base)
        base.untyped_storage().resize_(left)
        return seen

    return new


def sparse():
    values = torch.ones(SIZE)
    held = torch.sparse_coo_tensor(torch.arange(SIZE)[None], values, check_invariants=False)
    held._values().untyped_storage().resize_(0)
    return held


SIZE = 1 << 16
TENSORS = {
    "freed": shrunk(lambda: torch.ones(SIZE)),
    "view": shrunk(lambda: torch.ones(SIZE), 0, lambda one: one.view(256, -1)[3:, 5:]),
    "shrunk": shrunk(lambda: torch.ones(64 * SIZE), 4),
    "half": shrunk(lambda: torch.ones(SIZE).half()),
    "integers": shrunk(lambda: torch.ones(SIZE, dtype=torch.int64)),
    "complex": shrunk(lambda: torch.ones(SIZE, dtype=torch.cfloat)),
    "one of it": shrunk(lambda: torch.ones(SIZE), 0, lambda one: one[SIZE - 1]),
    "sparse": sparse,
    "parameter": lambda: nn.Parameter(shrunk(lambda: torch.ones(SIZE))()),
}
for look in LOOKS.values():
    with torch.no_grad():
        look(torch.ones(SIZE))  # each can be made: what is suppressed below is the tensor's own
for kind, make in TENSORS.items():
    for name, look in LOOKS.items():
        sys.stdout.write(f"{kind}: {name}\n")
        sys.stdout.flush()
        with torch.no_grad(), contextlib.suppress(Exception, Refused):  # an error is no end: the guards see to those
            look(make())
sys.stdout.write("through\n")
