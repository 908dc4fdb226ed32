"""Says where non-finite values are born in a script, by an op tracer that shares no code with nandiag.

The expected files of the samples are checked with it. Run it where the script stood, under torchrun or alone::

    python independent_tracer.py OUT.json SCRIPT [ARGS...]        # one process
    torchrun --nproc-per-node 2 independent_tracer.py OUT.json SCRIPT [ARGS...]      # OUT.json.0, OUT.json.1

Every op of the script runs under a dispatch mode. A *birth* is an op with a NaN in its output and none in its inputs,
or an infinity in its output and finite inputs. Births are inherited along the data flow, by storage, until *harm* is
seen: a non-finite loss handed to ``backward``, gradient handed to ``step``, or parameter after it. The output lists
the births that the first harm descends from, in the order of their time; the forward line of a backward op comes from
the traceback that autograd's anomaly mode keeps with each node.

Steps are those of the optimizer that took the most; where none was made, the gradients taken. DTensors are looked at by
their local part. A collective is waited for as soon as it is issued, or its result could not be looked at. A script
that leaves by itself (an exception, an exit code) while a single number was bad has come to harm by the last such one.
"""

import json
import math
import os
import re
import runpy
import sys
from collections import Counter
from pathlib import Path

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
UNWRITTEN = ("aten.empty", "aten.new_empty")
COLLECTIVES = ("c10d.", "_c10d_functional.")
WRAPPERS = {"DTensor", "AsyncCollectiveTensor"}


