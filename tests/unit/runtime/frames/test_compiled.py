"""Dynamo begins with no frame of ours, and what is compiled runs as it was written where that is asked for."""

from types import SimpleNamespace

import pytest
import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback

from nandiag.runtime.frames import compiled
from nandiag.runtime.frames.compiled import uncompiled


def test_our_files_are_skipped_but_for_what_the_script_calls_there():
    asked = []
    rules = SimpleNamespace(
        check_file=lambda filename, is_inlined_call=False: asked.append((filename, is_inlined_call)),
        SkipResult=lambda skipped, reason: skipped,
    )
    compiled._skip(rules)
    ours = compiled.__file__
    assert rules.check_file(ours) is True
    assert rules.check_file(ours, is_inlined_call=True) is None
    assert rules.check_file("train.py") is None
    assert rules.check_file(None) is None
    assert asked == [(ours, True), ("train.py", False), (None, False)]
    once = rules.check_file
    compiled._skip(rules)
    assert rules.check_file is once


@pytest.mark.filterwarnings("ignore:Dynamo does not know")
def test_within_what_is_compiled_it_runs_as_it_was_written():
    runs, graphs = [], []

    def backend(module, _):
        graphs.append(module)
        return module.forward

    @torch.compile(backend=backend)
    def inner(x):
        return x * 2

    def between(x):
        under_way = get_eval_frame_callback()
        with uncompiled():
            runs.append(inner(x))
        runs.append(get_eval_frame_callback() is under_way)

    @torch.compile(backend=backend)
    def outer(x):
        y = x + 1
        torch._dynamo.graph_break()
        between(y)
        return y - 1

    assert outer(torch.ones(2)).tolist() == [1.0, 1.0]
    assert runs[0].tolist() == [4.0, 4.0]
    assert runs[1] is True
    assert not any("mul" in str(node.target) for graph in graphs for node in graph.graph.nodes)
