"""Prints results: a line a sample, and the totals of each tool."""

from __future__ import annotations

import statistics

from scoring.grading import PLACE, WORTH
from scoring.runs import BARE, Result

Cases = dict[str, dict[str, Result]]

TITLES = {"anomaly": "detect_anomaly", "hooks": "leaf hooks", "underflow": "DebugUnderflowOverflow"}
COLUMNS = ("detected", *PLACE, "exact", *(key for key in WORTH if key not in PLACE))
CELL = 42


def title(tool: str) -> str:
    """Return the name of a tool as people know it."""
    return TITLES.get(tool, tool)


def heading(tools: list[str]) -> str:
    """Return the line above the rows."""
    return "".join([f"{'sample':40}", *(f"{title(tool):{CELL}}" for tool in tools)]).rstrip()


def row(name: str, results: dict[str, Result], tools: list[str]) -> str:
    """Return the line of one sample."""
    return "".join([f"{name:40}", *(f"{cell(results[tool]):{CELL}}" for tool in tools)]).rstrip()


def cell(result: Result) -> str:
    """Return one tool's result on one sample in a few words."""
    if "skipped" in result:
        return "not installed"
    if result.get("timed_out"):
        return "did not end"
    marks = result.get("marks")
    if marks is None:
        return f"{result['seconds']:.1f} s"
    if "alarm" in marks:
        return "FALSE ALARM" if marks["alarm"] else "silent"
    if not marks["detected"]:
        return "missed"
    wrong = [key for key in (*PLACE, "cause", "fix") if not marks.get(key, True)]
    return ("exact" if marks["exact"] else "found") + (f", not {' '.join(wrong)}" if wrong else "")


def totals(cases: Cases) -> dict[str, dict[str, float | int | None]]:
    """Return, for each tool that was run, counts of right answers, false alarms and the median slowdown."""
    tools = dict.fromkeys(tool for results in cases.values() for tool in results if tool != BARE)
    return {tool: total(cases, tool) for tool in tools}


def total(cases: Cases, tool: str) -> dict[str, float | int | None]:
    """Return the totals of one tool; ``slowdown`` is None where no run went to its end under both."""
    marks = [results[tool]["marks"] for results in cases.values() if "marks" in results.get(tool, {})]
    faults = [mark for mark in marks if "detected" in mark]
    clean = [mark["alarm"] for mark in marks if "alarm" in mark]
    counts = {key: sum(mark.get(key, False) for mark in faults) for key in COLUMNS}
    asked = {f"{key}_of": sum(key in mark for mark in faults) for key in ("fix",)}
    return {
        "faults": len(faults), "clean": len(clean), **counts, **asked,
        "false_alarms": sum(clean), "slowdown": slowdown(cases, tool),
    }  # fmt: skip


def beside(results: dict[str, Result], other: dict[str, Result]) -> dict[str, Result]:
    """Return a sample's results with those of the tools that only another run has, each with that run's bare one."""
    added = {tool: {**result, BARE: other.get(BARE, {})} for tool, result in other.items() if tool not in results}
    return {**results, **added}


def slowdown(cases: Cases, tool: str) -> float | None:
    """Return the median ratio of wall times, start-up included, over runs that succeeded bare and under the tool."""
    under = [(results.get(tool, {}), results) for results in cases.values()]
    pairs = [(result.get(BARE, results.get(BARE, {})), result) for result, results in under]
    ended = [(bare, under) for bare, under in pairs if bare.get("exit_code") == 0 == under.get("exit_code")]
    return round(statistics.median(under["seconds"] / bare["seconds"] for bare, under in ended), 2) if ended else None


def summary(cases: Cases, tools: list[str]) -> str:
    """Return the totals as a table in Markdown, as the README shows them."""
    found = totals(cases)
    shown = [tool for tool in tools if found.get(tool, {}).get("faults") or found.get(tool, {}).get("clean")]
    head = ["", *(title(tool) for tool in shown)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for key in COLUMNS:
        answers = [f"{found[tool][key]} / {found[tool].get(f'{key}_of', found[tool]['faults'])}" for tool in shown]
        lines.append(f"| {key} | {' | '.join(answers)} |")
    alarms = [f"{found[tool]['false_alarms']} / {found[tool]['clean']}" for tool in shown]
    lines.append(f"| false alarms | {' | '.join(alarms)} |")
    lines.append(f"| slowdown | {' | '.join(str(found[tool]['slowdown']) for tool in shown)} |")
    return "\n" + "\n".join(lines)
