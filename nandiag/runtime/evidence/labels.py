"""What a tensor is called (parameter, buffer, input of a root module), by the memory it lies in (worker)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nandiag.events import Looked, Site, TensorFact
from nandiag.runtime.look.finite import fact, local
from nandiag.runtime.memory.kept import copied_from
from nandiag.runtime.memory.there import key_of, storage_of
from nandiag.runtime.names import class_name, walk
from nandiag.runtime.tape.entry import ROOT, Entry
from nandiag.runtime.tape.packed.words import Given


@dataclass(frozen=True, slots=True)
class Label:
    """What a tensor is (``parameter``, ``buffer``, ``attribute`` or ``input``), its name, and its module."""

    what: str
    name: str
    module: str | None
    module_class: str | None
    tensor: Tensor


def labels_of(roots: list[nn.Module], entries: list[Entry]) -> dict[int, Label]:
    """Map the storage of each tensor known by name to its label; a module's own tensors go before inputs."""
    found: dict[int, Label] = {}
    for root in roots:
        for name, module in walk(root):
            for what, key, tensor in _own(module):
                _put(found, Label(what, f"{name}.{key}" if name else key, name, class_name(module), tensor))
    for entry in entries:
        for name, tensor in _swapped(entry):
            what = "parameter" if tensor.requires_grad else "buffer"
            _put(found, Label(what, name, name.rpartition(".")[0], None, tensor))
        if entry.kind == ROOT:
            for name, tensor in _inputs(entry):
                _put(found, Label("input", name, None, type(entry.function).__name__, tensor))
    return found


def label(found: dict[int, Label], tensor: Tensor) -> Label | None:
    """Return the label of the memory that ``tensor`` lies in."""
    key = storage(tensor)
    return None if key is None else found.get(key)


def storage(tensor: Tensor) -> int | None:
    """Return the identity of the memory that this rank holds of ``tensor``."""
    try:
        data = local(tensor)
        return None if data is None else copied_from(tensor) or storage_of(data)
    except (RuntimeError, NotImplementedError):
        return None


def own_name(module: nn.Module | None, name: str | None, tensor: Tensor) -> str | None:
    """Return the FQN of the parameter that ``tensor`` is to the module that runs now (FSDP gathers it anew)."""
    key = key_of(tensor)
    for own, parameter in () if module is None else module._parameters.items():
        if parameter is not None and key_of(parameter) == key:
            return f"{name}.{own}" if name else own
    return None


def whole_fact(whole: Tensor, used: TensorFact, named: Label | None) -> TensorFact:
    """Return facts on the whole tensor, or on the part used where the whole is not bad any more or freed."""
    name = named.name if named is not None else None
    seen = fact(whole, name)
    return seen if seen.bad else replace(used, name=name)


def at_module(site: Site, named: Label) -> Site:
    """Return the site with the module that what is named belongs to."""
    return replace(site, module=named.module, module_class=named.module_class)


def in_module(looked: Looked, held: object, named: Label | None) -> Looked:
    """Return ``looked`` at the module that what is ``named`` belongs to, where one ``held`` it."""
    if held is None or named is None or looked.site is None:
        return looked
    return replace(looked, site=at_module(looked.site, named))


def _put(found: dict[int, Label], one: Label) -> None:
    key = storage(one.tensor)
    if key is not None:
        found.setdefault(key, one)


def _own(module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    groups: tuple[tuple[str, dict[str, Any]], ...] = (
        ("parameter", module._parameters), ("buffer", module._buffers), ("attribute", module.__dict__),
    )  # fmt: skip
    for what, tensors in groups:
        for key, tensor in tensors.items():
            if isinstance(tensor, torch.Tensor):
                yield what, key, tensor


def _swapped(entry: Entry) -> Iterator[tuple[str, Tensor]]:
    for key, word in entry.swapped.tensors.items() if entry.swapped is not None else ():
        yield from _named(key, word)


def _inputs(entry: Entry) -> Iterator[tuple[str, Tensor]]:
    names = _parameter_names(entry)
    for index, word in enumerate(entry.args or ()):
        yield from _named(names[index] if index < len(names) else f"args[{index}]", word)
    for key, word in (entry.kwargs or {}).items():
        yield from _named(key, word)


def _named(name: str, word: Any) -> Iterator[tuple[str, Tensor]]:
    if type(word) is Given:
        tensor = word.get()
        if tensor is not None:
            yield name, tensor
    elif isinstance(word, torch.Tensor):
        yield name, word
    elif isinstance(word, tuple | list):
        for index, item in enumerate(word):
            yield from _named(f"{name}[{index}]", item)
    elif hasattr(word, "items"):
        for key, item in word.items():
            yield from _named(f"{name}[{key!r}]", item)


def _parameter_names(entry: Entry) -> list[str]:
    module = entry.function
    inner = getattr(module, "module", module) if hasattr(module, "reducer") else getattr(module, "_orig_mod", module)
    own = next((own for held, own in entry.forwards if held() is inner), None)
    try:
        found = inspect.signature(inner.forward if own is None else own).parameters.values()
    except (TypeError, ValueError):
        return []
    many = next((index for index, one in enumerate(found) if one.kind is inspect.Parameter.VAR_POSITIONAL), None)
    return [one.name for one in found][:many]
