"""Our own tools: what each is to a model, and the function that runs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

from localspec.errors import UserError
from localspec.storage.profiles import ToolGroup
from localspec.tools.arguments import read_arguments, schema_of
from localspec.tools.arithmetic import CalculateArguments, calculate
from localspec.tools.clock import TimeArguments, tell_time
from localspec.tools.commands import CommandRunner, RunArguments
from localspec.tools.finding import FileFinder, FindArguments, ListArguments
from localspec.tools.reading import FileReader, ReadArguments
from localspec.tools.rules import denied_path
from localspec.tools.searching import FileSearcher, SearchArguments, ripgrep
from localspec.tools.tool import Arguments, Effect, Tell, Tool, ToolOutput, tell_nobody
from localspec.tools.web.page import FetchArguments, PageFetcher
from localspec.tools.workspace import Workspace
from localspec.tools.writing import EditArguments, FileWriter, WriteArguments


@dataclass(frozen=True, slots=True)
class OwnTool:
    """One of our own tools; `preview` and `run` take an instance of `kind`, which is its arguments."""

    group: ToolGroup
    name: str
    description: str
    effect: Effect
    kind: type
    run: Callable[[Any, Event], str | ToolOutput]
    preview: Callable[[Any], str] = lambda _: ""
    run_aloud: Callable[[Any, Event, Tell], ToolOutput] | None = None  # the same, and tells what it prints

    @property
    def tool(self) -> Tool:
        """The tool as models and users see it."""
        return Tool(self.name, self.description, schema_of(self.kind), self.effect)


class OwnTools:
    """The tools of some groups, in one workspace."""

    def __init__(
        self,
        workspace: Workspace,
        groups: Collection[ToolGroup],
        private_hosts: tuple[str, ...] = (),
        deny: tuple[str, ...] = (),
    ) -> None:
        """Take the groups; `private_hosts` and the rules of `deny` are those of config.toml."""
        every = _tools(workspace, private_hosts, deny)
        self._tools = {each.name: each for each in every if each.group in groups}

    def tools(self) -> Sequence[Tool]:
        """Return the tools that can be called."""
        return [each.tool for each in self._tools.values()]

    def problems(self) -> Sequence[str]:
        """Return nothing: our own tools are always there."""
        return ()

    def preview(self, name: str, arguments: Arguments) -> str:
        """Return in Markdown what a call would do; raises UserError for a call that cannot succeed."""
        own = self._named(name)
        return own.preview(read_arguments(own.kind, arguments))

    def run(self, name: str, arguments: Arguments, stop: Event, tell: Tell = tell_nobody) -> ToolOutput:
        """Run a call; raises UserError, and Cancelled if `stop` is set before it can have a result."""
        own = self._named(name)
        given: object = read_arguments(own.kind, arguments)
        output = own.run(given, stop) if own.run_aloud is None else own.run_aloud(given, stop, tell)
        return output if isinstance(output, ToolOutput) else ToolOutput(output)

    def _named(self, name: str) -> OwnTool:
        if name not in self._tools:
            raise UserError(f"there is no tool `{name}`", f"tools: {', '.join(self._tools)}")
        return self._tools[name]


def _tools(workspace: Workspace, private_hosts: tuple[str, ...], deny: tuple[str, ...]) -> list[OwnTool]:
    def is_denied(path: str) -> bool:
        return denied_path(deny, ("read_file", "search_files"), path)

    reader = FileReader(workspace)
    finder = FileFinder(workspace)
    writer = FileWriter(workspace)
    searcher = FileSearcher(workspace, ripgrep(), is_denied)
    runner = CommandRunner(workspace)
    fetcher = PageFetcher(private_hosts)
    return [
        OwnTool(
            "files", "read_file", "Read a text or PDF file, with line numbers.", "reads",
            ReadArguments, reader.read,
        ),
        OwnTool(
            "files", "list_folder", "List a folder and the folders in it.", "reads",
            ListArguments, finder.list,
        ),
        OwnTool(
            "files", "find_files", "Find files or folders by a name pattern.", "reads",
            FindArguments, finder.find,
        ),
        OwnTool(
            "files", "search_files",
            "Search files for a text; shows the files and lines that contain it.", "reads",
            SearchArguments, searcher.search,
        ),
        OwnTool(
            "files", "edit_file", "Replace a text in a file, or several.", "writes",
            EditArguments, writer.edit, writer.preview_edit,
        ),
        OwnTool(
            "files", "write_file",
            "Create a new file, or replace a whole one; edit_file changes a part.", "writes",
            WriteArguments, writer.write, writer.preview_write,
        ),
        OwnTool(
            "run", "run_command", "Run a shell command and return its output.", "runs",
            RunArguments, runner.run, runner.preview, runner.run,
        ),
        OwnTool(
            "web", "fetch_page", "Fetch a web page as text.", "fetches",
            FetchArguments, fetcher.fetch, fetcher.preview,
        ),
        OwnTool("time", "time", "Tell the date and time.", "none", TimeArguments, tell_time),
        OwnTool(
            "calculate", "calculate", "Compute an expression exactly.", "none",
            CalculateArguments, calculate,
        ),
    ]  # fmt: skip
