"""The walk from the roots of a backward call to its leaves."""

import pytest
import torch

from nandiag.runtime.leaves import leaves_of, names_in_script


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
