"""Tools that clients list and call themselves, without a model: `/tools`, in llama-server's words.

A page in a browser never gets them, unless it is the server's own. A client cannot name an address, and paths
stay in the workspace.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import uuid4

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.app.answer_json import Json
from localspec.app.client_tools import OWN
from localspec.chat.tool_use.background import in_background
from localspec.chat.tool_use.calls_run import CallEnded, CallEvent, run_calls
from localspec.chat.tool_use.consent import ConsentDesk
from localspec.chat.tool_use.described import describe_run
from localspec.chat.tool_use.kit import OfferedTools, ToolKit
from localspec.safe_text import safe_line, whole_text
from localspec.server.exchange import ApiError, read, read_json, streamed, unless_gone
from localspec.server.llama_tools import LlamaTool, llama_tool
from localspec.server.origins import is_foreign
from localspec.server.queue import ServerEndsError
from localspec.server.served import ServedModels
from localspec.server.service import Protocol
from localspec.server.threads import in_thread
from localspec.tools.mcp.names import server_names
from localspec.tools.tool import Tool, Toolbox
from localspec.types.request import ToolCall

_FOLDER = "x-tool-cwd"
_ELSEWHERE = "x-tool-runtime"
_CHANGES = ("writes", "runs")
_IN_FOLDER = ("reads", "writes", "runs")
_LONGEST_NAME = 100
Owners = Mapping[str, tuple[Tool, Toolbox]]


@dataclass(frozen=True, slots=True)
class CallBody:
    """A call of a tool."""

    tool: str
    params: Mapping[str, object] = field(default_factory=dict)
    stream: bool = False


@dataclass(frozen=True, slots=True)
class DirectCall:
    """A call that a client makes: the tool by the client's name for it, and how it is run here."""

    body: CallBody
    form: LlamaTool
    call: ToolCall
    offered: OfferedTools
    kit: ToolKit
    models: ServedModels

    async def steps(self) -> AsyncGenerator[str | CallEvent]:
        """Yield what the call prints, and its end; closing the generator stops it, as does the server's end.

        Raises HTTPException (403) if no rule allows it, and `ServerEndsError`.
        """
        desk = ConsentDesk()
        self.models.running_calls.add(desk)
        try:
            async with aclosing(in_thread(partial(self._run, desk))) as steps:
                async for step in steps:
                    if desk.stopped.is_set():
                        raise ServerEndsError("the call was stopped: the server ends")
                    if isinstance(step, CallEnded):
                        self._check_end(step)
                    yield step
        finally:
            self.models.running_calls.discard(desk)
            desk.stop()

    def _run(self, desk: ConsentDesk, tell: Callable[[str | CallEvent], None]) -> None:
        for step in run_calls((self.call,), self.offered, self.kit, desk, tell=tell):
            tell(step)

    def _check_end(self, ended: CallEnded) -> None:
        self.models.server.log(describe_run(ended.run))
        if ended.run.outcome == "refused":
            raise HTTPException(403, f"{self.body.tool} was not run: {ended.run.because}")

    def reply(self, ended: CallEnded) -> Json:
        """Return the result of the call."""
        if ended.output is None or ended.run.outcome != "done":
            text = ended.text if ended.output is None else ended.output.text
            return {"error": whole_text(text)}
        told = self.form.reply(ended.output, dict(self.body.params))
        data = {name: value for name, value in ended.output.data.items() if name != "content"}
        return {name: whole_text(v) if isinstance(v, str) else v for name, v in (data | told).items()}

    async def chunks(self) -> AsyncGenerator[Json]:
        """Yield what the call prints as it comes, all of the result if it prints nothing, and the end."""
        has_told = False
        async with aclosing(self.steps()) as steps:
            async for step in steps:
                if isinstance(step, str):
                    has_told = True
                    yield {"chunk": step}
                elif isinstance(step, CallEnded):
                    for chunk in self._last_chunks(step, has_told=has_told):
                        yield chunk

    def _last_chunks(self, ended: CallEnded, *, has_told: bool) -> list[Json]:
        reply = self.reply(ended)
        data = {} if ended.output is None else ended.output.data
        done: Json = {"done": True} | {name: reply[name] for name in ("error", "exit_code") if name in reply}
        if has_told and "exit_code" in data:
            why = f" [{data['ended']}]" if data["ended"] else ""
            return [{"chunk": f"\n[exit code: {data['exit_code']}]{why}"}, done]
        text = reply.get("plain_text_response") or reply.get("result")
        return [{"chunk": text}, done] if text else [done]


