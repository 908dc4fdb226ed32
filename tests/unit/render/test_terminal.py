"""The summary on a terminal: its words, its width, and nothing a script says can disturb the terminal."""

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from nandiag.analysis.report import Finding, Spread, Suggestion
from nandiag.events import TensorFact
from nandiag.render import markdown, terminal

FOLDER = "nandiag_logs/20260102-030405-train"

HARMED = """\
error[log_of_zero]: -Inf born on rank 3 at step 417 in forward of blocks.2.attn
  --> /home/u/train.py:88 in forward
   |
88 | return torch.log(p) * q
   |        ^^^^^^^^^^^^ the input of log holds 3 zeros in 16 values; log(0) is -inf
   = op: aten.log.default in blocks.2.attn (Attention)
   = input: float32 [4x4], 3 zeros, 0 to 1
   = output: float32 [4x4], 3 -Inf, finite part -2 to 0
   = note: Reproduced: running the step again showed it.
   = help: Keep the argument of the logarithm away from zero.
           x.clamp_min(1e-12).log()
   = spread: gradients of ranks 0-2 and 4-7 at step 417, through the gradient exchange
   = note: rank 3 ran on node0, cuda:3, pid 811
   = resume: from a checkpoint saved before step 417; the weights were finite until then.
  show this again: nandiag report nandiag_logs/20260102-030405-train
  read on:         nandiag explain log_of_zero
"""

HARMED_NARROW = """\
error[log_of_zero]: -Inf born on rank 3 at step 417 in
  forward of blocks.2.attn
  --> /home/u/train.py:88 in forward
   |
88 | return torch.log(p) * q
   |        ^^^^^^^^^^^^
   = op: aten.log.default in blocks.2.attn (Attention)
   = input: float32 [4x4], 3 zeros, 0 to 1
   = output: float32 [4x4], 3 -Inf, finite part -2 to 0
   = note: Reproduced: running the step again showed it.
   = note: the input of log holds 3 zeros in 16 values;
           log(0) is -inf
   = help: Keep the argument of the logarithm away from
           zero.
           x.clamp_min(1e-12).log()
   = spread: gradients of ranks 0-2 and 4-7 at step 417,
             through the gradient exchange
   = note: rank 3 ran on node0, cuda:3, pid 811
   = resume: from a checkpoint saved before step 417; the
             weights were finite until then.
  show this again: nandiag report nandiag_logs/20260102-030405-train
  read on:         nandiag explain log_of_zero
"""


def drawn(report, width=100, *, folder=FOLDER, **options):
    console = Console(
        width=width, color_system=None, force_terminal=False, file=io.StringIO(), highlight=False, _environ={}
    )
    for line in terminal.lines(report, terminal.Place(folder, **options), width):
        console.print(line, soft_wrap=True)
    return console.file.getvalue()


def test_the_whole_diagnostic(harmed):
    assert drawn(harmed) == HARMED


def test_sixty_columns(harmed):
    text = drawn(harmed, 60)
    assert text == HARMED_NARROW
    assert all(cell_len(line) <= 60 for line in text.splitlines() if FOLDER not in line)


def test_a_long_verdict_uses_the_whole_width_of_its_second_line(harmed):
    verdict = replace(harmed.verdict, cause="attention_fully_masked", summary="word " * 40 + "x" * 130)
    lines = drawn(replace(harmed, verdict=verdict), 60).splitlines()
    assert lines[0] == "error[attention_fully_masked]: " + " ".join(["word"] * 6)
    assert lines[1] == "  " + " ".join(["word"] * 11)
    assert all(cell_len(line) <= 60 for line in lines[:6])
    assert "".join(lines[:8]).count("x") >= 130


def test_a_healthy_run_is_one_line(healthy):
    assert drawn(healthy) == f"nandiag: no anomaly in 2 ranks, 200 steps (log: {FOLDER})\n"


def test_a_healthy_run_tells_warnings_and_notes_and_no_more(healthy):
    findings = (
        Finding("script_skip", "warning", "The script itself left out 1 step."),
        Finding("loss_scale_skip", "info", "GradScaler left out 4 steps."),
    )
    text = drawn(replace(healthy, findings=findings, notes=("Rank 1 of 2 left no word.",)))
    assert text.splitlines()[1:] == [
        "   = warning: The script itself left out 1 step.",
        "   = note: Rank 1 of 2 left no word.",
    ]


