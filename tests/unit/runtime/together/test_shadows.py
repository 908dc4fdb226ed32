"""Groups that stand in for the script's own in a joint replay."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from nandiag.runtime.together import shadows


def test_shadows_that_cannot_all_be_made_leave_none_registered(monkeypatch):
    gone = []

    def make(store, group, patience):
        if group.group_name == "second":
            raise RuntimeError("a member did not come")
        return SimpleNamespace(group_name="nandiag/shadow/" + group.group_name)

    monkeypatch.setattr(shadows, "groups", lambda: [SimpleNamespace(group_name=name) for name in ("first", "second")])
    monkeypatch.setattr(shadows, "_prefixed", lambda name, store: store)
    monkeypatch.setattr(shadows, "_shadow", make)
    monkeypatch.setattr(shadows.torch._C._distributed_c10d, "_unregister_process_group", gone.append)
    with pytest.raises(RuntimeError, match="a member"):
        shadows.Shadows(None, timedelta(seconds=1))
    assert gone == ["nandiag/shadow/first"]
