"""The architecture that the docs describe is the one that stands: every path, every function, every import."""

import ast
import graphlib
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from proxsvm import ProxOptimizer
from proxsvm.losses import CrossEntropy
from proxsvm.metrics import Diagonal
from proxsvm.solvers import SingleStepFW

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "proxsvm"
FILES = sorted(PACKAGE.rglob("*.py"))
PAGE, CONTRIBUTING = ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"

# Each layer imports from those before it; parts of one layer do not know each other.
LAYERS = [
    {"_extras", "_ranks", "_scores", "version"},
    {"_kernels"},
    {"structures"},
    {"losses"},
    {"linearization", "metrics", "point"},
    {"geometry"},
    {"problem"},
    {"past", "solvers"},
    {"optimizer", "verification", "estimators", "checkpoint"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def named(page: Path) -> set[Path]:
    """The paths of the tree that begins with ``proxsvm/``: two spaces per level, commas between names."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", page.read_text(), re.S | re.M)
    block = next(block for block in blocks if block.startswith("proxsvm/"))
    paths, folders = set(), [ROOT]
    for line in filter(None, block.splitlines()):
        indent, names = re.fullmatch(r"( *)(\S+(?:, \S+)*)(?:  .*)?", line).groups()
        del folders[len(indent) // 2 + 1 :]
        found = [folders[-1] / name for name in names.split(", ")]
        paths.update(found)
        folders.append(found[0])
    return paths


def is_public(path: Path) -> bool:
    return not any(part.startswith("_") for part in path.relative_to(PACKAGE).parts)


def test_every_path_that_is_named_exists_and_every_public_module_is_named():
    assert not [path for path in named(PAGE) | named(CONTRIBUTING) if not path.exists()]
    folders = {path.parent for path in FILES}
    expected = {path for path in [*FILES, *folders] if is_public(path)} | {PACKAGE / "_kernels"}
    assert not sorted(str(path.relative_to(ROOT)) for path in expected - named(PAGE))


def test_contributing_names_all_of_the_top():
    folders = {path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    top = folders | {path for path in PACKAGE.glob("*.py") if is_public(path) and path.name != "version.py"}
    assert not top - named(CONTRIBUTING)


def test_the_picture_names_what_exists_and_is_up_to_date():
    picture = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "pictures" / "architecture.py")))
    boxes = [box for _, _, lane in picture.LANES for box in lane if box.color != picture.YOURS] + picture.BELOW
    assert len(boxes) > 5
    assert not [box.where for box in boxes if not (PACKAGE / box.where).exists()]
    for box in boxes:
        if box.where.endswith(".py") and re.fullmatch(r"[\w., ]+", box.title):
            names = [name.split(".")[-1] for name in box.title.split(", ") if " " not in name]
            assert defined(PACKAGE / box.where).issuperset(names), box.title
    assert picture.svg() == (ROOT / "docs" / "pictures" / "architecture.svg").read_text(), "run the drawing"


def defined(path: Path) -> set[str]:
    return set(re.findall(r"(?:def|class) (\w+)", path.read_text()))


def walk() -> set[tuple[str, str]]:
    """The files and functions of the two blocks of the page; a class stands for its ``__init__``."""
    section = PAGE.read_text().split("## The walk of one step")[1].split("\n## ")[0]
    assert section.count("\n") < 80, "it fits on one screen"
    lines = re.findall(r"^ *(\w+(?:, \w+)*) {2,}([\w/]+\.py)", section, re.M)
    return {(file, name) for names, file in lines for name in names.split(", ")}


def test_the_walk_names_what_exists():
    assert not [(file, name) for file, name in walk() if name not in defined(PACKAGE / file)]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs the qualified names of code objects")
@pytest.mark.parametrize("fused", [None, False], ids=["compiled", "torch"])
def test_the_walk_names_every_function_that_a_step_calls(fused):
    model, criterion = torch.nn.Linear(4, 3), CrossEntropy()
    options = {"lr": "auto", "memory": 0.9, "average": 0.995, "weight_decay": 1e-3, "metric": Diagonal()}
    optimizer = ProxOptimizer(criterion, SingleStepFW(), model.parameters(), fused=fused, **options)
    x, y, called = torch.randn(8, 4), torch.arange(8) % 3, set()

    def note(frame, event, _):
        file, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        if event == "call" and PACKAGE in file.parents and not name.endswith(">"):
            *owner, name = name.split(".<locals>")[0].split(".")
            called.add((file.relative_to(PACKAGE).as_posix(), owner[0] if name == "__init__" else name))

    for steps in range(3):
        sys.setprofile(note if steps == 2 else None)  # what only a first step does is left out
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    sys.setprofile(None)
    assert len(called) > 80
    assert not sorted(called - walk())


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    part, tree = part_of(path), ast.parse(path.read_text())
    if part == "__init__":
        return
    for name in imports(tree):
        package, *rest = name.split(".")
        if package == "proxsvm" and rest[0] != part:
            assert LEVEL[rest[0]] < LEVEL[part], f"{part} imports {name}"
        assert package not in ("experiments", "benchmarks", "tests"), name


def test_no_module_imports_itself_through_others():
    """Lazy imports and those for type checkers included."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        graph[module] = set()
        for name in imports(ast.parse(path.read_text())):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and target != module:
                graph[module].add(target)
    graphlib.TopologicalSorter(graph).prepare()  # raises with the cycle


def test_only_the_kernels_know_numba_and_addresses():
    for path in FILES:
        tree = ast.parse(path.read_text())
        uses = {name.split(".")[0] for name in imports(tree)} & {"numba"}
        uses |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & {"data_ptr"}
        loads = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
        uses |= {"load" for call in loads if ast.unparse(call.args[0]) == "'numba'"}
        assert not uses or part_of(path) == "_kernels", f"{path} uses {uses}"
