"""Find in the script's own text where it sets a learning rate, or what else an optimizer is told (worker)."""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
from collections.abc import Collection, Iterator
from functools import lru_cache

import torch
from torch.optim import lr_scheduler

from nandiag.runtime.frames import USER, kind_of
from nandiag.runtime.frames.text import nodes_of, tree_of

_GROUPS = "param_groups"
_OPTIMIZER = re.compile(r"_*opt(?![a-z])|.*optim", re.IGNORECASE)
_PLACED = (ast.stmt, ast.expr, ast.keyword)
_MOST_FILES, _MOST_BYTES, _MOST = 64, 400_000, 3
# Only what the script computes itself can be no number; any schedule can rise too far.
_BY_FUNCTION = frozenset({"LambdaLR", "MultiplicativeLR"})
_SCHEDULERS = frozenset(name for name in dir(lr_scheduler) if name.endswith(("LR", "Restarts", "OnPlateau")))


def set_at(name: str = "lr", by: frozenset[str] = _BY_FUNCTION) -> list[str]:
    """Return up to three lines that set it, ``file:line: text``; none where more do, for then none is told apart.

    A learning rate is also set by who makes a scheduler of the classes ``by``. Nothing is run for that.
    """
    found = list(dict.fromkeys(line for file in own_files() for line in _in_file(file, name, by)))
    return found if len(found) <= _MOST else []


def rises_at(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """Return up to three lines that set its learning rate, where that is not what it was made with."""
    groups, made = optimizer.param_groups, optimizer.defaults.get("lr")
    moved = any("initial_lr" in group or group.get("lr") is not made for group in groups)
    return tuple(set_at(by=_SCHEDULERS)) if moved else ()


def own_files() -> list[str]:
    """Return the files of the script's own modules, but for large ones."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    own = dict.fromkeys(file for file in files if file and file.endswith(".py") and kind_of(file) == USER)
    there = (file for file in own if os.path.isfile(file) and os.path.getsize(file) <= _MOST_BYTES)
    return list(there)[:_MOST_FILES]


@lru_cache(maxsize=4 * _MOST_FILES)  # harm is compared by each number that an optimizer is told
def _in_file(file: str, name: str, by: frozenset[str]) -> tuple[str, ...]:
    tree = tree_of(file)
    if tree is None:
        return ()
    nodes, lines = nodes_of(tree), linecache.getlines(file)
    groups = {name for node in nodes for name in _names_of_groups(node)}
    setting = [node for node in nodes if _sets(node, name, by, groups) and isinstance(node, _PLACED)]
    numbers = sorted({node.lineno for node in (*setting, *(() if name == "lr" else _keys(nodes, name)))})
    return tuple(f"{os.path.basename(file)}:{number}: {lines[number - 1].strip()[:160]}" for number in numbers)


def _keys(nodes: Collection[ast.AST], name: str) -> Iterator[ast.expr]:
    """Yield the keys of dicts that the script writes a number of this ``name`` under: its own settings."""
    for node in nodes:
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and key.value == name and isinstance(value, ast.Constant):
                yield key


def _names_of_groups(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node gives to what comes from an optimizer's groups."""
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        targets, value = [node.target], node.iter
    elif isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    else:
        return
    if any(isinstance(one, ast.Attribute) and one.attr == _GROUPS for one in ast.walk(value)):
        names = (one for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))
        yield from (one.id for one in names if isinstance(one.ctx, ast.Store))


def _is_group(node: ast.expr, groups: Collection[str]) -> bool:
    """Whether it is a group by the text: where nothing says what it is, by its name; a log may have a rate, too."""
    if isinstance(node, ast.Name):
        return node.id in groups or "group" in node.id
    return any(isinstance(one, ast.Attribute) and one.attr == _GROUPS for one in ast.walk(node))


def _sets(node: ast.AST, setting: str, by: Collection[str], groups: Collection[str]) -> bool:
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        named = isinstance(node.slice, ast.Constant) and node.slice.value == setting
        return named and _is_group(node.value, groups)
    if setting != "lr":
        return isinstance(node, ast.keyword) and node.arg == setting
    if not isinstance(node, ast.Call):
        return False
    name = _last_name(node.func)
    return name in by or (by is _SCHEDULERS and "schedul" in name.lower() and _takes_optimizer(node))


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _takes_optimizer(call: ast.Call) -> bool:
    """Whether a call of another library's scheduler is given an optimizer, by what the script calls that."""
    given = (*call.args, *(one.value for one in call.keywords))
    return any(one.arg == "optimizer" for one in call.keywords) or any(
        _OPTIMIZER.match(_last_name(one)) is not None for one in given
    )
