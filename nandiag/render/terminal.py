"""The report on a terminal, in the manner of a compiler's diagnostic (launcher, on stderr; reader, on stdout)."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from nandiag.analysis.early import SLUGS
from nandiag.analysis.hangs.told import Hang
from nandiag.analysis.report import Finding, Origin, Report, Verdict
from nandiag.analysis.verdict.resume import TELLS_WHERE, resume_at, resume_words
from nandiag.events import words
from nandiag.render.frame import COMMAND, MOST, STYLES, Frame, hanging
from nandiag.render.lines import hang as hangs
from nandiag.render.lines import nccl
from nandiag.render.lines.spread import spread_lines
from nandiag.render.snippet import snippet
from nandiag.render.text import clean, encodable, wide

_TOLD = {
    "stopped", "stopped_elsewhere", "went_on", "nonfinite_again", "loss_scale_found", "update_left_out", "rank_victim",
}  # fmt: skip


class _Mirror(io.StringIO):
    """Takes the text in place of ``file`` and answers for it whether there is a terminal."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._terminal = file.isatty()

    def isatty(self) -> bool:
        return self._terminal


@dataclass(frozen=True, slots=True)
class Place:
    """Where the report lies and from where it is read: ``folder`` as it is typed; files below ``here`` get short names.

    ``again`` adds the command that shows the report once more; ``more`` are the folders of other launchers beside it.
    ``logs`` are the NCCL logs that were read from elsewhere, as they were named; ``folder`` is empty where only they
    were.
    """

    folder: str
    here: str | None = None
    again: bool = True
    more: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that shows the report once more."""
        return f"{COMMAND} {shlex.join(map(clean, (*self.folders, *self._options)))}"

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that were read."""
        return (self.folder, *self.more) if self.folder else ()

    @property
    def brief(self) -> str:
        """The command by which a reader sees this report, named in passing: logs from elsewhere belong to it."""
        return self.command if self.logs else COMMAND

    @property
    def _options(self) -> tuple[str, ...]:
        return tuple(word for log in self.logs for word in ("--nccl-logs", log))

    def short(self, text: str) -> str:
        """Return ``text`` with the names of files below the current directory relative to it."""
        return text.replace(f"{self.here.rstrip('/')}/", "") if self.here and self.here.strip("/") else text


def show(report: Report, place: Place, file: TextIO) -> None:
    """Write the summary of ``report`` to ``file``.

    Colours follow the terminal and NO_COLOR; without a terminal the text is as wide as COLUMNS says, or 100. Raises
    OSError.
    """
    mirror = _Mirror(file)
    console = Console(file=mirror, highlight=False, markup=False, emoji=False)
    console.width = wide(console.width if mirror.isatty() else None)
    for line in lines(report, place, console.width):
        console.print(line, soft_wrap=True)
    file.write(encodable(mirror.getvalue(), getattr(file, "encoding", None)))
    file.flush()


def lines(report: Report, place: Place, width: int) -> list[Text]:
    """Return the summary as lines no wider than ``width`` cells, but for paths and commands, which are never broken."""
    if report.verdict.anomaly:
        return list(_anomaly(report, place, width))
    if report.hang is not None:
        return list(_held(report, report.hang, place, width))
    return list(_healthy(report, place, width))


def _held(report: Report, hang: Hang, place: Place, width: int) -> Iterable[Text]:
    """Yield why ranks waited in vain, then what else was seen."""
    frame = Frame(width, 2, place.brief)
    seen = report.verdict.summary.removeprefix(hang.summary).removeprefix("; ")
    yield from hangs.lines(hang, f"Apart from that: {seen}." if seen else "", width, place.short)
    told = [one for one in report.findings if one.severity != "info" and one.slug not in {hang.slug, *SLUGS}]
    yield from frame.notes([one.text for one in told], MOST["findings"], "warning")
    yield from _warnings(report, frame)
    if report.left_out is not None:
        yield from _left_out(report.left_out, place, width)
    yield from frame.notes(nccl.lines(report.nccl), MOST["nccl"], "nccl")
    yield from frame.notes([place.short(text) for text in report.notes], MOST["notes"], "note")
    if place.again:
        yield Text("  show this again: ").append(place.command, style="bold")
    yield Text("  read on:         ").append(f"nandiag explain {clean(hang.slug)}", style="bold")


