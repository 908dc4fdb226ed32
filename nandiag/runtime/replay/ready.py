"""What there is of a step to run again, and what running it again may write to (worker)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nandiag.events.words import cut
from nandiag.runtime.births.known import CLIPS
from nandiag.runtime.collectives.ring import RING
from nandiag.runtime.evidence.data.samples.ancestry import Ancestry
from nandiag.runtime.evidence.evaluated import that_wrote
from nandiag.runtime.evidence.labels import label, labels_of, storage
from nandiag.runtime.frames import USER, kind_of
from nandiag.runtime.kernels.graphs import in_pools
from nandiag.runtime.leaves import is_leaf
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.names import names_of
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.mended import Mended
from nandiag.runtime.replay.trace.tracer import Tracer
from nandiag.runtime.replay.unfinished import can_break_off
from nandiag.runtime.replay.update.instead import stand_in
from nandiag.runtime.replay.update.moved import given_memory
from nandiag.runtime.replay.written import getter, written_by
from nandiag.runtime.tape.batches import Batches
from nandiag.runtime.tape.calls.contents import tensors_of
from nandiag.runtime.tape.calls.habits import Habit
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import BACKWARD, CALL, ROOT, Entry
from nandiag.runtime.tape.packed.descent import ancestors
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tape.packed.words import Given, Made, version_of
from nandiag.runtime.tape.traceless import roots_of
from nandiag.runtime.together.shadows import possible

# What writes the values of other tensors as they are.
_COPIES = frozenset({"copy_", "_foreach_copy_"})


def still_held(entries: list[Entry]) -> tuple[list[Entry], bool]:
    """Return the entries without the micro-steps whose batches are gone, and whether any was left out."""
    gone = {
        entry.micro_step
        for entry in entries
        if entry.kind == ROOT
        for word in entry.words
        if type(word) is Given and word.get() is None
    }
    last = max((entry.micro_step for entry in entries if entry.kind == BACKWARD), default=0)
    gone.discard(last)
    return [entry for entry in entries if entry.micro_step not in gone], bool(gone)


def to_play(tape: Tape, case: Case, copies: list[Entry]) -> list[Entry]:
    """Return what harm may descend from, with ``copies``, but for the updates that were made before."""
    wanted = (*case.gradients, *case.spoken)
    known = [entry for entry in tape.whole(wanted, also=copies) if entry.step == tape.step]
    entries = _with_values(tape.whole(wanted, without=updates_by_hand(known, alone=case.by_hand), also=copies))
    made = [*copies, *(maker[0] for maker in map(tape.maker, wanted) if maker is not None)]
    return entries if case.joint else without_gone(entries, made)


def _with_values(entries: list[Entry]) -> list[Entry]:
    """Return the entries without those on the meta device: a model that is laid out there has no values yet."""
    without: set[int] = set()
    for entry in entries:
        if any((type(word) is Made and id(word.entry) in without) or _is_meta(word) for word in entry.words):
            without.add(id(entry))
    return [entry for entry in entries if id(entry) not in without]


def _is_meta(word: Made | Given) -> bool:
    tensor = word.tensor() if type(word) is Made else word.get() if type(word) is Given else None
    return tensor is not None and tensor.is_meta


def without_gone(entries: list[Entry], wanted: list[Entry]) -> list[Entry]:
    """Return the entries without those whose inputs are gone and which nothing needs: neither a backward nor a write.

    A metric that gradients are left on for, say, and that is printed when the next step has begun.
    """
    acting = [entry for entry in entries if entry.kind == BACKWARD or entry.mutates]
    needed = {id(entry) for entry in ancestors([*acting, *wanted])}
    there: set[int] = set()
    for entry in entries:
        if id(entry) in needed or all(_can_be_had(word, there) for word in entry.words):
            there.add(id(entry))
    return [entry for entry in entries if id(entry) in there] if acting else entries


def _can_be_had(word: Made | Given, there: set[int]) -> bool:
    if type(word) is Made:
        return id(word.entry) in there or word.tensor() is not None
    return type(word) is not Given or word.get() is not None


def updates_by_hand(entries: list[Entry], *, alone: bool) -> list[Entry]:
    """Return the script's own writes into weights that came before the step used these, and left them finite.

    What they wrote is there: made again, they would be made twice. Where they are ``alone``, and no optimizer makes
    updates, the step's first backward is where it begins to count; else it is the first call that may read a weight.
    """
    first = next((at for at, entry in enumerate(entries) if _begins(entry, alone=alone)), len(entries))
    later = set() if alone else {storage(one) for _, one in _written_weights(entries[first:])}
    kept = {id(entry) for entry, one in _written_weights(entries[:first]) if storage(one) in later or is_bad(one)}
    return [entry for entry, _ in _written_weights(entries[:first]) if id(entry) not in kept]


def _begins(entry: Entry, *, alone: bool) -> bool:
    return entry.kind == BACKWARD or (not alone and (entry.kind == ROOT or entry.grad))


def _written_weights(entries: list[Entry]) -> list[tuple[Entry, Tensor]]:
    """Return the calls without a gradient that write into weights, with each of these."""
    return [(entry, one) for entry, one in written_by(entries) if not entry.grad and is_leaf(one) and one.requires_grad]


def beside_step(tape: Tape, case: Case, moved: list[Entry]) -> list[Entry]:
    """Return what is to be made again beside the step's own calls: what made copies, and bad buffers, and what broke.

    ``moved`` are the calls that gave tensors other memory in this step.
    """
    copies = kept_as_buffers(tape) + that_wrote(tape, case.suspects)
    copies += [] if case.broken is None else [case.broken.entry]
    copies += [entry for one in case.parameters if (entry := tape.copier(storage(one))) is not None]
    return copies + given_memory(tape, case, moved)


def kept_as_buffers(tape: Tape) -> list[Entry]:
    """Return what made the bad buffers of modules in this step: a loss may be given what the loop has computed."""
    found = []
    for one in (one for root in roots_of(tape.entries) for one in root.buffers() if is_bad(one)):
        entry = made[0] if (made := tape.maker(one)) is not None else None
        if entry is not None and entry.step == tape.step and entry.args is not None and not entry.in_place:
            tape.copied(entry, one)
            found.append(entry)
    return found


def without_models(entries: list[Entry]) -> list[Entry]:
    """Return what the loop itself computed, none of it of a tensor that was written into since."""
    calls = [entry for entry in entries if entry.kind == CALL and getattr(entry.function, "__name__", "") != "grad"]
    made = set(map(id, calls))
    gone = {id(entry) for entry in calls if any(_moved_on(word, made) for word in entry.words)}
    return [entry for entry in calls if id(entry) not in gone]


def losses_of(entries: list[Entry]) -> tuple[Tensor, ...]:
    """Return what the backward calls among the entries began from, as far as the script still holds it."""
    words = (word for entry in entries if entry.kind == BACKWARD for word in entry.words if type(word) is Made)
    return tuple(loss for word in words if (loss := word.tensor()) is not None)


def _moved_on(word: Any, made: set[int]) -> bool:
    """Whether a word is what no call of these makes, and holds other numbers by now than when it was used."""
    if type(word) is not Made or id(word.entry) in made:
        return False
    tensor = word.tensor()
    return tensor is not None and version_of(tensor) != (word.version or 0)


def gradients_used(entries: list[Entry], mark: int, moved: list[Entry]) -> bool:
    """Whether the script used gradients of a backward among the entries before ``mark``, which it then dropped.

    It wrote into weights behind that, as SAM does, or gave them other memory (``moved``), and more than what it had
    kept of them; or it made of the gradients what the entries that follow are given, as adversarial training makes the
    inputs.
    """
    first = next((index for index, entry in enumerate(entries[:mark]) if entry.kind == BACKWARD), mark)
    if first == mark:
        return False
    between = range(entries[first].number, entries[mark].number if mark < len(entries) else sys.maxsize)
    if any(one.number in between and one.words and not _is_of_calls(one) for one in moved):
        return True
    used = (one.number in between and getter(one) == "grad" for one in ancestors(entries[mark:]))
    written = [(one, weight) for one, weight in _written_weights(entries[first:mark]) if one.name not in CLIPS]
    # What numpy or Python made of gradients is no more known to be of them: kept weights are not bad.
    back = all(_puts_back(one) and not is_bad(weight) for one, weight in written)
    return not back or any(used)


def _puts_back(entry: Entry) -> bool:
    """Whether it copies values that the script kept, as by ``load_state_dict()``, where it rejects a step."""
    kept = entry.name in _COPIES and len(entry.args or ()) > 1
    return kept and not isinstance(entry.args[1], int | float) and _is_of_calls(entry)


def _is_of_calls(entry: Entry) -> bool:
    """Whether what an ``entry`` writes is not bad, and was made of nothing of a model's, a loss's or a gradient's."""
    makers = (one for one in ancestors([entry]) if one is not entry)
    if any(one.grad or one.kind != CALL or getter(one) == "grad" for one in makers):
        return False
    given = (one.tensor() if type(one) is Made else one.get() if type(one) is Given else None for one in entry.words)
    return not any(map(is_bad, (one for one in given if isinstance(one, Tensor))))


