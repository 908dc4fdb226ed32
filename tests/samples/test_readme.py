"""The README shows what the tool prints: the report in it is that of a real run of the demo's sample."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
COMMAND = "nandiag run sample_models/ddp_retrieval.py --nproc 2"

# What differs from run to run and from machine to machine, in both texts: the run folder, the host, process ids,
# seconds, the folder of the checkout, and the last digits of numbers.
VARIABLE = (
    (re.compile(r"\d{8}-\d{6}-(\w+?)(-\d+)?\b"), r"TIME-\1"),
    (re.compile(r"ran on [^,\n]+, "), "ran on HOST, "),
    (re.compile(r"\bpid \d+"), "pid PID"),
    (re.compile(r"\b\d+(\.\d+)? s\b"), "SECONDS s"),
    (re.compile(r"/(?:[^\s/:]+/)+(?=sample_models/)"), ""),
    (re.compile(r"\d+\.\d+"), lambda number: f"{float(number[0]):.3g}"),
)


def normal(text):
    for pattern, replacement in VARIABLE:
        text = pattern.sub(replacement, text)
    return [line.rstrip() for line in text.strip().splitlines()]


def shown_in_readme():
    block = re.search(r"<!-- report:begin -->\s*```\w*\n(.*?)```\s*<!-- report:end -->", README.read_text(), re.DOTALL)
    assert block, "README.md has no report between its markers"
    return normal(block[1])


def printed(stderr):
    """The closing report: from its headline to the commands that show it again and explain it."""
    lines = normal(stderr)
    starts = [number for number, line in enumerate(lines) if line.startswith("error[")]
    ends = [number for number, line in enumerate(lines) if line.startswith(("  show this again:", "  read on:"))]
    assert starts, stderr
    assert ends, stderr
    return lines[starts[0] : ends[-1] + 1]


@pytest.mark.samples
def test_the_report_is_what_the_tool_prints(nandiag, tmp_path):
    # The run folder is named relative to where the command was given, as it would be for a reader of the README.
    done = nandiag(*COMMAND.split()[1:2], "--log-dir", tmp_path / "nandiag_logs", *COMMAND.split()[2:])
    assert done.returncode == 3, done.stderr
    told = [line.replace(f"{tmp_path}/", "") for line in printed(done.stderr)]
    assert told == shown_in_readme()


def test_the_readme_and_the_demo_run_the_same_sample():
    demo = (ROOT / "scripts" / "demo").read_text(encoding="utf-8")
    assert f"$ {COMMAND}" in README.read_text(encoding="utf-8")
    assert COMMAND.split()[2] in demo
    assert "--nproc 2" in demo
