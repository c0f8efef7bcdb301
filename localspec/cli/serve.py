"""`localspec serve`: one address for editors, agents and scripts that speak OpenAI's protocol."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.app.offered import OfferedEncoder, encoder
from localspec.app.opening import plan_encoder, report_plan, with_config
from localspec.chat.answer_settings import AUTO, with_auto
from localspec.cli.shared import opening
from localspec.cli.shared.answer_request import session_request
from localspec.cli.shared.arguments import (
    KEY_VARIABLE,
    SERVER_PORT,
    Parser,
    add_model_flags,
    add_pooling_flag,
    add_prompt_flags,
    add_sampling_flags,
    add_speculation_flags,
    add_unified_flag,
    add_verbose_flag,
    file_size,
    length_of_time,
    set_up_logging,
    verb_parser,
    whole,
)
from localspec.cli.shared.catalogue import FirstPair, ServedCatalogue, parallel_of, served_request
from localspec.cli.shared.console import SUCCESS, exit_on_signals, say
from localspec.errors import LocalSpecError, UserError
from localspec.inference.interface import SeatedModels, SharedModels
from localspec.models.default_pair import name_of
from localspec.models.pair_files import PairFiles, local_file
from localspec.storage.config import read_config
from localspec.storage.paths import config_dir, expanded
from localspec.storage.profiles import profiles
from localspec.types.models import ModelInfo
from localspec.units import memory

if TYPE_CHECKING:
    from localspec.app.offered import EncoderKind
    from localspec.chat.tool_use.kit import ToolKit
    from localspec.models.pair_request import PairRequest
    from localspec.server.application import AccessPolicy
    from localspec.server.offers import PairSettings
    from localspec.server.served import RouterSettings, ServedModel, ServedModels
    from localspec.server.service import ChatService, ServerSettings
    from localspec.storage.profiles import Profile

_SHOWN = 12  # names of models
_SHOWN_BY_DEFAULT = {
    "ui": "show a page at the address itself (yes)",
    "slots": "tell at /slots what is being answered (yes)",
    "metrics": "tell figures at /metrics, for Prometheus and for the page (yes)",
}


def parser() -> Parser:
    """Return the parser of `localspec serve`."""
    result = verb_parser(
        "serve",
        "Serve the OpenAI and Anthropic APIs at one address. Clients see each profile as a model; any other "
        "model name means the default profile. With --models they see models, with each profile behind a "
        "colon: NAME:coding. Flags set the defaults of requests.",
    )
    add = result.add_argument_group("server").add_argument
    about = "address to listen at, or several with commas: 127.0.0.1,::1 (127.0.0.1)"
    add("--host", type=addresses, default=("127.0.0.1",), metavar="ADDRESS", help=about)
    about = f"port ({SERVER_PORT}; 0 takes a free one)"
    add("--port", type=whole(0, 65535), default=SERVER_PORT, metavar="N", help=about)
    about = f"API key that clients must send; prefer {KEY_VARIABLE}, which other users cannot see"
    add("--api-key", metavar="KEY", default=os.environ.get(KEY_VARIABLE), help=about)
    _add_page_flags(add)
    about = "number of answers to write at once, or by turns where the models cannot share passes (4)"
    add("-np", "--parallel", type=whole(1, 64), default=4, metavar="N", help=about)
    about = "off: strictly in the order of arrival; the same as --parallel 1"
    add("--share", choices=("on", "off"), default="on", help=about)
    add_unified_flag(partial(add, default=True))
    about = "model for /v1/embeddings: a GGUF file, or a name from `localspec models`"
    add("--embeddings", metavar="FILE", help=about)
    add_pooling_flag(add)
    about = "model for /v1/rerank, which orders documents by a query: a file or a name, as above"
    add("--rerank", "--reranking", metavar="FILE", help=about)
    about = "let clients use these MCP servers, or single tools of them: time,git.git_log; they run unasked"
    add("--mcp", metavar="NAMES", help=about)
    about = "take MCP servers from this file instead of mcp.json: all of them, unless --mcp names some"
    add("--mcp-config", type=Path, metavar="FILE", help=about)
    about = (
        "let clients use LocalSpec's own tools in this folder, unasked: files, web, time, calculate or "
        "all, and what writes or runs something by its own name: edit_file, write_file, run_command"
    )
    add("--tools", metavar="NAMES", help=about)
    _add_model_choice_flags(add)
    about = (
        "MiB for the KV caches of other conversations, of each pair (a quarter of free memory, at most 8192)"
    )
    add("-cram", "--cache-ram", type=whole(0, 2**24), metavar="MIB", help=about)
    about = (
        "disk for the same, such as 10G, so that they outlive the server; 0: none (cache_disk in config.toml)"
    )
    add("--cache-disk", type=file_size, metavar="SIZE", help=about)
    about = "folder for conversations that clients save and restore by POST /slots/N?action=save"
    add("--slot-save-path", metavar="FOLDER", help=about)
    for what, about in _SHOWN_BY_DEFAULT.items():
        add(f"--{what}", action=argparse.BooleanOptionalAction, default=True, help=about)
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


def _add_page_flags(add: Callable[..., argparse.Action]) -> None:
    """Add the flags about web pages that may send requests, and names of this machine."""
    about = "web origin that may send requests: https://example.org, chrome-extension://*; repeatable"
    add("--allow-origin", action="append", default=[], metavar="ORIGIN", help=about)
    about = "several such origins, with commas; localhost means all pages of this machine, * any page"
    add("--cors-origins", type=listed, default=(), metavar="LIST", help=about)
    about = "methods that such pages may use (all)"
    add("--cors-methods", type=listed, metavar="LIST", help=about)
    about = "headers that such pages may send (all)"
    add("--cors-headers", type=listed, metavar="LIST", help=about)
    about = "let such pages send requests with credentials (no)"
    add("--cors-credentials", action=argparse.BooleanOptionalAction, default=False, help=about)
    about = "name of this machine in requests that a proxy passes on; repeatable"
    add("--allow-host", action="append", default=[], metavar="NAME", help=about)


def _add_model_choice_flags(add: Callable[..., argparse.Action]) -> None:
    """Add the flags about models that requests name: when they open and close."""
    about = "open the models that requests name: those of [pairs] in config.toml, or all on this computer"
    add("--models", action="store_true", help=about)
    about = "--models with the GGUF files of this folder instead"
    add("--models-dir", type=expanded, metavar="FOLDER", help=about)
    about = "--models with the models of an INI file as well: sections are names, keys are flags"
    add("--models-preset", metavar="FILE", help=about)
    about = "--models with at most N of them open (0: as many as fit)"
    add("--models-max", type=whole(0, 1000), metavar="N", help=about)
    about = "--no-models-autoload: open a model only when /models/load asks for it, not for any request"
    add("--models-autoload", action=argparse.BooleanOptionalAction, default=None, help=about)
    about = "close a model after this time without a request, such as 10m; the next request opens it again"
    add("--idle", type=length_of_time(1), metavar="TIME", help=about)


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    args = parser().parse_args(argv)
    if args.tunnel:
        args.api_key = _begin_tunnel()
    is_local = _check_safe(args)
    usual = args.profile or AUTO
    by_name = _profiles(usual)
    asked = session_request(args)
    request = served_request(args)
    names_models = _names_models(args)
    if names_models:
        _check_named_models(request)
    pairs = read_config(config_dir() / "config.toml").pairs if names_models else ()
    first = with_config(request)
    files = None
    if request.is_named or not (pairs or args.models_dir or args.models_preset):
        files = opening.find_files(first)
    encoders = _encoders(args)
    set_up_logging(verbose=args.verbose)
    from localspec.server import running  # Starlette: 0.2 s, which a mistake does without
    from localspec.server.offers import ChatOffer, named_offers
    from localspec.server.served import RouterSettings, ServedModels
    from localspec.server.service import ServerSettings

    doors = _doors(args, is_local=is_local)
    kit = _kit(args)
    hidden = frozenset(what for what in _SHOWN_BY_DEFAULT if not getattr(args, what))
    slots = _slot_folder(args.slot_save_path)
    server = ServerSettings(usual, asked, say, kit=kit, slots=slots, hidden=hidden, is_verbose=args.verbose)
    settings = _pair_settings(args, request, server, shares=names_models)
    others = named_offers(encoders, settings, by_name)
    if names_models:
        opens = None if files is None else FirstPair(first, files.target)
        catalogue = ServedCatalogue(argv, parser(), settings, by_name, opens, tuple(others))
        models = ServedModels(catalogue.offers(), server, _router_settings(args, catalogue))
    else:
        offer = ChatOffer(first, settings, by_name, tuple(by_name))
        models = ServedModels([offer, *others], server, RouterSettings(idle_s=args.idle))
    with (
        running.listen(args.host, args.port) as listeners,
        nullcontext() if kit is None else closing(kit),
        closing(models),
    ):
        if files is not None and (request.is_named or not names_models):
            service = _open_first(models, files, args)
            if args.explain:
                recommended = service.queue.models.target.recommended
                say(asked.explained_sampling(by_name[usual], recommended))
            _tell_pair(service.queue.models, is_shared=args.kv_unified)
        for model in models.all[len(models.all) - len(others) :]:
            _open_encoder(models, model)
        if pairs or args.models_preset:
            _tell_missing(models)
        _tell_address(listeners, models)
        with suppress(KeyboardInterrupt, SystemExit), exit_on_signals():
            running.run(models, doors, listeners)
    return SUCCESS


def _check_named_models(request: PairRequest) -> None:
    """Raise UserError for flags that cannot be combined with models that requests name."""
    if not request.plans:
        raise UserError("--models and --no-fit cannot be combined", "without a plan, nothing knows what fits")
    if request.target.adapters:
        raise UserError(
            "--models and --lora cannot be combined", "an adapter is for one model: leave one out"
        )


def _names_models(args: argparse.Namespace) -> bool:
    """Return whether requests name the models that they mean: --models, or a flag that implies it."""
    given = (args.models_dir, args.models_preset, args.models_max, args.models_autoload)
    return bool(args.models) or any(each is not None for each in given)


def _router_settings(args: argparse.Namespace, catalogue: ServedCatalogue) -> RouterSettings:
    """Return when the models that requests name open and close."""
    from localspec.server.served import RouterSettings

    return RouterSettings(
        any_name=False,
        idle_s=args.idle,
        most_open=args.models_max or 0,
        autoload=args.models_autoload is not False,
        opens_at_start=catalogue.opened_at_start(),
        offers=catalogue.offers,
    )


def _encoders(args: argparse.Namespace) -> list[OfferedEncoder]:
    """Return the models of --embeddings and --rerank, whose mistakes show early; raises UserError."""
    if args.pooling is not None and args.embeddings is None and args.models_preset is None:
        hint = "name it: --embeddings FILE"
        raise UserError("--pooling is for an embedding model, and there is none", hint)
    kinds: tuple[tuple[EncoderKind, str | None], ...] = (
        ("embeddings", args.embeddings),
        ("rerank", args.rerank),
    )
    paths = [(kind, local_file(named, opening.TERMINAL)) for kind, named in kinds if named is not None]
    return [encoder(path, kind, args.pooling) for kind, path in paths]


def _profiles(usual: str) -> dict[str, Profile]:
    """Return the profiles by their names, the usual one first; raises UserError if it is not there."""
    known = profiles(config_dir() / "profiles")
    in_order = sorted(with_auto(known), key=lambda profile: profile.name != usual)
    by_name = {profile.name: profile for profile in in_order}
    if usual not in by_name:
        known.named(usual)  # says what is close
    return by_name


def _pair_settings(
    args: argparse.Namespace, request: PairRequest, server: ServerSettings, *, shares: bool
) -> PairSettings:
    """Return the settings with which the server opens its pairs."""
    from localspec.server.offers import PairSettings

    return PairSettings(
        server,
        parallel_of(args),
        None if args.cache_ram is None else args.cache_ram * 2**20,
        _on_disk(args),
        None if args.tunnel else "beside others" if shares else "alone",
        opening.listener(verbose=args.verbose),
        request.target.threads or 0,
    )


def _on_disk(args: argparse.Namespace) -> int:
    """Return the bytes of disk for KV caches; raises UserError if no memory is left for them to pass."""
    asked: int | None = args.cache_disk
    if asked and args.cache_ram == 0:
        raise UserError(
            "--cache-disk needs memory: copies pass through that of --cache-ram",
            "leave out --cache-ram 0",
        )
    return read_config(config_dir() / "config.toml").cache_disk if asked is None else asked


def _doors(args: argparse.Namespace, *, is_local: bool) -> AccessPolicy:
    """Return the access policy that the flags ask for; raises UserError."""
    from localspec.server.origins import ANY, CrossOrigin
    from localspec.server.running import access

    origins = (*args.allow_origin, *args.cors_origins)
    pages = CrossOrigin(args.cors_methods or (ANY,), args.cors_headers or (ANY,), args.cors_credentials)
    return access(args.host, args.api_key, origins, args.allow_host, pages, is_local=is_local)


def addresses(text: str) -> tuple[str, ...]:
    """Return the addresses to listen at, each once, of a list with commas."""
    found = tuple(dict.fromkeys(part.removeprefix("[").removesuffix("]") for part in listed(text)))
    if not found:
        raise argparse.ArgumentTypeError("no address")
    return found


def listed(text: str) -> tuple[str, ...]:
    """Return the parts of a list with commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _slot_folder(named: str | None) -> Path | None:
    """Return the folder for saved slots; raises UserError if it is none that can be written."""
    if named is None:
        return None
    folder = expanded(named).absolute()
    if not folder.is_dir():
        raise UserError(f"--slot-save-path {named} is not a folder", "create it, or name another one")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"--slot-save-path {named} cannot be written", "name another folder")
    return folder