def test_a_failed_rank_is_said_once(healthy):
    verdict = replace(
        healthy.verdict, summary="rank 1 was killed by signal 9 (SIGKILL); no anomaly in 2 ranks, 3 steps"
    )
    findings = (Finding("rank_killed", "warning", "Rank 1 was killed by signal 9 (SIGKILL)."),)
    assert drawn(replace(healthy, verdict=verdict, findings=findings)).count("SIGKILL") == 1


def test_without_the_command_when_it_was_just_typed(harmed):
    assert "show this again" not in drawn(harmed, again=False)


def test_a_folder_with_spaces_can_be_pasted(harmed):
    *_, line, _ = terminal.lines(harmed, terminal.Place("my logs/run"), 100)
    assert line.plain.endswith("nandiag report 'my logs/run'")


def test_folders_of_several_launchers_can_be_pasted(harmed):
    *_, line, _ = terminal.lines(harmed, terminal.Place("node a/run", more=("b/run",)), 100)
    assert line.plain.endswith("nandiag report 'node a/run' b/run")


def test_what_a_script_says_cannot_reach_the_terminal(at_origin):
    evil = "\x1b[2J\x1b]0;owned\x07\u202ebad\x9b31m"
    report = at_origin(source=f"    x = '{evil}'", file=f"{evil}.py", function=evil, module=evil, op=evil, host=evil)
    verdict = replace(report.verdict, summary=evil, evidence=(evil,), suggestions=(Suggestion(evil, evil),))
    text = drawn(replace(report, verdict=verdict, notes=(evil,)))
    assert not any(char in text for char in "\x1b\x07\x9b\u202e")
    assert text.count("owned") == 1  # in the source line, whose columns must hold: harmless there without its escapes


def test_code_of_several_lines_keeps_them(harmed):
    verdict = replace(harmed.verdict, suggestions=(Suggestion("Do both.", "a = 1\nb = 2"),))
    assert "           a = 1\n           b = 2\n" in drawn(replace(harmed, verdict=verdict))


def test_markup_is_only_text(at_origin):
    report = at_origin(source="    x = a[red] [/red] :smile:", column=None)
    assert "x = a[red] [/red] :smile:" in drawn(report)


def test_long_lists_are_cut(harmed):
    verdict = replace(harmed.verdict, evidence=tuple(f"reason {n}" for n in range(30)))
    text = drawn(replace(harmed, verdict=verdict, notes=tuple(f"hint {n}" for n in range(30))))
    assert "reason 6" in text
    assert "reason 7" not in text
    assert "hint 5" in text
    assert "hint 6" not in text
    assert "and 23 more (nandiag report --json)" in text
    assert "and 24 more (nandiag report --json)" in text


def test_the_same_input_twice_is_shown_once(at_origin, harmed):
    given = harmed.verdict.origin.inputs
    assert drawn(at_origin(inputs=given * 2)) == HARMED


def test_an_origin_without_a_place_shows_none(at_origin):
    report = at_origin(file=None, line=None, source=None, column=None, op=None, host=None, device=None, pid=None)
    text = drawn(report)
    assert "-->" not in text
    assert "= note: the input of log holds 3 zeros" in text


def test_only_what_was_run_again_is_called_reproduced(harmed):
    verdict = replace(harmed.verdict, confidence="inferred", reproduced=None)
    assert "Reproduced" not in drawn(replace(harmed, verdict=verdict))


def test_files_below_the_current_directory_are_named_from_there(harmed):
    verdict = replace(harmed.verdict, evidence=("The op runs inside a library, at /home/u/libs/a.py:3.",))
    report = replace(harmed, verdict=verdict)
    assert "--> train.py:88 in forward" in drawn(report, here="/home/u")
    assert "at libs/a.py:3." in drawn(report, here="/home/u/")
    assert "--> /home/u/train.py:88" in drawn(report, here="/home/u/train")
    assert "--> /home/u/train.py:88" in drawn(report, here="/")


def test_a_sentence_of_evidence_never_stands_beside_the_code(harmed):
    verdict = replace(harmed.verdict, evidence=("Rank 0 ran it again.",))
    assert "= note: Rank 0 ran it again." in drawn(replace(harmed, verdict=verdict))