async def _list(models: ServedModels, request: Request) -> Response:
    _check_page(request)
    kit = models.server.kit
    owners: Owners = {} if kit is None else (await _owners(models, kit, tuple(kit.boxes)))[0]
    return JSONResponse([_described(name, tool) for name, (tool, _) in owners.items()])


def _described(name: str, tool: Tool) -> Json:
    function = json.loads(replace(tool, name=name).as_function())
    return {
        "tool": name,
        "display_name": name.replace("_", " ").capitalize(),
        "type": "mcp" if tool.source else "server",
        "permissions": {"write": tool.effect in _CHANGES},
        "uses_cwd": not tool.source and tool.effect in _IN_FOLDER,
        "definition": function,
    }


async def _call(models: ServedModels, request: Request) -> Response:
    body = read(CallBody, await read_json(request))
    _check_page(request)
    kit = models.server.kit
    if kit is None:
        raise HTTPException(403, "this server offers no tools; see --tools and --mcp")
    if _ELSEWHERE in request.headers:
        raise HTTPException(501, f"{_ELSEWHERE} is not offered: tools run on this machine alone")
    folder = request.headers.get(_FOLDER)
    if folder and OWN in kit.boxes and kit.within is not None:
        kit = kit.within(folder)
    kit = replace(kit, present=lambda _tool, output, _most: output.text)
    form = llama_tool(body.tool)
    owners, problems = await _owners(models, kit, _boxes_of(kit, form.name))
    own = next((own for name, own in owners.items() if form.name in (name, own[0].name)), None)
    if own is None and problems:  # of the server that may have it
        return JSONResponse({"error": "; ".join(problems)})
    if own is None:
        name = safe_line(body.tool)[:_LONGEST_NAME]
        raise HTTPException(404, f"there is no tool {name}; GET /tools lists what there is")
    arguments = json.dumps(form.given(body.params))
    call = ToolCall(f"call_{uuid4().hex}", own[0].name, arguments)
    direct = DirectCall(body, form, call, OfferedTools({own[0].name: own}), kit, models)
    if body.stream:
        return await streamed(request, direct.chunks(), _failed)
    return JSONResponse(await unless_gone(request, _result(direct)))


def _failed(failure: ApiError) -> Json:
    """Return the end of a stream that was stopped."""
    return {"done": True, "error": failure.message}


async def _result(direct: DirectCall) -> Json:
    reply: Json = {}
    async with aclosing(direct.steps()) as steps:
        async for step in steps:
            if isinstance(step, CallEnded):
                reply = direct.reply(step)
    return reply


def _check_page(request: Request) -> None:
    """Raise HTTPException (403) for a page in a browser, unless it is the server's own."""
    if is_foreign(request):
        raise HTTPException(403, "pages of other addresses may not use the tools of this server")


def _boxes_of(kit: ToolKit, name: str) -> tuple[str, ...]:
    """Return the boxes that may have a tool of a name, so that no other server is started for it."""
    fits = server_names([label for label in kit.boxes if label != OWN])
    return (OWN, *(label for label, fit in fits.items() if name.startswith(f"{fit}_")))


async def _owners(models: ServedModels, kit: ToolKit, labels: tuple[str, ...]) -> tuple[Owners, list[str]]:
    """Return the tools of some boxes by llama-server's names, SERVER_TOOL, and what keeps others from it.

    May start servers.
    """
    begun = [in_background(partial(kit.offered, (label,)), "tools") for label in labels if label in kit.boxes]
    found = dict[str, tuple[Tool, Toolbox]]()
    problems = list[str]()
    for offered in await asyncio.gather(*map(asyncio.wrap_future, begun)):
        problems += offered.problems
        for problem in offered.problems:
            models.server.warn(problem)
        for name, own in offered.owners.items():
            tool = own[0]
            shorter = f"{tool.source}_{tool.own_name}" if tool.source else name
            found[name if shorter in found else shorter] = own
    return found, problems


PROTOCOL: Protocol[ServedModels] = Protocol({"/tools": _call}, told={"/tools": _list})
