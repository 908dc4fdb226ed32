"""Causes of other packages: found by entry point, asked beside ours, and never in the way when they are broken."""

import sys

import pytest

from nandiag.cli import explain, plugins
from nandiag.cli.main import build
from nandiag.store.layout import RunFolder
from nandiag.store.reader import read_run

SOUND = """
from nandiag.analysis.causes import PROVEN, Cause, Explanation, Suggestion

def explain(facts):
    if facts.op != "rsqrt":
        return None
    ask = Suggestion("Ask the night shift.")
    return Cause("house_rule", ("our ratio is always 0 at night",), (ask,), PROVEN, story=True)

EXPLAIN = Explanation("house_rule", "Ratios of the night shift are zero. Everybody in this house knows that.")
"""
RAISING = "def explain(facts):\n    raise KeyError('their bug')\n"
ODD = "def explain(facts):\n    return {'slug': 'x'}\n"
LEAVING = "import sys\nsys.exit(3)\n"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution whose one entry point is a module with this source."""

    def install(source, name="their_causes"):
        (tmp_path / f"{name}.py").write_text(source)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[nandiag.causes]\n{name} = {name}\n")

    monkeypatch.syspath_prepend(tmp_path)
    plugins.found.cache_clear()
    yield install
    plugins.found.cache_clear()
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


@pytest.fixture
def record(request):
    folder = request.config.rootpath / "tests" / "golden" / "division_by_zero" / "run"
    return read_run([RunFolder(folder)])


def test_a_cause_of_another_package_is_asked(installed, record):
    installed(SOUND)
    verdict = plugins.analysed(record).verdict
    assert (verdict.cause, verdict.mechanism) == ("house_rule", "division_by_zero")
    assert "our ratio is always 0 at night" in verdict.evidence
    assert verdict.suggestions[0].text == "Ask the night shift."


def test_its_slug_can_be_explained(installed, capsys):
    installed(SOUND)
    explain.explain(slug="house_rule")
    assert "night shift" in capsys.readouterr().out
    explain.explain(slug=None)
    assert "house_rule" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (RAISING, "failed: KeyError: 'their bug'"),
        (ODD, "must return a Cause"),
        (LEAVING, "could not be loaded: SystemExit"),
        ("import a_module_that_is_not_there\n", "could not be loaded: ModuleNotFoundError"),
        ("x = 1\n", "could not be loaded: AttributeError"),
    ],
)
def test_a_broken_one_is_a_note_and_the_report_is_as_without_it(installed, record, source, said):
    plain = plugins.analysed(record)
    plugins.found.cache_clear()
    installed(source)
    report = plugins.analysed(record)
    assert report.verdict == plain.verdict
    (note,) = set(report.notes) - set(plain.notes)
    assert note.startswith("The plug-in their_causes of their_causes ")
    assert said in note


def test_two_of_them_do_not_disturb_each_other(installed, record):
    installed(RAISING, "broken_one")
    installed(SOUND, "sound_one")
    report = plugins.analysed(record)
    assert report.verdict.cause == "house_rule"
    assert any("broken_one" in note for note in report.notes)


def test_the_verb_is_there():
    assert "explain" in {command.name for command in build().registered_commands}