def tracer_for(
    case: Case, entries: list[Entry], mended: Mended | None, leaves: list[Tensor], batches: Batches | None
) -> Tracer:
    """Return the tracer to run ``entries`` under: it knows what modules are called, and what came into the step.

    ``leaves``: those whose ``.grad`` it may write to. ``batches``: the newest, of which some may have come so.
    """
    roots = roots_of(entries)
    tracer = Tracer(names_of(roots), joint=case.joint, mended=mended)
    tracer.brought = set(labels_of(roots, entries)) | memory_of(entries)
    tracer.ancestry = Ancestry(batches, tracer.brought)
    tracer.versions = {id(one): version_of(one) for root in roots for one in (*root.parameters(), *root.buffers())}
    tracer.gathered = [(one, one.grad) for one in leaves if one.grad is not None]
    tracer.at_stake = partial(_at_stake, [gradient for _, gradient in tracer.gathered], entries)
    return tracer


def reason_against(capture: Capture, entries: list[Entry], case: Case) -> str | None:
    """Return why the step cannot be run again, None when it can."""
    if capture.elsewhere:
        return "another thread than the one that is taped made this step"
    if not entries:
        behind = case.step < capture.tape.step
        return "another optimizer had updated weights in that step" if behind else "nothing of this step was taped"
    if capture.tape.overflow:
        return "the step made more calls than the tape holds"
    if not (case.joint or case.ends or case.apart or can_break_off(roots_of(entries))):
        return "the run goes on, and FSDP1 could not after a replay of one rank alone"
    if not case.ends and _has_own_hooks(entries):
        # Training goes on afterwards: what a hook of the script's did a second time could not be taken back.
        return "hooks of the script's own would run a second time, and the run goes on after this step"
    return None


