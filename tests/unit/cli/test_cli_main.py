"""The command line as a whole: cheap help, version, and sentences instead of tracebacks."""

import os
import subprocess
import sys
import time

import pytest


@pytest.fixture
def python(known_environment):
    def run(*words, env=None, cwd=None):
        command, env = [sys.executable, *words], {**known_environment, **(env or {})}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env, cwd=cwd)

    return run


@pytest.mark.parametrize(
    "words",
    [["--help"], ["run", "--help"], ["report", "--help"], ["run", "-h"], ["--version"], ["run", "--nccl", "off", "-h"]],
)
def test_help_does_not_import_torch(words, python):
    code = (
        "import sys; from nandiag.cli.main import main; sys.argv[1:] = %r; code = main(); "
        "sys.stderr.write('TORCH' if 'torch' in sys.modules else ''); sys.exit(code)"
    )
    done = python("-c", code % (words,))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout


def test_help_shows_the_options_and_their_choices(python):
    text = python("-m", "nandiag", "run", "--help", env={"COLUMNS": "200", "NO_COLOR": "1"}).stdout
    for word in ("--on-anomaly", "auto|stop|continue|skip", "--max-replays", "--torchrun-help", "--nproc", "--log-dir"):
        assert word in text


def test_version(python):
    import nandiag

    done = python("-m", "nandiag", "--version")
    assert done.stdout == f"nandiag {nandiag.__version__}\n"
    assert done.returncode == 0


def test_torchruns_help(python):
    done = python("-m", "nandiag", "run", "--torchrun-help")
    assert done.returncode == 0
    assert "--rdzv-backend" in done.stdout


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["report", "--help"]])
def test_help_costs_little(words, python):
    def imported(code):
        done = python("-c", f"import sys; {code}; sys.stderr.write(' '.join(sys.modules))")
        return set(done.stderr.split())

    # Seconds say nothing on a machine that others use too; what is imported is the same everywhere.
    needed = imported("import typer, rich.console, rich.table")
    beyond = imported(f"from nandiag.cli.main import main; sys.argv[1:] = {words!r}; main()") - needed
    packages = {name.partition(".")[0] for name in beyond}
    assert "nandiag" in packages
    assert packages - {"nandiag", "typer", "rich"} <= set(sys.stdlib_module_names)
    assert len(beyond) <= 140, sorted(beyond)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["run"], 2, "No script was given"),
        (["run", "no_such.py"], 2, "no script 'no_such.py'"),
        (["run", "--on-anomoly", "stop", "t.py"], 2, "--on-anomaly?"),
        (["run", "--json", "no/such/folder/r.json", "t.py"], 2, "--json"),
        (["run", "--log-dir", "t.py/logs", "t.py"], 2, "cannot be written"),
        (["frobnicate"], 2, "frobnicate"),
        (["t.py", "--nproc", "2"], 2, "Did you mean `nandiag run t.py --nproc 2`?"),
        (["--nproc", "2", "run", "t.py"], 2, "Did you mean `nandiag run --nproc 2 t.py`?"),
        (["--check", "report", "R"], 2, "Did you mean `nandiag report --check R`?"),
        (["--level", "op", "t.py"], 2, "Did you mean `nandiag run --level op t.py`?"),
        (["-m", "my.module"], 2, "Did you mean `nandiag run -m my.module`?"),
        (["--dry-run"], 2, "The verbs are run, report"),
        (["run", "--nproc", "0", "t.py"], 2, "--nproc 0: each node needs 1 worker at least."),
        (["report"], 4, "no folder 'nandiag_logs'"),
        (["report", "R", "--json", "r.json"], 2, "nandiag report R --json > r.json"),
    ],
)
def test_mistakes_get_a_sentence(words, code, text, tmp_path, nandiag):
    (tmp_path / "t.py").write_text("")
    done = nandiag(*words, cwd=tmp_path)
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "nandiag_logs").exists()


def test_a_wrong_setting_in_the_environment_is_named(tmp_path, python):
    done = python("-m", "nandiag", "run", "t.py", env={"NANDIAG_NCCL": "deep"}, cwd=tmp_path)
    assert done.returncode == 2
    assert "NANDIAG_NCCL='deep'" in done.stderr


def test_dry_run_shows_the_plan_and_makes_nothing(tmp_path, nandiag):
    (tmp_path / "t.py").write_text("raise SystemExit('it ran')")
    done = nandiag("run", "--dry-run", "t.py", "--nproc", "2", "--lr", "1", cwd=tmp_path)
    assert done.returncode == 0
    assert "torchrun --nproc-per-node 2 --log-dir" in done.stdout
    assert "t.py --lr 1\n" in done.stdout
    assert "NANDIAG_ON_ANOMALY=auto" in done.stdout
    assert f"nandiag_logs{os.sep}{time.strftime('%Y')}" in done.stdout
    assert [child.name for child in tmp_path.iterdir()] == ["t.py"]


@pytest.mark.parametrize("content", ["print('mine')\n", "lr: 3\n", "{"])
def test_a_file_that_is_no_json_is_not_overwritten(content, tmp_path, nandiag):
    (tmp_path / "t.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "mine.py").write_text(content)
    done = nandiag("run", "--json", "mine.py", "t.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "'mine.py' exists and is no JSON" in done.stderr
    assert (tmp_path / "mine.py").read_text() == content
    assert not (tmp_path / "nandiag_logs").exists()


@pytest.mark.parametrize("content", ["", '{"schema": 1}'])
def test_an_older_report_may_be_overwritten(content, tmp_path, nandiag):
    (tmp_path / "t.py").write_text("")
    (tmp_path / "r.json").write_text(content)
    done = nandiag("run", "--dry-run", "--json", "r.json", "t.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("preset", "devices", "said"),
    [("light", ["nvidia0"], True), ("light", [], False), ("full", [], True), ("off", ["nvidia0"], False)],
)
def test_nccl_settings_are_announced_where_nccl_can_run(tmp_path, capsys, monkeypatch, preset, devices, said):
    from nandiag.cli import run as verb
    from nandiag.launch import nccl
    from nandiag.launch.arguments import Arguments
    from nandiag.launch.plan import make
    from nandiag.settings import Settings
    from nandiag.store.layout import RunFolder

    for name in devices:
        (tmp_path / name).touch()
    monkeypatch.setattr(nccl, "_DEVICES", tmp_path)
    arguments = Arguments(Settings(launcher="none", nccl=preset), script="true")
    verb._announce(make(arguments, RunFolder(tmp_path / "run"), {}), arguments)
    assert ("NCCL_DEBUG=" in capsys.readouterr().err) is said
