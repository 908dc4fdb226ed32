"""Ranks that compute in the wrong place or talk through the wrong backend, found and said (reader side; pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Finding, Suggestion
from nandiag.events import Armed, Attached, Placed, Raised, words
from nandiag.store.reader import RankLog

_SET_DEVICE = "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))"
_NO_NCCL = re.compile(
    r"ProcessGroupNCCL is only supported with GPUs|doesn't have NCCL built in|no GPUs found!"
    r"|NCCL backend.*not (?:built|available)|nccl\d* requires at least one CUDA device"
)


@dataclass(frozen=True, slots=True)
class Rank:
    """What one rank told of itself."""

    rank: int
    attached: Attached
    armed: Armed | None
    placed: Placed | None
    raised: Raised | None

    @property
    def on_cuda(self) -> bool:
        """Whether what it trains lies on a GPU."""
        return (self.placed.device if self.placed and self.placed.device else "").startswith("cuda")


def findings_of(logs: Mapping[int, RankLog]) -> Iterable[Finding]:
    """Yield the advice on a run; ``logs`` holds the newest attempt of each rank."""
    ranks = [told for log in logs.values() if (told := _rank(log)) is not None]
    yield from _nccl_without_gpu(ranks)
    yield from _gloo_on_cuda(ranks)
    yield from _shared(ranks)


def _rank(log: RankLog) -> Rank | None:
    attached, armed, placed, raised = None, None, None, None
    for record in log.records:
        event = record.event
        attached = event if isinstance(event, Attached) else attached
        armed = event if isinstance(event, Armed) else armed
        placed = event if isinstance(event, Placed) else placed
        raised = event if isinstance(event, Raised) else raised
    return None if attached is None else Rank(log.rank, attached, armed, placed, raised)


def _nccl_without_gpu(ranks: list[Rank]) -> Iterable[Finding]:
    hit = [one for one in ranks if one.raised is not None and _NO_NCCL.search(one.raised.message)]
    if not hit:
        return
    cpu = all(one.armed is not None and one.armed.cuda is None for one in hit)
    why = "this torch is a CPU build" if cpu else "torch sees no GPU there"
    text = f"{_who(hit)} asked for NCCL, which moves data between GPUs, and {why}. "
    text += "Use init_process_group('gloo') on CPUs" + ("." if cpu else ", or mend the driver (`nandiag doctor`).")
    yield Finding("nccl_without_gpu", "warning", text, _numbers(hit))


def _gloo_on_cuda(ranks: list[Rank]) -> Iterable[Finding]:
    hit = [one for one in ranks if one.on_cuda and one.placed is not None and one.placed.backends.get("cuda") == "gloo"]
    if hit and len(ranks) > 1:
        nccl = any(one.armed is not None and one.armed.nccl for one in hit)
        mend = (
            "Use init_process_group('nccl')" if nccl else "Install a torch with NCCL and use init_process_group('nccl')"
        )
        text = f"{_who(hit)} exchange tensors on GPUs through gloo, by way of host memory, which is slow. {mend}."
        yield Finding("gloo_on_cuda", "warning", text, _numbers(hit))


def _shared(ranks: list[Rank]) -> Iterable[Finding]:
    groups: dict[tuple[str, str], list[Rank]] = {}
    for one in ranks:
        if one.placed is not None and one.placed.gpu_uuid is not None and (one.on_cuda or one.placed.device is None):
            groups.setdefault((one.attached.host, one.placed.gpu_uuid), []).append(one)
    for (host, _), members in groups.items():
        if len(members) < 2:
            continue
        spare = max(one.placed.visible or 0 for one in members if one.placed is not None)
        first = all(one.placed is not None and one.placed.current == 0 for one in members)
        if first and spare > 1:
            text = f"{_who(members)} on {host} all use cuda:0, although {spare} GPUs are there: nobody set the device. "
            text += f"Call {_SET_DEVICE} before anything touches CUDA."
            yield Finding("set_device_forgotten", "warning", text, _numbers(members))
        else:
            text = f"{_who(members)} share one GPU of {host} ({members[0].placed.gpu if members[0].placed else '?'}), "
            text += (
                "which NCCL refuses and which costs speed and memory. Start one rank a GPU, and set the device of each."
            )
            yield Finding("shared_gpu", "warning", text, _numbers(members))


def _who(ranks: list[Rank]) -> str:
    return words.ranks(_numbers(ranks)).capitalize()


def _numbers(ranks: list[Rank]) -> tuple[int, ...]:
    return tuple(sorted(one.rank for one in ranks))


def _said(slug: str, what: str, text: str, code: str | None = None) -> Explanation:
    return Explanation(slug, what, fix=(Suggestion(text, code),), pages=("distributed.html",), kind="finding")


EXPLAIN = (
    _said(
        "nccl_without_gpu",
        "The script asked for the NCCL backend where torch sees no GPU. NCCL moves data between GPUs only.",
        "On CPUs use gloo; where a GPU should be there, `nandiag doctor` says why torch does not see it.",
        "torch.distributed.init_process_group('gloo')",
    ),
    _said(
        "gloo_on_cuda",
        "Tensors on GPUs are exchanged through gloo. Each of them is copied to host memory and back, which is slow.",
        "Use NCCL for GPUs.",
        "torch.distributed.init_process_group('nccl')",
    ),
    _said(
        "shared_gpu",
        "Several ranks compute on the same GPU. NCCL refuses that, and memory and speed are shared.",
        "Start one rank a GPU (`--nproc-per-node gpu`), and let each use its own.",
        _SET_DEVICE,
    ),
    _said(
        "set_device_forgotten",
        "All ranks of a host use cuda:0 although it has more GPUs, for no rank chose its own.",
        "Choose the device of each rank first of all.",
        _SET_DEVICE,
    ),
)
