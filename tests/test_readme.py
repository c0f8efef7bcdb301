"""What README shows is what the program does."""

import re
import subprocess
import sys
from pathlib import Path

from localspec.storage.config import example

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_help_in_the_readme_is_that_of_the_program() -> None:
    command = [sys.executable, "-m", "localspec", "--help"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"```text\n$ localspec --help\n{printed}```" in README


def test_the_configuration_in_the_readme_is_that_of_the_program() -> None:
    assert f"```toml\n{example()}```" in README


def test_the_pictures_are_there() -> None:
    names = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert len(names) >= 2
    assert all((ROOT / name).is_file() for name in names)


def test_the_two_commands_are_there() -> None:
    assert ".venv/bin/pip install '.[smollm2]' && .venv/bin/localspec\n" in README
    assert ".venv/bin/pip install -e '.[dev]' && .venv/bin/python -m pytest" in README
