"""The layout: rooms as ARCHITECTURE.md lists them, no circles, no prefixes in place of folders."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
BASES = (ROOT / "localspec", ROOT / "tui" / "localspec_tui")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Return who imports whom, also inside functions and for types alone."""
    return grimp.build_graph("localspec", "localspec_tui", cache_dir=None)


def modules() -> list[Path]:
    return [path for base in BASES for path in base.rglob("*.py")]


def test_every_room_is_in_the_table() -> None:
    cells = re.findall(r"^\| (`.+?) \|", ARCHITECTURE, re.MULTILINE)
    rooms = {room for cell in cells for room in re.findall(r"`(\w+)`", cell)}
    folders = {path.name for path in (ROOT / "localspec").iterdir() if (path / "__init__.py").exists()}
    files = {path.stem for path in (ROOT / "localspec").glob("*.py")} - {"__init__", "__main__"}
    assert rooms == folders | files | {"localspec_tui"}


def test_every_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"`([\w/]+\.(?:py|toml|tcss|md))`", ARCHITECTURE))
    assert len(named) > 20
    places = (ROOT, ROOT / "localspec", ROOT / "tui" / "localspec_tui")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_no_module_imports_itself_by_way_of_others(graph: grimp.ImportGraph) -> None:
    """Look for a circle: a module that is upstream and downstream of another one."""
    left = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    while ends := [
        name
        for name, imported in left.items()
        if not imported & left.keys() or not graph.find_modules_that_directly_import(name) & left.keys()
    ]:
        for name in ends:
            del left[name]
    assert sorted(left) == []


def test_a_prefix_is_not_a_folder() -> None:
    stems = {(path.parent, path.stem) for path in modules()}
    families = Counter((folder, stem.split("_")[0]) for folder, stem in stems if "_" in stem.strip("_"))
    sizes = {(folder, prefix): n + ((folder, prefix) in stems) for (folder, prefix), n in families.items()}
    assert [f"{folder.name}/{prefix}_*" for (folder, prefix), n in sizes.items() if n >= 3] == []


@pytest.mark.slow
def test_a_public_class_has_its_name_to_itself() -> None:
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path.relative_to(ROOT).as_posix())
    assert len(homes) > 400
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
