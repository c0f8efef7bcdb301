"""The contents of the wheel and the source archive; `.ci/check` runs it, apart from the other tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import localspec
from localspec import smollm2
from localspec.demo import bundled_pair

ROOT = Path(__file__).parent.parent
MAX_WHEEL_BYTES = 46_000_000
MAX_SDIST_BYTES = 48_000_000


def build(kind: str, folder: Path) -> Path:
    """Build a distribution without the network, from the checkout as it is."""
    options = [f"--{kind}", "--no-isolation", "--outdir", str(folder)]
    command = [sys.executable, "-m", "build", *options, str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def contents(wheel: Path) -> dict[str, int]:
    """The files of the wheel with their sizes."""
    with zipfile.ZipFile(wheel) as archive:
        return {item.filename: item.file_size for item in archive.infolist()}


def is_expected(name: str) -> bool:
    top, *rest = PurePosixPath(name).parts
    if top == f"localspec-{localspec.__version__}.dist-info":
        return True
    if top == "localspec" and rest[0] == "_profiles":
        return len(rest) == 2 and name.endswith(".toml")
    return top in {"localspec", "localspec_tui"}


def test_wheel_holds_nothing_but_the_packages(contents: dict[str, int]) -> None:
    assert [name for name in contents if not is_expected(name)] == []
    suffixes = {PurePosixPath(name).suffix for name in contents if ".dist-info/" not in name}
    assert suffixes <= {
        ".py",
        ".typed",
        ".gguf",
        ".html",
        ".jsonl",
        ".md",
        ".txt",
        ".toml",
        ".tcss",
        ".css",
        ".j2",
        ".sql",
    }


def test_wheel_holds_every_module_and_profile(contents: dict[str, int]) -> None:
    expected = {path.relative_to(ROOT).as_posix() for path in (ROOT / "localspec").rglob("*.py")}
    expected |= {p.relative_to(ROOT / "tui").as_posix() for p in (ROOT / "tui").rglob("*.py")}
    expected |= {f"localspec/_profiles/{path.name}" for path in (ROOT / "profiles").glob("*.toml")}
    expected |= {"localspec/py.typed", "localspec_tui/py.typed", "localspec_tui/app.tcss"}
    kinds = ("*.j2", "*.css", "*.sql", "*.toml", "cli/*.txt")
    data = [path for kind in kinds for path in (ROOT / "localspec").rglob(kind)]
    expected |= {path.relative_to(ROOT).as_posix() for path in data}
    assert expected - set(contents) == set()


def test_wheel_holds_the_pair_its_papers_and_prompts(contents: dict[str, int]) -> None:
    for path in bundled_pair():
        assert contents[f"localspec/demo/{path.name}"] == path.stat().st_size
    papers = {"MODEL_CARD.md", "ATTRIBUTION-african-storybook.txt", "prompts.jsonl"}
    assert {f"localspec/demo/{name}" for name in papers} <= set(contents)
    licences = {path.name for path in (ROOT / "localspec" / "demo" / "LICENSES").iterdir()}
    assert licences
    assert {f"localspec/demo/LICENSES/{name}" for name in licences} <= set(contents)


def test_wheel_holds_the_draft_for_smollm2_and_its_papers(contents: dict[str, int]) -> None:
    assert contents["localspec/smollm2/smollm2-draft.gguf"] == smollm2.draft().stat().st_size
    papers = {"LICENSE.txt", "MODEL_CARD.md", "SAMPLES.md"}
    assert {f"localspec/smollm2/{name}" for name in papers} <= set(contents)


def test_wheel_leaves_the_training_kit_out(contents: dict[str, int]) -> None:
    assert [name for name in contents if "training" in name or name.endswith(".xz")] == []


def test_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < MAX_WHEEL_BYTES


def test_wheel_carries_licence_and_command(wheel: Path) -> None:
    folder = f"localspec-{localspec.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        assert "localspec = localspec.__main__:main" in archive.read(f"{folder}/entry_points.txt").decode()


def test_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import localspec.__main__, localspec.demo, localspec_tui\n"
        "for path in localspec.demo.bundled_pair(): print(path, path.is_file())\n"
        "print(localspec_tui.__file__)\n"
        "print(len(localspec.demo.prompts()))\n"
        "localspec.__main__.main(['--help'])\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    target, draft, screens, num_prompts, *help_text = result.stdout.splitlines()
    assert target == f"{tmp_path / 'localspec' / 'demo' / 'demo-target.gguf'} True"
    assert draft == f"{tmp_path / 'localspec' / 'demo' / 'demo-draft.gguf'} True"
    assert num_prompts == "52"
    assert screens == str(tmp_path / "localspec_tui" / "__init__.py")
    assert any("localspec" in line for line in help_text), result.stderr


def test_sdist_has_the_training_kit_without_its_text(tmp_path: Path) -> None:
    sdist = build("sdist", tmp_path)
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert any(name.endswith("/training/train.py") for name in names)
    assert [name for name in names if name.endswith(".xz")] == []
    assert sdist.stat().st_size < MAX_SDIST_BYTES


def test_the_pythons_that_pip_is_reported_are_those_of_the_readme() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Python :: 3\.(\d+)", " ".join(project["classifiers"]))
    oldest, newest = int(named[0]), int(named[-1])
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [int(minor) for minor in named] == [*range(oldest, newest + 1)]
    assert project["requires-python"] == f">=3.{oldest}", "no cap: pip would refuse the next Python, untried"
    assert f"You need Python 3.{oldest} or newer (tested up to 3.{newest})" in readme


def test_native_and_screen_dependencies_are_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"llama-cpp-python==0.3.36", "textual==8.2.8"} <= set(project["dependencies"])