def _begin_tunnel() -> str | None:
    """Read the key that the other machine sends, and end with its input."""
    from localspec.inference.remote import end_with_input

    key = sys.stdin.readline().strip() or None
    threading.Thread(target=end_with_input, name="localspec-tunnel", daemon=True).start()
    return key


def _kit(args: argparse.Namespace) -> ToolKit | None:
    """Return the tools that clients may use, None if there are none; raises UserError. Starts no server."""
    servers = _names(args.mcp, "--mcp names no server", "`localspec mcp list` lists them")
    own = _names(args.tools, "--tools names no tools", "name files, run, web, time, calculate, or all")
    file: Path | None = args.mcp_config
    if file is not None and not file.is_file():
        raise UserError(f"--mcp-config {file} is not a file", 'write {"mcpServers": {...}} into one')
    if not servers and not own and file is None:
        return None
    from localspec.app.client_tools import OWN, clients_kit
    from localspec.tools.mcp.server import check_installed

    kit = clients_kit(read_config(config_dir() / "config.toml"), Path.cwd(), servers, own, file)
    if OWN in kit.boxes:
        names = ", ".join(kit.offered((OWN,)).owners) or "none that a rule allows"
        say(f"tools for clients, in {Path.cwd()}: {names}; they run without a question")
    if started := [name for name in kit.boxes if name != OWN]:
        check_installed()
        say(f"MCP servers for clients: {', '.join(started)}; their tools run without a question")
    return kit