def _has_own_hooks(entries: list[Entry]) -> bool:
    for root in roots_of(entries):
        for module in root.modules():
            if any(_is_own(hook) for name in _HOOKS for hook in getattr(module, name, {}).values()):
                return True
        for one in root.parameters():
            kept = (one._backward_hooks, getattr(one, "_post_accumulate_grad_hooks", None))
            if any(_is_own(hook) for hooks in kept for hook in (hooks or {}).values()):
                return True
    return False


def _is_own(hook: Any) -> bool:
    code = getattr(getattr(hook, "__func__", hook), "__code__", None)
    return code is None or kind_of(code.co_filename) == USER


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def may_write_weights(entries: list[Entry], roots: list[nn.Module]) -> bool:
    """Whether what is run again may write into weights: calls in place, or hooks that run as gradients arrive."""
    if any(entry.in_place and not entry.grad for entry in entries):
        return True
    return any(getattr(one, "_post_accumulate_grad_hooks", None) for root in roots for one in root.parameters())


def all_that_gather(parameters: list[Tensor], roots: list[nn.Module], entries: list[Entry]) -> list[Tensor]:
    """Return every leaf whose ``.grad`` the replay may write to."""
    held = {id(one): one for one in parameters}
    held |= {id(one): one for root in roots for one in root.parameters()}
    for entry in entries:
        for tensor in _given((entry.args, entry.kwargs, _swapped(entry))):
            if tensor.requires_grad and is_leaf(tensor):
                held[id(tensor)] = tensor
    return list(held.values())