def _healthy(report: Report, place: Place, width: int) -> Iterable[Text]:
    folder = " ".join(place.folders or place.logs)
    yield from _one_line(f"nandiag: {clean(report.verdict.summary)}", f"log: {clean(folder)}", width)
    told = [finding for finding in report.findings if finding.severity != "info"]
    frame = Frame(width, 2, place.brief)
    # The first failed rank stands in the summary already.
    told = [one for one in told if one.text[1:].rstrip(".") not in report.verdict.summary]
    yield from frame.notes([one.text for one in told if one.slug not in SLUGS], MOST["findings"], "warning")
    yield from _warnings(report, frame)
    yield from frame.helps(report.verdict.suggestions)
    if report.left_out is not None:
        yield from _left_out(report.left_out, place, width)
    yield from frame.notes(nccl.lines(report.nccl), MOST["nccl"], "nccl")
    yield from frame.notes(report.notes, MOST["notes"], "note")


def _left_out(verdict: Verdict, place: Place, width: int) -> Iterable[Text]:
    """Yield what, where, why and what to do of a loss that the script left out."""
    yield from _headline(verdict, width, "warning")
    yield from _body(verdict, place, _frame(verdict, place, width))
    for slug in _explained(verdict):
        yield Text("  read on:         ").append(f"nandiag explain {clean(slug)}", style="bold")


def _frame(verdict: Verdict, place: Place, width: int) -> Frame:
    origin = verdict.origin
    return Frame(width, len(str(origin.line)) if origin and origin.line is not None else 2, place.brief)


def _warnings(report: Report, frame: Frame) -> Iterable[Text]:
    """Yield the early warnings, in the order of the run, but for what the evidence says already."""
    known = " ".join(report.verdict.evidence)
    early = [
        finding
        for finding in report.findings
        if finding.slug in SLUGS and finding.text.partition(": ")[2].rstrip(".") not in known
    ]
    for finding in early[: MOST["findings"]]:
        head = frame.mark(f"warning[{finding.slug}]")
        yield from hanging(head, Text(clean(finding.text)), frame.width, indent=frame.gutter + 5)
    if len(early) > MOST["findings"]:
        yield from frame.notes([frame.rest(len(early) - MOST["findings"])], 1, "warning")


def _one_line(summary: str, log: str, width: int) -> Iterable[Text]:
    *first, last = hanging(Text(), Text(summary), width, indent=2)
    yield from first
    if last.cell_len + len(log) + 3 <= width:
        yield last.append(f" ({log})")
    else:
        yield last
        yield Text(f"  {log}")


def _anomaly(report: Report, place: Place, width: int) -> Iterable[Text]:
    """Yield what, where, why and what to do first; then how sure, what followed, and what frames it."""
    verdict, origin = report.verdict, report.verdict.origin
    frame = _frame(verdict, place, width)
    yield from _headline(verdict, width, "error")
    yield from _body(verdict, place, frame)
    yield from frame.notes(spread_lines(verdict.spread), MOST["spread"], "spread")
    told = [finding.text for finding in report.findings if _is_told(finding, verdict)]
    yield from frame.notes(told, MOST["findings"], "note")
    yield from _warnings(report, frame)
    yield from frame.notes(nccl.lines(report.nccl), MOST["nccl"], "nccl")
    yield from frame.notes([place.short(text) for text in report.notes], MOST["notes"], "note")
    yield from frame.notes(_machine(origin), 1, "note")
    yield from frame.notes(_resume(report), 1, "resume")
    if place.again:
        yield Text("  show this again: ").append(place.command, style="bold")
    for slug in _explained(verdict):
        yield Text("  read on:         ").append(f"nandiag explain {clean(slug)}", style="bold")


def _body(verdict: Verdict, place: Place, frame: Frame) -> Iterable[Text]:
    """Yield where, why and what to do first, then how it is known."""
    evidence, used = [place.short(text) for text in verdict.evidence], False
    if verdict.origin is not None:
        code, used = _code(verdict.origin, _label(evidence), frame, place)
        yield from code
        yield from _facts(verdict.origin, frame)
    yield from frame.notes(_confidence(verdict), 1, "note")
    # What to do stands right behind why: the rest can wait.
    yield from frame.notes(evidence[1 if used else 0 : verdict.reasons], MOST["evidence"], "note")
    yield from frame.helps(verdict.suggestions)
    yield from frame.notes(evidence[max(verdict.reasons, 1 if used else 0) :], MOST["evidence"], "note")


