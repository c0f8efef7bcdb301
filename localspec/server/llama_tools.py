"""The tools that llama-server brings, by its names and arguments, made of ours: clients know them.

What is missing in the table is refused by the check of the arguments: ours say which there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from localspec.app.answer_json import Json
from localspec.tools.tool import ToolOutput


@dataclass(frozen=True, slots=True)
class LlamaTool:
    """Our tool in its place, our names of its arguments (None: it does not matter), and its reply."""

    name: str
    arguments: Mapping[str, str | None] = field(default_factory=dict)
    reply: Callable[[ToolOutput, Json], Json] = lambda output, _: {"plain_text_response": output.text}

    def given(self, arguments: Mapping[str, Any]) -> Json:
        """Return the arguments of a call under our names."""
        names = {name: self.arguments.get(name, name) for name in arguments}
        found = {name: arguments[given] for given, name in names.items() if name is not None}
        edits = found.get("edits")
        if self.name == "edit_file" and isinstance(edits, list) and edits and isinstance(edits[0], dict):
            found = {**found, **edits[0], "more_edits": edits[1:]}
            del found["edits"]
        return found


def _content(output: ToolOutput, asked: Json) -> Json:
    """Return a file as it is, unless numbers of lines are asked for."""
    text = output.text if asked.get("append_loc") else output.data.get("content", output.text)
    return {"plain_text_response": text}


def _counted(output: ToolOutput, _asked: Json) -> Json:
    total = f"\n\n---\nTotal matches: {output.data['matches']}\n"
    return {"plain_text_response": f"{output.text}{total}"}


def _with_code(output: ToolOutput, _asked: Json) -> Json:
    return {"plain_text_response": f"{output.text}\n[exit code: {output.data['exit_code']}]"}


_SAID_IN_HEADERS: Mapping[str, str | None] = {"cwd": None, "runtime": None}  # and not by a model
_TOOLS = {
    "read_file": LlamaTool(
        "read_file", {"start_line": "from_line", "end_line": "to_line", "append_loc": None}, _content
    ),
    "file_glob_search": LlamaTool("find_files", {"include": "pattern"}, _counted),
    "grep_search": LlamaTool("search_files", {"include": "files", "return_line_numbers": None}, _counted),
    "write_file": LlamaTool(
        "write_file", {"content": "text"}, lambda *_: {"result": "file written successfully"}
    ),
    "edit_file": LlamaTool("edit_file", reply=lambda *_: {"result": "file edited successfully"}),
    "exec_shell_command": LlamaTool(
        "run_command", {"timeout": "timeout_s", "max_output_size": None}, _with_code
    ),
}


def llama_tool(name: str) -> LlamaTool:
    """Return the tool that runs for a name, which may be one of ours or of an MCP server."""
    found = _TOOLS.get(name)
    if found is None:
        return LlamaTool(name)
    return replace(found, arguments={**found.arguments, **_SAID_IN_HEADERS})