def _names(given: str | None, problem: str, hint: str) -> list[str]:
    """Return the names in a flag; raises UserError for a flag without any."""
    names = re.split(r"[,\s]+", given or "")
    if given is not None and not any(names):
        raise UserError(problem, hint)
    return [name for name in names if name]


def _open_first(models: ServedModels, files: PairFiles, args: argparse.Namespace) -> ChatService:
    """Open the first pair before the server runs, so that a mistake ends the program."""
    from localspec.server.offers import ChatOffer

    model = models.all[0]
    offer = model.offer
    assert isinstance(offer, ChatOffer)
    worker = opening.start_worker(verbose=args.verbose)
    try:
        opening.check_explained(offer.request, explain=args.explain)
        found = offer.planned(worker, offer.request, files)
        report_plan(found.plan, say if args.explain else None, explain=args.explain)
        service = offer.opened(worker, found, lambda first: opening.load(first, found.plan))
    except BaseException:
        worker.close()
        raise
    models.has_opened(model, service, found.held)
    opening.tell_notes(worker, found.plan, offer.request)
    return service


def _open_encoder(models: ServedModels, model: ServedModel) -> None:
    """Open the model of --embeddings or --rerank before the server runs."""
    from localspec.server.offers import EncoderOffer

    assert isinstance(model.offer, EncoderOffer)
    held, _ = plan_encoder(model.offer.path, ())
    service = model.offer.opened()
    models.has_opened(model, service, held)
    info = service.encoder.info
    job = "reranking" if model.offer.kind == "rerank" else "embeddings"
    say(f"{job} by {info.name}, of texts up to {info.context:,} tokens")


