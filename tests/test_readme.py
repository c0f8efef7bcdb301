"""What README shows is what the program does."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from localspec.app.checks.build import BACKENDS, COMMON_OPTIONS, rebuild_command
from localspec.cli.shared.arguments import SERVER_PORT
from localspec.hardware.described import read_machine
from localspec.storage.config import example

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = [*(ROOT / "docs").glob("*.md")]
RESULTS = ROOT / "tests" / "benchmarks" / "RESULTS.md"
LONGEST = 285  # lines; four minutes' reading


def rows(heading: str, page: str = README) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its own."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| ?(.*?) ?\|$", section.partition("|---|")[2], re.MULTILINE)
    return [line.split(" | ") for line in lines]


def test_the_help_in_the_readme_is_that_of_the_program() -> None:
    command = [sys.executable, "-m", "localspec", "--help"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"```text\n$ localspec --help\n{printed}```" in README


def test_the_configuration_in_the_readme_is_that_of_the_program() -> None:
    assert f"```toml\n{example()}```" in README


def test_the_machine_in_the_readme_can_be_read(tmp_path: Path) -> None:
    sentence = README.partition("The file needs two lines, ")[2].partition(";")[0]
    path = tmp_path / "machine.toml"
    path.write_text("\n".join(re.findall(r"`([^`]+)`", sentence)), encoding="utf-8")
    card, processor = read_machine(path).devices
    assert (card.name, card.memory_total, card.theoretical_rate) == ("RTX 3090", 24 * 2**30, 936e9)
    assert processor.memory_total == 64 * 2**30


def test_the_pictures_are_there() -> None:
    names = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert len(names) >= 2
    assert all((ROOT / name).is_file() for name in names)
    assert README.index(names[0]) < README.index("```"), "a picture comes first"


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", RESULTS, *DOCS],
    ids=lambda page: page.name,
)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    places = [place for place in re.findall(r"\]\(([^)]+)\)", text) if "://" not in place]
    lost = []
    for place in places:
        name, _, heading = place.partition("#")
        there = page.parent / name if name else page
        if not there.exists() or (heading and heading not in headings(there)):
            lost.append(place)
    assert lost == []


def headings(page: Path) -> set[str]:
    """Return the headings of a page as links spell them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {title.lower().replace(" ", "-") for title in titles}


def test_files_named_in_contributing_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:localspec|tui|tests|\.ci)/[\w./-]+)`", page)
    assert len(named) >= 15
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_settings_of_agents_can_be_copied() -> None:
    table = {program.partition(",")[0]: what for program, what in rows("Other programs")}
    copied = {program: re.findall("`([^`]+)`", what) for program, what in table.items()}
    codex = tomllib.loads("\n".join(line for line in copied["Codex"] if " = " in line))
    assert codex["model_provider"] in codex["model_providers"]
    opencode = json.loads(copied["OpenCode"][0])
    provider, _, model = opencode["model"].partition("/")
    assert model in opencode["provider"][provider]["models"]
    shown = [*codex["model_providers"].values(), opencode["provider"][provider]["options"]]
    for address in (each.get("base_url") or each.get("baseURL") for each in shown):
        assert address == f"http://127.0.0.1:{SERVER_PORT}/v1"


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LONGEST


def test_the_options_of_every_backend_are_those_of_doctor() -> None:
    table = {shown: added for _device, _before, added, shown in rows("Install")}
    assert table.pop("`MTL0`") == "nothing"  # a Mac's build has it without being told
    numbered = {name: name if name == "CPU" else f"{name}0" for name in BACKENDS}
    assert table == {
        f"`{numbered[name]}`": f"`{options}`" if options else "nothing"
        for name, (options, _tool, _source) in BACKENDS.items()
    }
    assert README.count(f'CMAKE_ARGS="{COMMON_OPTIONS}') >= 2
    assert COMMON_OPTIONS in rebuild_command(())


def test_the_speeds_are_those_of_the_results() -> None:
    speeds = rows("How fast it is")
    assert len(speeds) >= 5
    results = RESULTS.read_text(encoding="utf-8")
    assert [row for row in speeds if f"| {' | '.join(row)} |\n" not in results] == []


def test_the_two_commands_are_there() -> None:
    assert ".venv/bin/pip install '.[smollm2]' && .venv/bin/localspec\n" in README
    assert ".venv/bin/pip install -e '.[dev]' && .venv/bin/python -m pytest" in README
