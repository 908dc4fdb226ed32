"""The report as GitHub-flavoured markdown, for step summaries and issues (launcher and reader)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nandiag.analysis.early import SLUGS
from nandiag.analysis.report import Finding, Origin, Report, Verdict
from nandiag.analysis.verdict.resume import TELLS_WHERE, resume_at
from nandiag.events import words
from nandiag.render.lines import hang, nccl
from nandiag.render.lines.spread import spread_lines
from nandiag.render.text import LONGEST, clean, clean_line

MOST = 20
# A colon only where it begins a link or an emoji; a sign or a number at the beginning, where it would begin a list.
_SPECIAL = re.compile(r"[\\`*_\[\]<>#!|~&@$]|:(?=//|[\w+-]+:)|^[-+](?=\s)|(?<=^\d)[.)](?=\s)")
# Where a backslash is not enough on GitHub: HTML, mentions, formulas, emoji and links made of bare addresses.
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;", ":": "&#58;", "$": "&#36;"}


def dumps(report: Report) -> str:
    """Return the report as markdown; all text of scripts and logs is escaped."""
    verdict = report.verdict
    parts = [*_head(report), *_place(verdict.origin), *_reasons(verdict), *_resume(report), *_held(report)]
    if report.left_out is not None:
        left_out = report.left_out
        parts += [f"**Left out:** {escape(left_out.summary)}", *_place(left_out.origin), *_reasons(left_out)]
    parts += _rest(report)
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """Return ``text`` on one line with every character that markdown or HTML could read escaped."""
    return _SPECIAL.sub(lambda match: _ENTITIES.get(match[0], "\\" + match[0]), clean(text).strip())


def _head(report: Report) -> Iterable[str]:
    verdict, run = report.verdict, report.run
    mark = f":x: **{escape(verdict.summary)}**" if verdict.anomaly else f":white_check_mark: {escape(verdict.summary)}"
    warned = any(finding.severity == "warning" for finding in report.findings)
    failed = warned or run.state in {"failed", "signalled"}
    if failed and not verdict.anomaly:
        mark = f":warning: {escape(verdict.summary)}"
    yield "## nandiag"
    yield mark
    if run.command:
        yield _fence(" ".join(run.command))


def _place(origin: Origin | None) -> Iterable[str]:
    if origin is None:
        return
    where = "" if origin.file is None else origin.file + ("" if origin.line is None else f":{origin.line}")
    rows = [
        ("rank", words.ranks(origin.ranks).removeprefix("ranks ").removeprefix("rank ")),
        ("step", str(origin.step) + (f", micro-step {origin.micro_step}" if origin.micro_step else "")),
        ("phase", origin.phase),
        ("module", _module(origin)),
        ("op", origin.op),
        ("backward node", origin.node),
        ("place", where + (f" in {origin.function}" if origin.function and where else "")),
        ("host", origin.host),
        ("device", origin.device),
        *(("input", words.named_tensor(fact, "input")) for fact in origin.inputs[:MOST]),
        *((origin.outputs_are, words.named_tensor(fact, "output")) for fact in origin.outputs[:MOST]),
    ]
    yield _table([(name, text) for name, text in rows if text])
    if origin.source:
        yield _fence(_underlined(origin), "python")


def _module(origin: Origin) -> str | None:
    if origin.module is None:
        return None
    name = origin.module or "the root module"
    return f"{name} ({origin.module_class})" if origin.module_class else name


def _underlined(origin: Origin) -> str:
    line = clean_line((origin.source or "")[:LONGEST].rstrip())
    if origin.column is None:
        return line.strip()
    indent = len(line) - len(line.lstrip())
    first, last = (min(max(column - indent, 0), len(line)) for column in origin.column)
    return f"{line[indent:]}\n{' ' * first}{'^' * (last - first)}".rstrip()


def _reasons(verdict: Verdict) -> Iterable[str]:
    if verdict.origin is None and not verdict.anomaly:
        return
    cause = f"**Cause:** {escape(verdict.cause or 'unknown')}"
    if verdict.mechanism not in {None, verdict.cause}:
        cause += f", by {escape(verdict.mechanism or '')}"
    yield f"{cause} ({escape(verdict.confidence)})"
    yield _bullets(verdict.evidence)
    for suggestion in verdict.suggestions[:MOST]:
        yield f"**Help:** {escape(suggestion.text)}"
        if suggestion.code:
            yield _fence(suggestion.code, "python")


def _resume(report: Report) -> Iterable[str]:
    yield from (f"**Resume:** {escape(one.text)}" for one in report.findings if one.slug in TELLS_WHERE)
    found = resume_at(report)
    if found is not None:
        why = ", where it began to run away" if found[1] else ""
        yield f"**Resume** from a checkpoint saved before step {found[0]}{why}."


def _held(report: Report) -> Iterable[str]:
    """Yield where the ranks stood that waited in vain, each with its line."""
    if report.hang is None:
        return
    yield f"**{escape(report.hang.slug)}:** {escape(report.hang.summary)}" if report.verdict.anomaly else ""
    yield _bullets(hang.texts(report.hang))
    for stand in report.hang.stands:
        if stand.place is not None and stand.place.source:
            yield _fence(f"# {stand.place.file}:{stand.place.line}\n{stand.place.source.strip()}", "python")


def _rest(report: Report) -> Iterable[str]:
    yield _folded("Spread", spread_lines(report.verdict.spread))
    yield _folded("Findings", [_finding(finding) for finding in report.findings])
    yield _folded("NCCL", nccl.choices(report.nccl))
    yield _folded("What could not be seen", report.notes)


def _finding(finding: Finding) -> str:
    slug = f"[{finding.slug}]" if finding.slug in SLUGS else ""
    return f"{finding.severity}{slug}: {finding.text}"


def _folded(title: str, texts: Iterable[str]) -> str:
    every = list(texts)
    if not every:
        return ""
    return f"<details><summary>{title} ({len(every)})</summary>\n\n{_bullets(every)}\n\n</details>"


def _bullets(texts: Iterable[str]) -> str:
    every = list(texts)
    more = [f"- and {len(every) - MOST} more"] if len(every) > MOST else []
    return "\n".join([f"- {escape(text)}" for text in every[:MOST]] + more)


def _table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {escape(text)} |" for name, text in rows)])


def _fence(code: str, language: str = "") -> str:
    """Return a code block whose fence is longer than any run of backticks in the code."""
    lines = [clean_line(line) for line in code.split("\n")]
    ticks = max((len(run) for run in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, ticks + 1)
    return "\n".join([fence + language, *lines, fence])
