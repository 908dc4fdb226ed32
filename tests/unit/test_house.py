"""The rules of the house that no linter of ours knows: sizes, names, docstrings, and who may read or import what."""

import ast
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "nandiag"
MODULES = sorted(PACKAGE.rglob("*.py"))
# Python loads these two in a worker before nandiag can be imported: what tells them where it lies is the environment.
SITECUSTOMIZE = PACKAGE / "runtime" / "inject" / "site" / "sitecustomize.py"
BEFORE_NANDIAG = {SITECUSTOMIZE, PACKAGE / "runtime" / "inject" / "exec_script.py"}

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
MAX_FILES_A_FOLDER = 10
CATALOGUES = {"nandiag/analysis/causes"}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}
STDLIB_ONLY = ("analysis", "store", "events", "settings.py", "errors.py")
MAY_IMPORT_TORCH_AT_THE_TOP = ("runtime", "integrations", "dtensor.py")


def relative(path):
    return path.relative_to(ROOT).as_posix()


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def lives_in(path, rooms):
    return path.relative_to(PACKAGE).parts[0] in rooms


def imported(node):
    """The absolute names that an import statement asks for; none for any other node."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [node.module or ""]
    return []


def outside_functions(node):
    """Every node that runs when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from outside_functions(child)


def tracked_files():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=60, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in os.fsdecode(listed.stdout).split("\0") if name and (ROOT / name).is_file()]


def test_the_package_is_found():
    assert len(MODULES) > 20
    assert set(MODULES) >= BEFORE_NANDIAG


@pytest.fixture(scope="module")
def offences():
    """What each rule finds in the text of the package, which is parsed once for all of them."""
    found = defaultdict(list)
    for path in MODULES:
        for rule, told in offences_of(path, tree(path)):
            found[rule].append(f"{relative(path)}: {told}")
    return found


def offences_of(path, module):
    for node in ast.walk(module):
        size = node.end_lineno - node.lineno + 1 if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else 0
        if size > MAX_FUNCTION_LINES:
            yield "function", f"{node.name} has {size} lines"
    if not ast.get_docstring(module):
        yield "docstring", "none"
    if path not in BEFORE_NANDIAG and any(reads_of_the_environment(module)):
        yield "environment", "read"
    others = packages(ast.walk(module)) - set(sys.stdlib_module_names) - {"nandiag"}
    if lives_in(path, STDLIB_ONLY) and others:
        yield "floor", ", ".join(sorted(others))
    if not lives_in(path, MAY_IMPORT_TORCH_AT_THE_TOP) and "torch" in packages(outside_functions(module)):
        yield "torch", "imported"


def packages(nodes):
    """The packages that some nodes import from."""
    return {name.split(".")[0] for node in nodes for name in imported(node)}


def test_a_file_keeps_its_size():
    sizes = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: size for name, size in sizes.items() if size > MAX_FILE_LINES} == {}, "is each of these one noun?"


def test_a_function_keeps_its_size(offences):
    assert offences["function"] == []


def test_a_folder_keeps_its_size():
    count = Counter(relative(path.parent) for path in MODULES)
    full = {name: files for name, files in count.items() if files > MAX_FILES_A_FOLDER and name not in CATALOGUES}
    assert full == {}


def test_a_name_says_what_is_inside():
    names = {relative(path): set(path.relative_to(PACKAGE).with_suffix("").parts) for path in MODULES}
    assert [path for path, parts in names.items() if parts & FORBIDDEN_NAMES] == []


def test_a_module_says_what_it_is_for(offences):
    assert offences["docstring"] == []


def test_only_settings_reads_the_environment(offences):
    assert offences["environment"] == ["nandiag/settings.py: read"]


def test_the_lower_floors_need_the_standard_library_alone(offences):
    assert offences["floor"] == []


def test_torch_is_not_imported_at_the_top(offences):
    assert offences["torch"] == []


def reads_of_the_environment(module):
    """Line numbers of reads; ``os.environ[name] = value``, ``update``, ``pop`` and ``del`` write and are fine."""
    writes = {id(node) for parent in ast.walk(module) for node in written(parent)}
    for node in ast.walk(module):
        is_environ = isinstance(node, ast.Attribute) and node.attr in {"environ", "environb"} and named_os(node.value)
        is_getenv = isinstance(node, ast.Attribute) and node.attr in {"getenv", "getenvb"} and named_os(node.value)
        from_os = isinstance(node, ast.ImportFrom) and node.module == "os"
        imports = from_os and any(alias.name in {"environ", "environb", "getenv"} for alias in node.names)
        if is_getenv or imports or (is_environ and id(node) not in writes):
            yield node.lineno


def written(node):
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        yield node.value
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    if is_method and node.func.attr in {"update", "pop", "setdefault", "clear"}:
        yield node.func.value


def named_os(node):
    return isinstance(node, ast.Name) and node.id in {"os", "_os"}


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("import os\nx = os.environ['A']", True),
        ("import os\nx = dict(os.environ)", True),
        ("import os\nx = os.getenv('A')", True),
        ("from os import environ", True),
        ("import os\nos.environ['A'] = 'b'", False),
        ("import os\nos.environ.update(a='b')", False),
        ("import os\ndel os.environ['A']", False),
    ],
)
def test_a_read_of_the_environment_is_told_from_a_write(source, reads):
    assert bool(list(reads_of_the_environment(ast.parse(source)))) is reads


@pytest.mark.parametrize("module", ["nandiag", "nandiag.cli.main"])
def test_importing_does_not_import_torch(module):
    probe = f"import sys, {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr


PRIVATE = re.compile(
    r"(?<![\w.])/(?:root|work)/|/tmp/\w+/|\.\./shared|\b(?:DESIGN|FACTS|REVIEW)\.md|\bissue #?\d", re.IGNORECASE
)


def test_all_that_is_tracked_is_text():
    """A wheel or a picture left behind by some work comes in by ``git add`` of a folder, and stays in the history."""
    no_text = []
    for path in tracked_files():
        try:
            path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            no_text.append(relative(path))
    assert no_text == []


def test_the_tree_names_no_machine():
    """What is true on one machine or for one team only has no place in the repository."""
    found = []
    for path in tracked_files():
        lines = path.read_bytes().decode("utf-8", errors="replace").splitlines()
        hits = [(number, PRIVATE.search(line)) for number, line in enumerate(lines, start=1)]
        found += [f"{relative(path)}:{number}: {hit[0]}" for number, hit in hits if hit]
    mine = relative(Path(__file__).resolve())
    assert [line for line in found if not line.startswith(f"{mine}:")] == []
