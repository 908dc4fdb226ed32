"""Where the script's own text sets a learning rate."""

import sys
from types import ModuleType

import pytest

from nandiag.runtime.early import schedule

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
        monkeypatch.setattr(schedule, "_files", lambda: paths)
        return schedule.set_at()

    return write


def test_a_rate_that_is_set_by_hand_and_by_a_function(script):
    assert script(one=HAND) == ["one.py:2: g['lr'] = base / (total - warmup)"]
    assert script(one=HAND, two=LAMBDA, bad="a b") == [
        "one.py:2: g['lr'] = base / (total - warmup)",
        f"two.py:1: {LAMBDA.strip()}",
    ]


def test_of_many_none_is_told(script):
    assert script(one=HAND * 4) == []


def test_only_the_scripts_own_files_are_read(monkeypatch):
    monkeypatch.setattr(schedule, "_MOST_FILES", 100_000)  # other tests have imported many
    assert __file__ in schedule._files()
    assert not any("site-packages" in file for file in schedule._files())
