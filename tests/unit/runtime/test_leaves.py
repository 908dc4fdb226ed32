"""The walk from the roots of a backward call to its leaves."""

import pytest
import torch

from nandiag.runtime.leaves import leaves_of, names_in_script
from nandiag.runtime.look.called import called


@pytest.mark.parametrize("count", [1, 2, 10, 50])
def test_every_leaf_is_found_however_short_python_s_side_of_a_node_lives(count):
    leaves = [torch.ones(3, requires_grad=True) for _ in range(count)]
    total = sum(((leaf * 2).exp().sum() * 3 for leaf in leaves), torch.zeros(()))
    assert set(map(id, leaves_of([total]))) == set(map(id, leaves))
    assert set(map(id, leaves_of([total * 2, total.exp()]))) == set(map(id, leaves))


def test_what_needs_no_gradient_has_no_leaves():
    assert leaves_of([torch.ones(3), torch.ones(3, requires_grad=True).detach() * 2]) == []


class Net:
    def __init__(self):
        self.w = torch.ones(2)
        self.layers = [{"u": torch.ones(2)}, {"u": torch.ones(2)}]

    @property
    def bias(self):
        raise AssertionError("nothing of the script's is run")


def test_raw_tensors_are_called_as_the_script_calls_them(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "def train(net, params, ask):\n    alone, group = params['b'], [net.w, params['w']]\n"
        "    for one in group:\n        found = ask(group + [alone, net.layers[1]['u']])\n    return found\n"
    )
    space = {}
    exec(compile(script.read_text(), str(script), "exec"), space)  # noqa: S102
    net, params = Net(), {"w": torch.ones(2), "b": torch.ones(2)}
    names = space["train"](net, params, names_in_script)
    wanted = [net.w, params["w"], params["b"], net.layers[1]["u"]]
    assert [names[id(one)] for one in wanted] == ["net.w", "params['w']", "alone", "net.layers[1]['u']"]


def test_what_holds_itself_is_walked_once():
    ring = [torch.ones(1)]
    ring.append(ring)
    assert names_in_script([ring[0]]) == {} or "ring" in names_in_script([ring[0]])[id(ring[0])]


class Asked(list):
    """A list that tells who looks into it."""

    def __init__(self, *items):
        super().__init__(*items)
        self.times = 0

    def __getitem__(self, index):
        self.times += 1
        return super().__getitem__(index)

    def __iter__(self):
        self.times += 1
        return super().__iter__()


class Lazy:
    """As a proxy that makes what it stands for when it is first asked anything."""

    @property
    def __class__(self):
        raise AssertionError("nothing of the script's is run")


@pytest.mark.parametrize("ask", [lambda one, _: names_in_script([one]), lambda _, optimizer: called(optimizer)])
def test_no_code_of_a_proxys_or_a_containers_own_is_run(tmp_path, ask):
    script = tmp_path / "train.py"
    script.write_text("def train(weights, lazy, one, optimizer, ask):\n    return ask(one, optimizer)\n")
    space = {}
    exec(compile(script.read_text(), str(script), "exec"), space)  # noqa: S102
    weights = Asked([torch.ones(2, requires_grad=True)])
    one = list.__getitem__(weights, 0)
    names = space["train"](weights, Lazy(), one, torch.optim.SGD([one], lr=0.1), ask)
    assert set(names.values()) <= {"weights[0]", "one", "optimizer"}
    assert weights.times == 0
