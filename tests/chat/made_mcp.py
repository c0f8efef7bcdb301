"""An MCP server that a test makes, without a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event

from localspec.errors import Cancelled, UserError
from localspec.tools.mcp.contents import ResourceContent
from localspec.tools.mcp.entries import ServerEntry
from localspec.tools.mcp.known import Known
from localspec.tools.mcp.listings import McpPrompt, McpResource, PromptArgument
from localspec.tools.mcp.server import McpServer

REVIEW = McpPrompt(
    "docs",
    "review",
    "Review a file",
    (PromptArgument("file", "what to review", required=True), PromptArgument("style", "", required=False)),
)
PLAIN = McpPrompt("docs", "plain one", "Without arguments")
NOTE = McpResource("docs", "note:one", "One", "A note", "text/plain")
PICTURE = McpResource("docs", "pic:a.png", "Picture", "", "image/png")
SPACED = McpResource("docs", "note:two words", "Two words", "")


class MadeServer(McpServer):
    """A server with the name `docs`: `asked` has all that it was asked, and `problem` ends each question.

    With `hangs`, it answers nothing until it is stopped.
    """

    def __init__(
        self,
        contents: Mapping[str, ResourceContent] | None = None,
        *,
        prompt: str = "Review it.",
        problem: str = "",
        hangs: bool = False,
        runs: bool = False,
    ) -> None:
        super().__init__("docs", ServerEntry(command="none"), Path())
        self.contents = {"note:one": ResourceContent("the note")} if contents is None else contents
        self.text, self.problem, self.hangs, self.runs = prompt, problem, hangs, runs
        self.asked: list[str] = []

    @property
    def is_running(self) -> bool:
        return self.runs

    def prompts(self, stop: Event | None = None) -> Sequence[McpPrompt]:
        self._note("prompts", stop)
        self.memory.put(("prompts",), Known((REVIEW, PLAIN)))
        return (REVIEW, PLAIN)

    def prompt(self, name: str, arguments: Mapping[str, str], stop: Event) -> str:
        self._note(f"{name} {dict(arguments)}", stop)
        return self.text

    def resources(self, stop: Event | None = None) -> Sequence[McpResource]:
        self._note("resources", stop)
        self.runs = True
        self.memory.put(("resources",), Known((NOTE, PICTURE, SPACED)))
        return (NOTE, PICTURE, SPACED)

    def resource(self, uri: str, stop: Event) -> ResourceContent:
        self._note(uri, stop)
        if uri not in self.contents:
            raise UserError("the MCP server `docs` answered with an error: Resource not found")
        self.memory.put(uri, Known(self.contents[uri]))
        return self.contents[uri]

    def _note(self, what: str, stop: Event | None) -> None:
        self.asked.append(what)
        if self.hangs and stop is not None:
            assert stop.wait(60)
            raise Cancelled("the call was stopped")
        if self.problem:
            raise UserError(self.problem)