def _at_stake(gradients: list[Tensor], entries: list[Entry]) -> list[Tensor]:
    """Return what a CUDA graph that runs again may write over: ``gradients``, and its results that are still there."""
    words = (word for entry in entries for word in entry.words if type(word) is Made)
    return [*gradients, *in_pools(one for word in words if (one := word.tensor()) is not None)]


def stand_in_for_spoiled(case: Case, entries: list[Entry], tracer: Tracer) -> bool:
    """A weight that was written into within the step and that is bad by now starts from numbers of its size, or zeros.

    What it held before is gone; :func:`traceless` puts back what it holds. Returns whether there is any.
    """
    spoiled = [one for _, one in written_by(entries) if is_leaf(one) and one.requires_grad]
    spoiled += case.suspects if case.within else ()
    with tracer.still(), torch.no_grad():
        spoiled = [one for one in spoiled if is_bad(one)]
        for one in spoiled:
            stand_in(one, 0.0 if case.zeros else None)
    return bool(spoiled)


def as_before_set_anew(entries: list[Entry], known: Mapping[int, Habit]) -> bool:
    """Have modules begin with what they held before they set it anew, as far as that is known; False where nothing is.

    It may have been done in an earlier step as well.
    """
    first = {id(entry.function): entry for entry in reversed(entries) if entry.kind == ROOT and entry.swapped is None}
    found = False
    for key, entry in first.items():
        kept = {id(names) for names, _ in entry.attributes or ()}  # as it was right before this very call
        anew = [pair for pair in known[key].set_anew() if id(pair[0]) not in kept] if key in known else []
        if anew:
            found, entry.attributes = True, [*anew, *(entry.attributes or ())]
    return found


def began_bad(case: Case, entries: list[Entry], *, midway: bool = False) -> list[tuple[str, Tensor]]:
    """Return the weights that were bad before the forward, each with its name: bad now, not written behind a backward.

    Of a step whose updates no optimizer makes that is not known, and of one that was broken off it is not asked.
    """
    if case.by_hand or case.unfinished:
        return []
    first = next((index for index, entry in enumerate(entries) if entry.kind == BACKWARD), len(entries))
    first = 0 if midway else first  # all of it is behind a backward
    later = {storage(one) for _, one in written_by(entries[first:])}
    bad = [one for one in case.parameters if is_bad(one) and storage(one) not in later]
    known = labels_of(roots_of(entries), []) if bad else {}
    found = [(label(known, one), one) for one in bad]
    return [("a weight" if known is None else known.name, one) for known, one in found]


def memory_of(entries: list[Entry]) -> set[int]:
    """Return the storages of the tensors that the entries were given from outside, or that their modules held."""
    given = [(entry.args, entry.kwargs, _swapped(entry)) for entry in entries]
    held = [word for entry in entries for content in entry.contents for word in tensors_of(content)]
    keys = (storage(tensor) for tensor in _given([given, held]))
    return {key for key in keys if key is not None}


def _swapped(entry: Entry) -> dict[str, Any]:
    return {} if entry.swapped is None else entry.swapped.tensors


def _given(thing: Any) -> Iterator[Tensor]:
    if type(thing) is Given:
        tensor = thing.get()
        if tensor is not None:
            yield tensor
    elif isinstance(thing, tuple | list):
        for item in thing:
            yield from _given(item)
    elif isinstance(thing, dict):
        for item in thing.values():
            yield from _given(item)
    else:
        yield from tensors_in(thing)


def reason_to_stay_out(roots: list[nn.Module]) -> str | None:
    """Return why a joint replay that a rank could fail in is not for a run that goes on afterwards."""
    if not possible():
        return "the run goes on, and a rank that fails in a joint replay would hold up the others"
    if not can_break_off(roots):
        return "the run goes on, and FSDP1 could not after a replay that a rank fails in (FSDP2 can)"
    return None


def why_failed(error: Exception) -> str:
    """Return why a step that raised when it was run again could not be; torch tells of groups only that they are gone.

    A script that catches what ends its training may put its groups away before it ends itself.
    """
    if RING.life and not dist.is_initialized() and "process group" in str(error).lower():
        return "the script had destroyed its process groups by then"
    return f"{type(error).__name__}: {cut(str(error))}"
