"""Scripted models that call tools, and tools that a test controls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from threading import Event

from localspec.chat.tool_use.consent import Verdict
from localspec.chat.tool_use.kit import ToolKit
from localspec.storage.config import StepsMode
from localspec.tools.tool import Arguments, Effect, Tell, Tool, ToolOutput, tell_nobody
from localspec.types.drafts import Token
from localspec.types.request import Request
from tests.scripted import ScriptedModels

ANY = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def called(name: str, /, **arguments: object) -> str:
    """Return a call as the models of this test write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class WritesCalls:
    """A template that writes calls as JSON between tags."""

    def render(self, request: Request) -> str:
        """Return a conversation with its calls."""
        assert not isinstance(request.prompt, str)
        parts = []
        for message in request.prompt:
            calls = [
                f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'
                for call in message.tool_calls
            ]
            parts.append(f"<|{message.role}|>{chr(10).join([message.content, *calls])}<|end|>\n")
        return "".join([*parts, "<|assistant|>"])

    def tokenize(self, text: str, *, special: bool = True, add_special: bool = False) -> list[Token]:
        """Return two tokens: no tag is a single one."""
        return [(1, text[:1].encode()), (2, text[1:].encode())]


class CallingModels(WritesCalls, ScriptedModels):
    """Scripted models that can call tools."""


class HarmonyModels(CallingModels):
    """Scripted models with a template like that of gpt-oss."""

    def render(self, request: Request) -> str:
        """Return a conversation with its calls in channels."""
        assert not isinstance(request.prompt, str)
        parts = []
        for message in request.prompt:
            head = "<|start|>assistant"
            calls = [
                f"{head}<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>"
                f"{call.arguments}<|call|>"
                for call in message.tool_calls
            ]
            if message.role == "assistant" and message.content:
                calls.insert(0, f"{head}<|channel|>final<|message|>{message.content}<|end|>")
            text = f"<|start|>{message.role}<|message|>{message.content}<|end|>"
            parts.append("".join(calls) if message.role == "assistant" else text)
        return "".join([*parts, "<|start|>assistant"])


class OpensThinking(CallingModels):
    """Scripted models with a template like Qwen3's, whose prompt opens the thinking."""

    def render(self, request: Request) -> str:
        """Return a conversation with its calls."""
        return f"{super().render(request)}<think>\n"


class MadeTools:
    """Tools of these effects; each returns what its function does, and `ran` keeps all calls."""

    def __init__(
        self, effects: Mapping[str, Effect], act: Callable[[str, Arguments, Event], str | ToolOutput]
    ) -> None:
        self.effects, self.act = effects, act
        self.ran: list[tuple[str, Arguments]] = []
        self.troubles: list[str] = []

    def tools(self) -> Sequence[Tool]:
        return [Tool(name, f"Do {name}.", ANY, effect) for name, effect in self.effects.items()]

    def problems(self) -> Sequence[str]:
        return self.troubles

    def preview(self, name: str, arguments: Arguments) -> str:
        return f"would {name} `{arguments['path']}`"

    def run(self, name: str, arguments: Arguments, stop: Event, tell: Tell = tell_nobody) -> ToolOutput:
        self.ran.append((name, arguments))
        found = self.act(name, arguments, stop)
        return found if isinstance(found, ToolOutput) else ToolOutput(found)


def judge(tool: Tool, _arguments: Arguments) -> Verdict:
    """Allow what only reads, refuse what is called `forbidden`, and have all else asked."""
    if tool.name == "forbidden":
        return Verdict("refused", "the rule forbidden")
    return Verdict("allowed", "the rule reads") if tool.effect == "reads" else Verdict("ask", "", tool.name)


def kit_of(tools: MadeTools, most_rounds: int = 20, steps: StepsMode = "off") -> ToolKit:
    """Return a kit with one box, `made`."""
    return ToolKit(
        {"made": tools},
        {"made": "tools of a test"},
        judge,
        always=lambda _rule: None,
        present=lambda _tool, output, most: output.text[:most],
        close=lambda: None,
        most_rounds=most_rounds,
        steps=steps,
    )
