"""Names of parameters, buffers and modules, without the prefixes that wrappers put before them (worker).

Modules are found through the garbage collector, at moments that are rare (the first step, a harm), so that nothing has
to be registered with the script's modules and nothing runs per layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from nandiag.runtime.frames import LIBRARY, kind_of
from nandiag.runtime.names.alive import alive, living

_TRANSPARENT = frozenset({"_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"})
_WRAPPERS = frozenset({"DistributedDataParallel", "DataParallel"})
_called = WeakIdKeyDictionary()


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a tensor is: its FQN below the root, FQN and class of the module that holds it, and the root's class."""

    fqn: str
    module: str
    module_class: str
    root_class: str
    kind: str


def walk(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (FQN without wrapper prefixes, module) for ``root`` (``""``) and all below it, leaving wrappers out."""
    seen: set[int] = set()
    stack: list[tuple[str, nn.Module]] = [("", root)]
    while stack:
        name, module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if not is_wrapper(module):
            yield name, module
        children = [
            (child_name(module, key, name), child) for key, child in module._modules.items() if child is not None
        ]
        stack.extend(reversed(children))


def is_wrapper(module: nn.Module) -> bool:
    """Tell whether ``module`` only wraps another one, whose place in the tree it then takes."""
    return type(module).__name__ in _WRAPPERS or not _TRANSPARENT.isdisjoint(module._modules.keys())


def class_name(module: nn.Module) -> str:
    """Return the name of a module's class as the script knows it: FSDP2 puts a subclass of its own in its place."""
    kind = type(module)
    made = len(kind.__bases__) > 1 and kind.__bases__[0].__name__ == "FSDPModule"
    return (kind.__bases__[1] if made else kind).__name__


def child_name(parent: nn.Module, key: str, name: str) -> str:
    """Return the FQN of the child ``key`` of ``parent``, which is itself called ``name``."""
    if key in _TRANSPARENT or (key == "module" and type(parent).__name__ in _WRAPPERS):
        return name
    return f"{name}.{key}" if name else key


def was_called(module: nn.Module) -> None:
    """Remember ``module``, which the script calls by itself: it is found even where the collector tells of none."""
    _called[module] = None


def find_roots() -> list[nn.Module]:
    """Return every live module that is no child of another one.

    ``gc.freeze()``, as servers and large trainers call it once all is built, hides them from who asks the collector: of
    such those that were called are found, and those below them. To ask how many it hides would go through all of them.
    """
    found = {id(one): one for one in alive(nn.Module)}
    hidden = [root for root in living(_called) if id(root) not in found]
    modules = list((found | {id(one): one for root in hidden for one in root.modules()}).values())
    children = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    return [module for module in modules if id(module) not in children and "_modules" in module.__dict__]


def names_of(roots: list[nn.Module]) -> dict[int, str]:
    """Map ``id(module)`` of each module below ``roots`` to its FQN.

    Where the script calls a part of a larger module that is never called itself, it is named as its parameters are.
    """
    found = {id(module): name for root in reversed(roots) for name, module in walk(root)}
    for tree in sorted((list(walk(root)) for root in find_roots() if id(root) not in found), key=len):
        found.update({id(module): name for name, module in tree if id(module) in found})
    return found


def owners(roots: list[nn.Module]) -> dict[int, Owner]:
    """Map ``id(tensor)`` of each parameter and buffer below ``roots`` to its owner; larger roots name shared ones."""
    found: dict[int, Owner] = {}
    trees = sorted((list(walk(root)) for root in roots), key=len, reverse=True)
    for tree in trees:
        root_class = class_name(tree[0][1]) if tree else ""
        for name, module in tree:
            for kind, tensors in (("parameter", module._parameters), ("buffer", module._buffers)):
                for key, tensor in tensors.items():
                    if tensor is not None:
                        fqn = f"{name}.{key}" if name else key
                        found.setdefault(
                            id(tensor), Owner(_flat(fqn, tensor), name, class_name(module), root_class, kind)
                        )
    return found


def _flat(fqn: str, tensor: torch.Tensor) -> str:
    # FSDP1 lays the parameters of a unit into one flat parameter and keeps their names in `_fqns`.
    parts = getattr(tensor, "_fqns", None)
    if not parts or not fqn.endswith("_flat_param"):
        return fqn
    prefix = fqn.removesuffix("_flat_param")
    return ", ".join(prefix + part for part in parts)


def is_library(kind: type) -> bool:
    """Whether the forward of this class of modules is a library's."""
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    return code is not None and kind_of(code.co_filename) == LIBRARY


def node_name(node: Any) -> str:
    """Return the name of an autograd node without its namespace."""
    return str(node.name()).rpartition("::")[2]