def _explained(verdict: Verdict) -> list[str]:
    """Return the slugs of the verdict that have a text to read: the story, then what happened at the op.

    That no cause is known the report has said already.
    """
    slugs = dict.fromkeys(slug for slug in (verdict.cause, verdict.mechanism) if slug)
    return [slug for slug in slugs if slug != "unknown"]


def _label(evidence: list[str]) -> str | None:
    """Return what may stand beside the source line: the first of the evidence where it is a phrase, no sentence."""
    return evidence[0] if evidence and not evidence[0][:1].isupper() else None


def _headline(verdict: Verdict, width: int, severity: str) -> Iterable[Text]:
    named = verdict.cause not in {None, "unknown"}
    head = Text().append(f"{severity}[{clean(verdict.cause or '')}]" if named else severity, style=STYLES[severity])
    return hanging(head.append(": ", style="bold"), Text(clean(verdict.summary), style="bold"), width, indent=2)


def _is_told(finding: Finding, verdict: Verdict) -> bool:
    beside = finding.slug == "loss_scale_collapse" and verdict.cause != finding.slug
    warned = finding.severity == "warning" and finding.slug not in SLUGS
    return warned or finding.slug in _TOLD or beside


def _confidence(verdict: Verdict) -> list[str]:
    """Return that it was shown again; what is inferred, or did not show again, the evidence says."""
    if verdict.confidence == "reproduced":
        return ["Reproduced: running the step again showed it."]
    return []


def _resume(report: Report) -> list[str]:
    """Return where to resume from; a run that went on with good weights needs no such place."""
    held = [finding.text[:1].lower() + finding.text[1:] for finding in report.findings if finding.slug in TELLS_WHERE]
    if held:
        return held
    found = resume_at(report)
    if found is None:
        return []
    step, ran_away = found
    if ran_away:
        return [f"from a checkpoint saved before step {step}, where it began to run away."]
    return [f"{resume_words(report, step)}."]


def _code(origin: Origin, label: str | None, frame: Frame, place: Place) -> tuple[list[Text], bool]:
    """Return the lines that show the place, and whether ``label`` stands beside the source line."""
    if origin.file is None:
        return [], False
    where = clean(place.short(origin.file)) + ("" if origin.line is None else f":{origin.line}")
    inside = f" in {clean(origin.function)}" if origin.function else ""
    shown = [Text(" " * frame.gutter).append("--> ", style=STYLES["frame"]).append(where + inside)]
    if not origin.source or origin.line is None:
        return shown, False
    piece = snippet(origin.source, origin.column, frame.width - frame.gutter - 4)
    under = frame.bar().append(" " * piece.start).append("^" * piece.width, style=STYLES["error"])
    fits = bool(label and piece.width) and under.cell_len + 1 + cell_len(clean(label or "")) <= frame.width
    if label and fits:
        under.append(" " + clean(label), style="red")
    shown += [Text(" " * frame.gutter + " |", style=STYLES["frame"]), frame.bar(str(origin.line)).append(piece.code)]
    return [*shown, under] if piece.width else shown, fits


def _facts(origin: Origin, frame: Frame) -> Iterable[Text]:
    if origin.op or origin.node:
        made = f", the gradient of {origin.forward_op}" if origin.forward_op else ""
        # An op that was given the bad values, and is not blamed for any, only shows where they were met.
        mark = "op" if origin.outputs or not any(fact.bad for fact in origin.inputs) else "first used by"
        # What made a weight bad before it was used ran in no module: that of the origin is the weight's own.
        owned = mark == "op" and origin.phase in {"init", "checkpoint"}
        name = words.module(origin.module, origin.module_class)
        inside = f" in {name}" if name and not owned else ""
        kind = f" ({origin.module_class})" if origin.module_class and name == origin.module and not owned else ""
        node = f" [{origin.node}{made}]" if origin.node else ""
        yield from frame.notes([f"{origin.op or origin.node}{node if origin.op else made}{inside}{kind}"], 1, mark)
    # x * x has the same tensor twice: once is enough.
    inputs = dict.fromkeys(words.named_tensor(fact, "input") for fact in origin.inputs)
    yield from frame.notes(inputs, MOST["tensors"], "input")
    outputs = [words.named_tensor(fact, "output") for fact in origin.outputs]
    yield from frame.notes(outputs, MOST["tensors"], origin.outputs_are)


def _machine(origin: Origin | None) -> list[str]:
    if origin is None:
        return []
    where = [part for part in (origin.host, origin.device, f"pid {origin.pid}" if origin.pid else None) if part]
    return [f"rank {origin.rank} ran on {', '.join(where)}"] if where else []
