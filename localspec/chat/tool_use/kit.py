"""The tools of a session: who runs them, which rules hold, and how long an answer may go on calling."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localspec.chat.tool_use.consent import Judge
from localspec.errors import LocalSpecError
from localspec.storage.config import StepsMode
from localspec.tools.tool import Tool, Toolbox, ToolOutput

if TYPE_CHECKING:
    from localspec.tools.mcp.server import McpServer

MOST_ROUNDS = 20  # of calls in one answer; then the model answers without tools


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools that an answer may call, each with what runs it; `problems` say which could not be had."""

    owners: Mapping[str, tuple[Tool, Toolbox]]
    problems: tuple[str, ...] = ()

    @property
    def functions(self) -> tuple[str, ...]:
        """Return the tools as requests have them."""
        return tuple(tool.as_function() for tool, _ in self.owners.values())


Present = Callable[[Tool, ToolOutput, int], str]
"""Makes of a tool's output what the model reads, of at most a number of characters."""


@dataclass(frozen=True, slots=True)
class ToolKit:
    """Toolboxes by the names with which users switch them on.

    `always` takes the rule of calls that the user always allows; `close` ends what runs the tools.
    `servers` are the MCP servers, by the names with which users call their prompts and resources; `waiting`
    names the boxes whose servers have not been started. Tools that `offers` does not want are left out.
    `steps` says for which models questions of several steps are split.
    `within` returns the kit with paths that count from a folder of the workspace; raises UserError.
    """

    boxes: Mapping[str, Toolbox]
    words: Mapping[str, str]  # what each box is for
    judge: Judge
    always: Callable[[str], object]
    present: Present
    close: Callable[[], object]
    most_rounds: int = MOST_ROUNDS
    steps: StepsMode = "off"
    servers: Mapping[str, McpServer] = field(default_factory=dict)
    waiting: Callable[[], Collection[str]] = tuple
    offers: Callable[[Tool], bool] = lambda _tool: True
    within: Callable[[str], ToolKit] | None = None

    def offered(self, names: Collection[str]) -> OfferedTools:
        """Return the tools of the boxes that are on; may start servers, and wait for them."""
        owners: dict[str, tuple[Tool, Toolbox]] = {}
        problems: list[str] = []
        for name in names:
            box = self.boxes.get(name)
            try:
                tools: Sequence[Tool] = () if box is None else box.tools()
            except LocalSpecError as error:
                problems.append(f"the tools of {name} are not offered: {error}")
                continue
            if box is None:
                problems.append(f"there are no tools {name}; /tools lists those that there are")
            else:
                wanted = [tool for tool in tools if tool.name not in owners and self.offers(tool)]
                owners |= {tool.name: (tool, box) for tool in wanted}
                problems += box.problems()
        return OfferedTools(owners, tuple(problems))