def _tell_missing(models: ServedModels) -> None:
    """Print which models cannot be opened as they are named now; the others can."""
    for model in models.all:
        try:
            model.offer.describe()
        except LocalSpecError as error:
            opening.note(f"{model.name}: {error}")


def _tell_pair(models: SharedModels, *, is_shared: bool) -> None:
    with_draft = f" with draft {name_of(models.draft)}" if models.draft else ""
    say(f"{name_of(models.target)}{with_draft}")
    parts = models.seats if not is_shared and isinstance(models, SeatedModels) else 1
    say(_context_line(models.target, parts))
    saved = models.saved()
    on_disk = "" if saved.on_disk is None else f" in memory and {memory(saved.on_disk.limit)} on disk"
    say(f"KV caches of other conversations: up to {memory(saved.limit)}{on_disk}; see /props")


def _tell_address(listeners: Sequence[socket.socket], models: ServedModels) -> None:
    from localspec.inference.remote import READY

    names = [name for model in models.all if model.offer.is_listed for name in model.offer.ids]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    say(f"models for clients: {', '.join(names[:_SHOWN])}{more}")
    first, *others = map(_url, listeners)
    for url in others:
        say(f"also at {url}/v1")
    say(f"{READY}{first}/v1; Ctrl+C ends it")


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _context_line(target: ModelInfo, parts: int) -> str:
    """Return a line about the context, the parts of it, and the one that the model was trained for."""
    each = f", {target.context:,} for each of {parts} conversations" if parts > 1 else ""
    tokens = f"context: {target.context * parts:,} tokens (-c){each}"
    return f"{tokens}; the model was trained for {target.training_context:,}"


def _check_safe(args: argparse.Namespace) -> bool:
    """Return whether only this machine can ask; raises UserError where others could without a key."""
    key: str | None = args.api_key
    elsewhere = [host for host in args.host if not _is_local(host)]
    if elsewhere and not key:
        raise UserError(
            f"--host {elsewhere[0]} accepts other machines and needs an API key",
            f"set {KEY_VARIABLE} or add --api-key KEY, or leave out --host",
        )
    if key is not None and not (key.isascii() and key.isprintable() and key):
        raise UserError(
            "the API key contains a character that HTTP headers do not allow", "use letters and digits only"
        )
    return not elsewhere


def _is_local(host: str) -> bool:
    """Return whether only this machine can ask at an address."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"
