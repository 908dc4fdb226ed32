"""Where settings come from, which place counts first, and what a wrong one is answered."""

from dataclasses import dataclass, field

import pytest

from nandiag import settings as room
from nandiag.cli import configuration, run
from nandiag.cli.configuration import places
from nandiag.errors import UsageError


@pytest.fixture
def here(tmp_path):
    folder = tmp_path / "project" / "jobs"
    folder.mkdir(parents=True)
    return folder


def project(here, text):
    (here.parent / "pyproject.toml").write_text(text)


def load(here, config=None, given=(), **environ):
    return configuration.load(config, given, {f"NANDIAG_{name}": value for name, value in environ.items()}, here)


def complaint(*args, **kwargs):
    with pytest.raises(UsageError) as caught:
        load(*args, **kwargs)
    return " ".join(caught.value.sentences())


def test_nothing_given_is_the_default(here):
    found = load(here)
    assert found.settings == room.Settings()
    assert found.sources == {}


def test_each_place_goes_before_the_next(here, tmp_path):
    file = tmp_path / "set.yaml"
    file.write_text("max-replays: 2\nnccl: off\ninject: exec\n")
    project(here, "[tool.nandiag]\nmax_replays = 1\nnccl = 'full'\ninject = 'site'\non_anomaly = 'stop'\n")
    found = load(here, str(file), ["max_replays=9"], MAX_REPLAYS="5", INJECT="site")
    assert (found.settings.max_replays, found.settings.inject) == (9, "site")
    assert (found.settings.nccl, found.settings.on_anomaly) == ("off", "stop")
    assert found.sources["max_replays"] == "--set"
    assert found.sources["inject"] == "NANDIAG_INJECT"
    assert found.sources["nccl"] == str(file)
    assert "pyproject.toml [tool.nandiag]" in found.sources["on_anomaly"]


def test_the_nearest_project_file_counts_and_a_strange_one_is_no_matter(here):
    project(here, "[tool.nandiag]\nmax_replays = 1\n")
    assert load(here).settings.max_replays == 1
    (here / "pyproject.toml").write_text("this is no = = toml")
    assert load(here).settings.max_replays == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_replay: 3", ["max_replay", "Did you mean max_replays?"]),
        ("on_anomaly: stopp", ["on_anomaly", "auto, stop, continue, skip", "Did you mean stop?"]),
        ("max_replays: many", ["max_replays", "whole number"]),
        ("max_replays: -1", ["from 0 on"]),
        ("folder: /etc", ["no setting 'folder'"]),
        ("- a list", ["holds no settings"]),
        ("a: [", ["no YAML at line"]),
        ("max_replays:", ["has no value"]),
    ],
)
def test_a_wrong_file_is_named_with_the_nearest_right_one(here, tmp_path, text, words):
    file = tmp_path / "set.yaml"
    file.write_text(text)
    said = complaint(here, str(file))
    assert all(word in said for word in words), said


def test_a_file_that_is_not_there(here):
    assert "cannot be read" in complaint(here, str(here / "none.yaml"))


def test_a_broken_table_of_ours_is_told(here):
    project(here, "[tool.nandiag]\nmax_replays = \n")
    assert "pyproject.toml' cannot be read" in complaint(here)


def test_a_variable_that_is_nearly_one_is_an_error_and_a_strange_one_a_note(here):
    assert "Did you mean NANDIAG_MAX_REPLAYS?" in complaint(here, MAX_REPLAY="3")
    assert "NANDIAG_ON_ANOMALY='stp' is not one of" in complaint(here, ON_ANOMALY="stp")
    (note,) = load(here, QZX="1").notes
    assert "NANDIAG_QZX" in note


def test_set_wants_a_value(here):
    assert "has no value" in complaint(here, given=["nccl"])


@dataclass(frozen=True, slots=True)
class Group:
    loss_spike: float = field(default=8.0, metadata={"help": "How far a loss may jump."})
    enough: int = 4


@dataclass(frozen=True, slots=True)
class Wider(room.Settings):
    hang_timeout: float | None = None
    check_replicas: bool = False
    thresholds: Group = Group()


@pytest.fixture
def wider(monkeypatch):
    # As annotations are in settings.py, where they are read as text.
    for one in Wider.__dataclass_fields__.values():
        one.type = {float | None: "float | None", bool: "bool", Group: "Group"}.get(one.type, one.type)
    for one in Group.__dataclass_fields__.values():
        one.type = getattr(one.type, "__name__", one.type)
    monkeypatch.setattr(room, "Settings", Wider)
    monkeypatch.setattr(places, "Settings", Wider)


def test_a_new_field_and_a_group_of_fields_are_found_by_themselves(wider, here):
    project(here, "[tool.nandiag]\nhang-timeout = 5\n[tool.nandiag.thresholds]\nloss_spike = 3\n")
    found = load(here, given=["check_replicas=true"], THRESHOLDS_ENOUGH="7")
    assert (found.settings.hang_timeout, found.settings.check_replicas) == (5.0, True)
    assert found.settings.thresholds == Group(3.0, 7)
    assert "Did you mean thresholds.loss_spike?" in complaint(here, given=["loss_spikes=2"])
    assert "not a number" in complaint(here, given=["thresholds.loss_spike=much"])
    assert "neither true nor false" in complaint(here, given=["check_replicas=perhaps"])


def test_what_was_set_reaches_the_workers(wider, here):
    told = load(here, given=["thresholds.loss_spike=2.5", "check_replicas=yes"]).settings
    assert room.from_env(told.to_env()) == told


def test_doctor_lists_value_place_and_help(wider, here):
    text = "\n".join(configuration.listed(load(here, given=["thresholds.enough=7"])))
    assert "thresholds.enough" in text
    assert "7             --set" in text
    assert "How far a loss may jump." in text
    assert "One of auto, stop, continue, skip." in text
    assert "run_id" not in text


def test_every_setting_says_what_it_does():
    text = "\n".join(configuration.listed(configuration.load(environ={})))
    silent = [
        line
        for line, after in zip(text.splitlines(), [*text.splitlines()[1:], ""], strict=True)
        if line and line[0].islower() and not line.startswith(("--config",)) and not after.startswith("    ")
    ]
    assert silent == []


def test_a_run_takes_its_settings_from_file_and_words_and_leaves_the_scripts_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set.yaml").write_text("on_anomaly: continue\nmax_replays: 2\n")
    words = [
        "--config",
        "set.yaml",
        "--set",
        "max_replays=7",
        "--fail-on",
        "warning",
        "train.py",
        "--config",
        "own.yaml",
    ]
    arguments = run._read(words)
    told = arguments.settings
    assert (told.on_anomaly, told.max_replays, told.fail_on) == ("continue", 7, "warning")
    assert arguments.script_args == ("--config", "own.yaml")


def test_an_option_goes_before_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run._read(["--set", "nccl=full", "--nccl", "off", "train.py"]).settings.nccl == "off"
