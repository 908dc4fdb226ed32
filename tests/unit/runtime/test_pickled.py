"""What stands in the place of torch's own functions is pickled as they are: by where it is found (spawned loaders)."""

import pickle


def by_name(touched):
    return {
        (owner, name): value
        for owner in touched
        for name, value in dict(vars(owner)).items()
        if callable(value) and (not name.startswith("_") or name.endswith("__"))
    }


def is_pickled(value):
    try:
        return pickle.loads(pickle.dumps(value)) is value  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - whatever it says
        return False


def test_each_that_could_be_pickled_still_can(work, touched):
    before = by_name(touched)
    could = {key for key, value in before.items() if is_pickled(value)}
    work()
    changed = {key: value for key, value in by_name(touched).items() if before.get(key) is not value and key in could}
    assert len(changed) > 20
    assert [f"{owner.__name__}.{name}" for (owner, name), value in changed.items() if not is_pickled(value)] == []
