"""Where the script's own text sets a learning rate."""

import sys
from types import ModuleType

import pytest
import torch

from nandiag.runtime.early import schedule
from nandiag.runtime.early.compared.restores import restores_at

HAND = "for g in opt.param_groups:\n    g['lr'] = base / (total - warmup)\nprint(g['lr'])\n"
LAMBDA = "s = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: 1 / n)\n"


@pytest.fixture
def script(tmp_path, monkeypatch):
    def write(**files):
        paths = []
        for name, text in files.items():
            module = ModuleType(name)
            module.__file__ = str(tmp_path / f"{name}.py")
            (tmp_path / f"{name}.py").write_text(text)
            paths.append(module.__file__)
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(schedule, "own_files", lambda: paths)
        return schedule.set_at()

    return write


def test_a_rate_that_is_set_by_hand_and_by_a_function(script):
    assert script(one=HAND) == ["one.py:2: g['lr'] = base / (total - warmup)"]
    assert script(one=HAND, two=LAMBDA, bad="a b") == [
        "one.py:2: g['lr'] = base / (total - warmup)",
        f"two.py:1: {LAMBDA.strip()}",
    ]


def test_a_rate_that_moved_was_set_by_a_scheduler_or_by_hand(script):
    made = "opt = SGD(net.parameters(), lr=0.01)\n"
    script(one=made + "s = ExponentialLR(opt, gamma=1.15)\n", two=HAND)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.01)
    assert schedule.rises_at(optimizer) == ()
    optimizer.param_groups[0]["lr"] = 0.02
    lines = ("one.py:2: s = ExponentialLR(opt, gamma=1.15)", "two.py:2: g['lr'] = base / (total - warmup)")
    assert schedule.rises_at(optimizer) == lines
    assert schedule.set_at() == list(lines[1:])  # such a schedule makes no NaN


def test_a_scheduler_sets_the_rate_also_where_it_is_what_it_was(script):
    script(one="s = CosineAnnealingLR(opt, 10)\n")
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.01)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    assert schedule.rises_at(optimizer) == ("one.py:1: s = CosineAnnealingLR(opt, 10)",)


@pytest.mark.parametrize(
    ("line", "sets"),
    [
        ("s = LinearCyclicalScheduler(opt, 'lr', start_value=1e-4, end_value=1.0, cycle_size=200)", True),
        ("s = get_linear_schedule_with_warmup(self.optimizer, 10, 100)", True),
        ("s = create_scheduler(name, optimizer=self.get(0))", True), ("s = WarmupScheduler(opt_d)", True),
        ("noise = DDPMScheduler(num_train_timesteps=100)", False), ("s = profiler.schedule(wait=1)", False),
        ("s = get_schedule(options, steps)", False),
    ],
)  # fmt: skip
def test_another_librarys_scheduler_is_known_by_the_optimizer_that_it_takes(script, line, sets):
    script(one=line + "\n")
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.01)
    optimizer.param_groups[0]["lr"] = 0.02
    assert schedule.rises_at(optimizer) == ((f"one.py:1: {line}",) if sets else ())
    assert schedule.set_at() == []


@pytest.mark.parametrize(
    ("line", "sets"),
    [
        ("metrics['lr'] = opt.param_groups[0]['lr']", False), ("logs['lr'] = rate", False),
        ("opt.param_groups[0]['lr'] = rate", True), ("head, *_ = opt.param_groups\nhead['lr'] = rate", True),
        ("for i, g in enumerate(opt.param_groups):\n    g['lr'] *= 2", True),
        ("def put(param_group):\n    param_group['lr'] = 1", True),
    ],
)  # fmt: skip
def test_a_line_that_only_writes_the_rate_down_sets_none(script, line, sets):
    assert bool(script(one=line)) is sets


def test_of_many_none_is_told(script):
    assert script(one=HAND * 4) == []


def test_only_the_scripts_own_files_are_read(monkeypatch):
    monkeypatch.setattr(schedule, "_MOST_FILES", 100_000)  # other tests have imported many
    assert __file__ in schedule.own_files()
    assert not any("site-packages" in file for file in schedule.own_files())


def test_a_number_that_is_written_down_under_its_name_is_told_beside_who_hands_it_on(script):
    script(one='C = {\n    "lr": 0.1,\n    "eps": 0.0,\n    "decay": x["eps"],\n}\nopt = Adam(w, eps=C["eps"])\n')
    assert schedule.set_at("eps") == ['one.py:3: "eps": 0.0,', 'one.py:6: opt = Adam(w, eps=C["eps"])']
    assert schedule.set_at() == []


ROLLBACK = """
while step < 320:
    loss = train(net)
    if {test}:
        net.load_state_dict(good)
    if {other} % 20 == 0:
        target.load_state_dict(net.state_dict())
"""


@pytest.mark.parametrize(
    ("test", "lines"),
    [
        ("not isfinite(loss)", (5,)),
        ("loss > 100", ()),
        ("dead or torch.isnan(loss).any()", (5,)),
        ("step % 3 == 0", ()),
    ],
)
def test_weights_that_are_put_back_where_what_is_bad_is_asked_for(tmp_path, test, lines):
    path = tmp_path / "train.py"
    path.write_text(ROLLBACK.format(test=test, other="step"))
    assert restores_at([str(path)]) == tuple(f"train.py:{line}" for line in lines)