def test_an_op_that_only_met_the_bad_values_is_not_called_their_op(at_origin):
    bad = TensorFact("float32", (4,), 4, nan=4, name="fc.weight")
    assert "= first used by: aten.log.default" in drawn(at_origin(inputs=(bad,), outputs=()))
    assert "= op: aten.log.default" in drawn(at_origin(inputs=(bad,)))


@pytest.mark.parametrize(("phase", "inside"), [("forward", True), ("init", False), ("checkpoint", False)])
def test_what_made_a_weight_bad_before_its_use_ran_in_no_module(at_origin, phase, inside):
    drawn_so = drawn(at_origin(phase=phase))
    assert "op: aten.log.default" in drawn_so
    assert ("in blocks.2.attn (Attention)" in drawn_so) is inside


@pytest.mark.parametrize("name", ["NO_COLOR", "TTY_COMPATIBLE"])
def test_a_file_gets_no_colour_and_a_hundred_columns(harmed, monkeypatch, name):
    for variable in ("FORCE_COLOR", "COLUMNS", "GITHUB_ACTIONS", "PY_COLORS", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    if name == "NO_COLOR":
        monkeypatch.setenv(name, "1")
    file = io.StringIO()
    terminal.show(harmed, terminal.Place(FOLDER), file)
    assert file.getvalue() == HARMED


def test_a_file_is_as_wide_as_columns_says(harmed, monkeypatch):
    def widest(columns):
        monkeypatch.setenv("COLUMNS", columns)
        file = io.StringIO()
        terminal.show(harmed, terminal.Place(FOLDER), file)
        prose = [line for line in file.getvalue().splitlines() if "note:" in line or line.startswith("error")]
        return max(map(len, prose))

    monkeypatch.setenv("NO_COLOR", "1")
    assert widest("60") <= 60 < widest("160")
    assert widest("none") == widest("0") == widest("100")


def test_a_terminal_gets_colour(harmed, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = Terminal()
    terminal.show(harmed, terminal.Place(FOLDER), coloured)
    assert "\x1b[1;31merror[log_of_zero]" in coloured.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    terminal.show(harmed, terminal.Place(FOLDER), plain)
    assert "\x1b[1;31m" not in plain.getvalue()


def test_an_ascii_stream_takes_any_source_line(at_origin):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    terminal.show(at_origin(source="    größe = '\udc80'", column=None), terminal.Place(FOLDER), file)
    assert b"gr\\xf6\\xdfe = '?'" in raw.getvalue()


def test_where_a_run_went_on_there_is_nothing_to_resume(harmed):
    note = Finding("went_on", "info", "No weight was seen bad, and so the run was not stopped.")
    text = drawn(replace(harmed, findings=(*harmed.findings, note)))
    assert "= note: No weight was seen bad, and so the run was not stopped." in text
    assert "resume" not in text
    assert "resume" in drawn(harmed)


@pytest.mark.parametrize(("cause", "step", "told"), [
    ("lr_divergence", 410, "before step 410, where it began to run away."), ("overflow", 410, "before step 417; the"),
    ("gradient_explosion", 300, "before step 417; the"),
])  # fmt: skip
def test_a_run_that_ran_away_is_resumed_from_before_that(harmed, cause, step, told):
    spike = Finding("loss_spike", "warning", "The loss is 21.", (0,), step)
    away = replace(harmed, verdict=replace(harmed.verdict, cause=cause), findings=(spike,))
    assert f"= resume: from a checkpoint saved {told}" in drawn(away)
    assert f"**Resume** from a checkpoint saved {told[:15]}" in markdown.dumps(away)


def test_a_collapse_beside_another_verdict_is_told(harmed):
    fallen = Finding("loss_scale_collapse", "anomaly", "GradScaler left out 20 steps in a row.")
    assert "= note: GradScaler left out 20 steps" in drawn(replace(harmed, findings=(fallen,)))
    itself = replace(harmed, verdict=replace(harmed.verdict, cause="loss_scale_collapse"), findings=(fallen,))
    assert "GradScaler left out 20 steps" not in drawn(itself)


def test_the_underline_ends_before_the_dots_of_a_cut(at_origin):
    source = "y = f(" + "a + " * 60 + "b)"
    code, under = drawn(at_origin(source=f"{source} + c", column=(4, len(source)))).splitlines()[3:5]
    assert code.endswith("b)...")
    assert under.rindex("^") + 1 == len(code) - len("...")


def test_an_early_warning_bears_its_slug_in_a_healthy_run_and_in_a_harmed_one(healthy, harmed):
    text = "Ranks 0-1, step 40: the gradient norm is 800, 100 times the largest of the last 128 steps (median 2)."
    early = Finding("grad_norm_spike", "warning", text, (0, 1), 40)
    expected = (
        "   = warning[grad_norm_spike]: Ranks 0-1, step 40: the gradient norm is 800, 100 times the largest\n"
        "       of the last 128 steps (median 2).\n"
    )
    for report in (healthy, harmed):
        shown = drawn(replace(report, findings=(*report.findings, early)))
        assert shown.count(expected) == 1
        assert shown.count("grad_norm_spike") == 1


def test_many_early_warnings_are_cut(healthy):
    early = tuple(Finding("loss_spike", "warning", f"Rank 0, step {step}: x.", (0,), step) for step in range(9))
    shown = drawn(replace(healthy, findings=early))
    assert shown.count("warning[loss_spike]") == 5
    assert "and 4 more (nandiag report --json)" in shown


@pytest.mark.parametrize(
    ("name", "line"),
    [("input", "= input: float32"), ("input x", "= input: x: float32"), ("batch[0]", "= input: batch[0]: float32")],
)
def test_what_a_tensor_is_is_said_once(harmed, name, line):
    origin = replace(harmed.verdict.origin, inputs=(replace(harmed.verdict.origin.inputs[0], name=name),))
    text = drawn(replace(harmed, verdict=replace(harmed.verdict, origin=origin)))
    assert line in text
    assert "input: input" not in text


def test_buffers_that_went_bad_are_named(harmed):
    spread = (Spread((3,), 417, "forward", "buffer", names=("norm.running_var",)),)
    text = drawn(replace(harmed, verdict=replace(harmed.verdict, spread=spread)))
    assert "= spread: buffer norm.running_var of rank 3 at step 417" in text


def test_what_to_do_stands_right_behind_why(harmed):
    later = "Rank 0 ran the step again alone and came out finite: the damage was received."
    verdict = replace(harmed.verdict, evidence=("It was seen.", later), reasons=1)
    text = drawn(replace(harmed, verdict=verdict))
    assert text.index("It was seen.") < text.index("= help:") < text.index("Rank 0 ran the step again")


def test_where_to_resume_from_when_weights_were_spoiled_between_steps(harmed):
    between = Finding("spoiled_between", "info", "From a checkpoint saved before anything wrote.", (3,), 29)
    text = drawn(replace(harmed, findings=(between,)))
    assert "= resume: from a checkpoint saved before anything wrote." in text
    assert text.count("= resume:") == 1


def resumed(report, inputs, outputs=(), spread=()):
    origin = replace(report.verdict.origin, inputs=inputs, outputs=outputs)
    text = drawn(replace(report, verdict=replace(report.verdict, origin=origin, spread=spread)), width=200)
    return next(line.partition("= resume: ")[2].strip() for line in text.splitlines() if "= resume:" in line)


def test_what_is_said_of_the_weights_where_to_resume_from(harmed):
    good, bad = TensorFact("float32", (4,), 4, min=-1.0, max=2.0, absmax=2.0), TensorFact("float32", (4,), 4, nan=3)
    large = replace(good, name="slow.weight", max=8e37, absmax=8e37)
    assert resumed(harmed, (good,), (bad,)).endswith("; the weights were finite until then.")
    assert resumed(harmed, (large, good), (bad,)).startswith("from a checkpoint in which slow.weight has its")
    assert "finite until then" not in resumed(harmed, (bad,))
    spread = Spread((3,), 417, "forward", "buffer", names=("norm.running_var",))
    assert "the weights and buffers were finite" in resumed(harmed, (good,), (bad,), (spread,))


def test_a_weight_that_was_bad_from_birth_has_no_checkpoint_to_resume_from(harmed):
    held = Finding("held_bad", "info", "Mend emb.weight first: it was bad before the first step.", (3,), 29)
    text = drawn(replace(harmed, findings=(held,)))
    assert "= resume: mend emb.weight first: it was bad" in text
    assert "from a checkpoint" not in text
