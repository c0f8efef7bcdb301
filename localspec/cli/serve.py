"""`localspec serve`: one address for editors, agents and scripts that speak OpenAI's protocol."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.app.opening import plan_to_open, saved_bytes, with_config, with_longest_context
from localspec.chat.answer_settings import AUTO, with_auto
from localspec.cli.shared import opening
from localspec.cli.shared.answer_request import session_request
from localspec.cli.shared.arguments import (
    KEY_VARIABLE,
    SERVER_PORT,
    Parser,
    add_model_flags,
    add_prompt_flags,
    add_sampling_flags,
    add_speculation_flags,
    add_verbose_flag,
    pair_request,
    set_up_logging,
    verb_parser,
    whole,
)
from localspec.cli.shared.console import SUCCESS, exit_on_signals, say
from localspec.errors import UserError
from localspec.gguf import read_model
from localspec.inference.interface import SharedModels
from localspec.models.default_pair import name_of
from localspec.models.pair_files import local_file
from localspec.storage.config import read_config
from localspec.storage.paths import config_dir
from localspec.storage.profiles import profiles
from localspec.types.models import ModelInfo, ModelOptions
from localspec.units import memory

if TYPE_CHECKING:
    from localspec.chat.tool_use.kit import ToolKit
    from localspec.inference.embedder import Embedder


def parser() -> Parser:
    """Return the parser of `localspec serve`."""
    result = verb_parser(
        "serve",
        "Serve the OpenAI and Anthropic APIs at one address. Clients see each profile as a model; any other "
        "model name means the default profile. Flags set the defaults of requests.",
    )
    add = result.add_argument_group("server").add_argument
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen at (127.0.0.1)")
    about = f"port ({SERVER_PORT}; 0 takes a free one)"
    add("--port", type=whole(0, 65535), default=SERVER_PORT, metavar="N", help=about)
    about = f"API key that clients must send; prefer {KEY_VARIABLE}, which other users cannot see"
    add("--api-key", metavar="KEY", default=os.environ.get(KEY_VARIABLE), help=about)
    about = "web origin that may send requests: https://example.org, chrome-extension://*; repeatable"
    add("--allow-origin", action="append", default=[], metavar="ORIGIN", help=about)
    about = "name of this machine in requests that a proxy passes on; repeatable"
    add("--allow-host", action="append", default=[], metavar="NAME", help=about)
    about = "number of answers to interleave; the one with the fewest tokens so far is next (4)"
    add("-np", "--parallel", type=whole(1, 64), default=4, metavar="N", help=about)
    about = "off: strictly in the order of arrival; the same as --parallel 1"
    add("--share", choices=("on", "off"), default="on", help=about)
    about = "model for /v1/embeddings: a GGUF file, or a name from `localspec models`"
    add("--embeddings", metavar="FILE", help=about)
    about = "let clients use these MCP servers, or single tools of them: time,git.git_log; they run unasked"
    add("--mcp", metavar="NAMES", help=about)
    about = "memory for the KV caches of other conversations, in MiB (a quarter of free memory, at most 8192)"
    add("-cram", "--cache-ram", type=whole(0, 2**24), metavar="MIB", help=about)
    about = (
        "used by --host on the other machine: reads the key from the first line of standard input, and ends "
    )
    about += "with it"
    add("--tunnel", action="store_true", help=about)
    for add_flags in (add_model_flags, add_sampling_flags, add_prompt_flags):
        add_flags(result)
    add_speculation_flags(result)
    add_verbose_flag(result.add_argument_group("output").add_argument)
    return result


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().parse_args(argv)
    if args.tunnel:
        from localspec.inference.remote import end_with_input

        args.api_key = sys.stdin.readline().strip() or None
        threading.Thread(target=end_with_input, name="localspec-tunnel", daemon=True).start()
    is_local = _check_safe(args)
    known_profiles = profiles(config_dir() / "profiles")
    usual = args.profile or AUTO
    offered = sorted(with_auto(known_profiles), key=lambda known: known.name != usual)
    by_name = {known.name: known for known in offered}
    if usual not in by_name:
        known_profiles.named(usual)  # says what is close
    asked, request = session_request(args), with_config(pair_request(args))
    files = opening.find_files(request)
    kit = None if args.mcp is None else _kit(args.mcp)
    if args.embeddings is not None:
        read_model(local_file(args.embeddings, opening.TERMINAL))  # a mistake shows before models open
    set_up_logging(verbose=args.verbose)
    from localspec.server import running  # Starlette: 0.2 s, which a mistake does without
    from localspec.server.queue import EngineQueue
    from localspec.server.service import ChatService

    doors = running.access(args.host, args.api_key, args.allow_origin, args.allow_host, is_local=is_local)
    with (
        running.listen(args.host, args.port) as listener,
        opening.start_worker(verbose=args.verbose) as first,
    ):
        opening.check_explained(request, explain=args.explain)
        report = say if args.explain else None
        planned = plan_to_open(request, files, via=first.values_of, report=report, explain=args.explain)
        if not request.context and not args.tunnel:
            planned = with_longest_context(planned, files, via=first.values_of)
        plan = replace(planned.plan, remembers_costs=True)
        saved = saved_bytes() if args.cache_ram is None else args.cache_ram * 2**20
        workers = [first]

        def open_models() -> SharedModels:
            worker = workers.pop() if workers else opening.start_worker(verbose=args.verbose)
            opening.load(worker, plan)
            worker.keep_conversations(saved)
            return worker

        parallel = 1 if args.share == "off" else args.parallel
        queue = EngineQueue(open_models, planned.tuned_for, parallel, say)
        embeds = _embedder(args.embeddings, plan.target.threads)
        with closing(queue), nullcontext() if kit is None else closing(kit), embeds as embedder:
            opening.tell_notes(first, plan, request)
            if args.explain:
                say(asked.explained_sampling(by_name[usual], queue.models.target.recommended))
            if kit is not None:
                say(f"MCP servers for clients: {', '.join(kit.boxes)}; their tools run without a question")
            _tell_address(listener, queue.models, list(by_name))
            service = ChatService(queue, by_name, usual, asked, say, embedder=embedder, kit=kit)
            with suppress(KeyboardInterrupt, SystemExit), exit_on_signals():
                running.run(service, doors, listener)
    return SUCCESS


def _kit(named: str) -> ToolKit:
    """Return the MCP servers that clients may use; raises UserError. None is started yet."""
    from localspec.app.tools import clients_kit
    from localspec.tools.mcp.server import check_installed

    names = [name for name in re.split(r"[,\s]+", named) if name]
    if not names:
        raise UserError("--mcp names no server", "`localspec mcp list` lists them")
    kit = clients_kit(read_config(config_dir() / "config.toml"), Path.cwd(), names)
    check_installed()
    return kit


@contextmanager
def _embedder(named: str | None, threads: int) -> Iterator[Embedder | None]:
    """Open the model for embeddings, if there is one, on the CPU: the plan is that of the others."""
    if named is None:
        yield None
        return
    from localspec.inference.embedder import Embedder

    path = local_file(named, opening.TERMINAL)
    embedder = Embedder(ModelOptions(path=path, gpu_layers=0, threads=threads))
    say(f"embeddings by {embedder.info.name}, of texts up to {embedder.info.context:,} tokens")
    with closing(embedder):
        yield embedder


def _tell_address(listener: socket.socket, models: SharedModels, names: Sequence[str]) -> None:
    from localspec.inference.remote import READY

    host, port = listener.getsockname()[:2]
    with_draft = f" with draft {name_of(models.draft)}" if models.draft else ""
    say(f"{name_of(models.target)}{with_draft}; models for clients: {', '.join(names)}")
    say(_context_line(models.target))
    say(f"KV caches of other conversations: up to {memory(models.saved().limit)}; see /props")
    say(f"{READY}http://{f'[{host}]' if ':' in host else host}:{port}/v1; Ctrl+C ends it")


def _context_line(target: ModelInfo) -> str:
    """Return a line about the context, and the one that the model was trained for."""
    return f"context: {target.context:,} tokens (-c); the model was trained for {target.training_context:,}"


def _check_safe(args: argparse.Namespace) -> bool:
    """Return whether only this machine can ask; raises UserError where others could without a key."""
    host: str = args.host
    key: str | None = args.api_key
    is_local = host == "localhost"
    with suppress(ValueError):
        is_local = is_local or ip_address(host).is_loopback
    if not is_local and not key:
        raise UserError(
            f"--host {host} accepts other machines and needs an API key",
            f"set {KEY_VARIABLE} or add --api-key KEY, or leave out --host",
        )
    if key is not None and not (key.isascii() and key.isprintable() and key):
        raise UserError(
            "the API key contains a character that HTTP headers do not allow", "use letters and digits only"
        )
    return is_local