def tensors(value):
    found = [local(leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return [value for value in found if type(value).__name__ != "FakeTensor" and not value.is_meta]  # no values


def local(value):
    """The part of a DTensor that this rank holds; any other tensor as it is."""
    part = getattr(value, "_local_tensor", value)
    return part.wait() if type(part).__name__ == "AsyncCollectiveTensor" else part


def has(value, check):
    if value.layout != torch.strided or not (value.is_floating_point() or value.is_complex()) or value.numel() == 0:
        return False
    if value.untyped_storage().nbytes() == 0:
        return False  # FSDP frees what it gathered
    return bool(check(value.detach()).any())


def written(func, args, kwargs):
    """The arguments that an op changes, by its schema."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    marked = [
        argument.name for argument in func._schema.arguments if argument.alias_info and argument.alias_info.is_write
    ]
    return [given.get(name) for name in marked]


def outputs(func, args, kwargs, result):
    """The tensors that an op made; those of a collective, which writes into its arguments, once it is through."""
    if not str(func).startswith(COLLECTIVES):
        return tensors((result, written(func, args, kwargs)))
    if "send" in str(func) or "recv" in str(func):
        return []  # they come in pairs: to wait for one could keep its partner from being issued
    for leaf in tree_leaves(result):
        if isinstance(leaf, torch.ScriptObject):
            leaf.wait()
    if str(func).startswith("_c10d_functional.") and "wait" not in str(func):
        return [torch.ops._c10d_functional.wait_tensor(value) for value in tensors(result)]
    return tensors((result, args[0] if "reduce" in str(func) or "gather" in str(func) else ()))


def nans(value):
    return has(value, torch.isnan)


def infinities(value):
    return has(value, torch.isinf)


class Tracer(TorchDispatchMode):
    def __init__(self, folder, out):
        super().__init__()
        self.folder, self.out = folder, out
        self.steps, self.optimizers, self.done = Counter(), 0, False
        self.births, self.inherited, self.kept = [], {}, []
        self.modules, self.names = [], {}

    @property
    def step(self):
        return max(self.steps.values(), default=0)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.done:
            return func(*args, **kwargs)
        names = {kind.__name__ for kind in types}
        if "FakeTensor" in names:
            return func(*args, **kwargs)
        if names & WRAPPERS:
            return NotImplemented  # its own handler comes next, and its local ops come here
        given = tensors((args, kwargs))
        with _disable_current_modes():
            bad_before = [value for value in given if nans(value) or infinities(value)]
            had_nan = any(nans(value) for value in bad_before)
        result = func(*args, **kwargs)
        if not str(func).startswith(UNWRITTEN):
            with _disable_current_modes():
                self.look(func, (args, kwargs), bad_before, had_nan, outputs(func, args, kwargs, result))
        return result

    def look(self, func, arguments, bad_before, had_nan, results):
        nan, inf = any(map(nans, results)), any(map(infinities, results))
        if not nan and not inf:
            return
        inherited = self.births_of(bad_before)
        if (nan and not had_nan) or not bad_before:
            inherited = inherited | {len(self.births)}
            self.births.append(self.birth(func, arguments, "nan" if nan else "inf", bool(bad_before)))
        for value in results:
            if nans(value) or infinities(value):
                self.inherit(value, inherited)

    def births_of(self, values):
        return set().union(*(self.inherited.get(key_of(value), set()) for value in values))

    def inherit(self, value, births):
        self.kept.append(value)  # or another tensor could take its address
        self.inherited[key_of(value)] = self.inherited.get(key_of(value), set()) | births

    def birth(self, func, arguments, kind, from_infinity):
        backward = torch._C._current_graph_task_id() != -1
        node = torch._C._current_autograd_node() if backward else None
        place = self.frame_now(stop_at_engine=backward) or (node is not None and self.frame_of(node)) or {}
        if node is not None and "AccumulateGrad" in node.name():  # a leaf's hook: what runs there has no forward line
            place = self.frame_now(stop_at_engine=False) or place
        infinite = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, float) and not math.isfinite(leaf)]
        return {
            "op": str(func),
            "kind": kind,
            "step": self.step,
            "phase": "backward" if backward else "forward",
            "node": node and node.name(),
            "module": self.modules[-1] if self.modules else None,
            "given_infinity": from_infinity,
            "scalar": bool(infinite),
            **place,
        }

    def frame_now(self, stop_at_engine):
        frame = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if stop_at_engine and frame.f_code.co_name == "_engine_run_backward":
                return None
            if name.startswith(self.folder):
                return {"file": Path(name).name, "line": frame.f_lineno, "function": frame.f_code.co_name}
            frame = frame.f_back
        return None

    def frame_of(self, node):
        while node is not None:
            for text in reversed(node.metadata.get("traceback_", [])):
                match = FRAME.search(text)
                if match and match["file"].startswith(self.folder):
                    name, line, function = match.groups()
                    return {"file": Path(name).name, "line": int(line), "function": function}
            node = node.metadata.get("parent_")
        return None

    def harm(self, what, values):
        """Write what is known once the first of ``values`` is bad; ``values`` are pairs of a name and a tensor."""
        if self.done:
            return
        with _disable_current_modes():
            local_values = [(name, local(value)) for name, value in values]
            bad = [(name, value) for name, value in local_values if nans(value) or infinities(value)]
        if not bad:
            return
        self.done = True
        births = self.births_of(value for _, value in bad)
        self.write(
            harm={"what": what, "step": self.step, "names": [name for name, _ in bad][:5]},
            births=[self.births[index] for index in sorted(births)],
        )

    def write(self, **found):
        text = json.dumps({**found, "all_births": len(self.births)}, indent=1)
        Path(self.out).write_text(text, encoding="utf-8")

    def watch(self):
        register_optimizer_step_pre_hook(lambda optimizer, *_: self.before(optimizer))
        register_optimizer_step_post_hook(lambda optimizer, *_: self.after(optimizer))
        torch.nn.modules.module.register_module_forward_pre_hook(self.enter)
        torch.nn.modules.module.register_module_forward_hook(self.leave, always_call=True)
        torch.autograd.backward = self.around(torch.autograd.backward)
        plain, watched = torch.autograd.grad, self.around(torch.autograd.grad)

        def grad(*args, **kwargs):
            # Where there is an optimizer it shows the harm; pipelines take such gradients of memory that nobody wrote.
            differentiate = plain if self.optimizers else watched
            return differentiate(*args, **kwargs)

        torch.autograd.grad = grad
        made = Optimizer.__init__

        def make(optimizer, *args, **kwargs):
            self.optimizers += 1
            made(optimizer, *args, **kwargs)

        Optimizer.__init__ = make
        return self

    def around(self, differentiate):
        """Look at the losses before gradients are taken, and count where no optimizer does."""

        def taken(*args, **kwargs):
            if not kwargs.get("create_graph"):
                losses = args[0] if args else kwargs.get("outputs", kwargs.get("tensors"))
                self.harm("loss", [("loss", value) for value in tensors(losses)])
            found = differentiate(*args, **kwargs)
            if not self.optimizers and not kwargs.get("create_graph"):
                self.harm("gradient", [("gradient", value) for value in tensors(found)])
                self.steps["none"] += 1
            return found

        return taken

    def left(self):
        """The script ended early: harm is the last single number that was bad."""
        numbers = [value for value in self.kept if value.numel() == 1]
        self.harm("left", [("number", value) for value in numbers[-1:]])

    def enter(self, module, _):
        if not self.modules:
            self.names = {id(child): clean(name) for name, child in module.named_modules()}
        self.modules.append(self.names.get(id(module), type(module).__name__))

    def leave(self, *_):
        self.modules.pop()

    def before(self, optimizer):
        self.harm("gradient", gradients(optimizer))
        self.harm("state", [("state", value) for value in tensors(list(optimizer.state.values()))])

    def after(self, optimizer):
        self.harm("parameter", [("parameter", value) for group in optimizer.param_groups for value in group["params"]])
        self.steps[optimizer] += 1


def key_of(value):
    return value.untyped_storage()._cdata


def clean(name):
    return ".".join(part for part in name.split(".") if part not in {"module", "_orig_mod"})


def gradients(optimizer):
    parameters = [value for group in optimizer.param_groups for value in group["params"]]
    return [("gradient", value.grad) for value in parameters if value.grad is not None]


def main():
    _, out, script, *rest = sys.argv
    if "RANK" in os.environ and int(os.environ["WORLD_SIZE"]) > 1:
        out = f"{out}.{os.environ['RANK']}"
    script = str(Path(script).resolve())
    sys.argv = [script, *rest]
    sys.path[0] = str(Path(script).parent)
    tracer = Tracer(sys.path[0], out).watch()
    with torch.autograd.set_detect_anomaly(True, check_nan=False), tracer:
        try:
            runpy.run_path(script, run_name="__main__")
        except (Exception, SystemExit):
            tracer.left()
            raise
        finally:
            if not tracer.done:
                tracer.write(harm=None, births=[])


if __name__ == "__main__":
    main()
