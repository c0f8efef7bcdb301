"""What README shows is what the program does."""

import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_help_in_the_readme_is_that_of_the_program() -> None:
    command = [sys.executable, "-m", "localspec", "--help"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"```text\n$ localspec --help\n{printed}```" in README


def test_the_two_commands_are_there() -> None:
    assert ".venv/bin/pip install . && .venv/bin/localspec\n" in README
    assert ".venv/bin/pip install -e '.[dev]' && .venv/bin/python -m pytest" in README
