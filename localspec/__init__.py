"""A local chat assistant with exact speculative decoding.

Open a pair of models, ask in any mode, and read events as they happen. Every mode follows the target's
own distribution. Without names, the bundled pair opens.

>>> import localspec
>>> greedy = localspec.Sampling(temperature=0)
>>> with localspec.open_pair() as pair:
...     for event in localspec.ask(pair, "Hello!", "sd", sampling=greedy, max_tokens=24):
...         match event:
...             case localspec.TextDelta():
...                 print(event.text, end="")
...             case localspec.Finished(summary=summary):
...                 print()
...                 print(f"{summary.tokens} tokens in {summary.rounds} rounds")
Hi! What can I do for you?
10 tokens in ... rounds

A `PairRequest` says how models are opened, as the flags of the command line do. Without `with`, close the
pair yourself.

>>> one_thread = localspec.ModelRequest(threads=1)
>>> request = localspec.PairRequest(target=one_thread, draft=one_thread, context=512)
>>> pair = localspec.open_pair(request=request)
>>> pair.target.context
512
>>> pair.close()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from localspec.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from localspec.errors import LocalSpecError as LocalSpecError
    from localspec.errors import UserError as UserError
    from localspec.inference.interface import OpenModels as OpenModels
    from localspec.inference.runtime import Runtime as Runtime
    from localspec.models.names import Reference as Reference
    from localspec.models.pair_request import ModelRequest as ModelRequest
    from localspec.models.pair_request import PairRequest as PairRequest
    from localspec.types.events import Finished as Finished
    from localspec.types.events import GenerationEvent as GenerationEvent
    from localspec.types.events import PromptProgress as PromptProgress
    from localspec.types.events import RoundDone as RoundDone
    from localspec.types.events import Summary as Summary
    from localspec.types.events import TextDelta as TextDelta
    from localspec.types.events import ThinkingOpened as ThinkingOpened
    from localspec.types.models import ModelOptions as ModelOptions
    from localspec.types.request import EngineSettings as EngineSettings
    from localspec.types.request import Grammar as Grammar
    from localspec.types.request import Message as Message
    from localspec.types.request import Mode as Mode
    from localspec.types.request import Request as Request
    from localspec.types.request import Sampling as Sampling

_NAMES = {
    "errors": ("LocalSpecError", "UserError"),
    "inference.interface": ("OpenModels",),
    "inference.runtime": ("Runtime",),
    "models.names": ("Reference",),
    "models.pair_request": ("ModelRequest", "PairRequest"),
    "types.events": (
        "Finished", "GenerationEvent", "PromptProgress", "RoundDone", "Summary", "TextDelta",
        "ThinkingOpened",
    ),
    "types.models": ("ModelOptions",),
    "types.request": ("EngineSettings", "Grammar", "Message", "Mode", "Request", "Sampling"),
}  # fmt: skip
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = list(_HOMES)
__all__ += ["__version__", "ask", "open_pair"]


class _OnDisk:
    """Models that are on this machine; the API downloads nothing by itself."""

    def download(self, reference: Reference) -> Path:
        """Raise UserError with the way to have the model."""
        from localspec.errors import UserError

        raise UserError(f"{reference} is not on this computer", f"`localspec pull {reference}` downloads it")

    def check(self, files: Sequence[Path]) -> None:
        """Check files that came from the Hub before they are first used; raises UserError."""
        from localspec.models.verified import verify

        verify(files)


def open_pair(
    target: Path | str | None = None,
    draft: Path | str | None = None,
    *,
    context: int | None = None,
    request: PairRequest | None = None,
) -> Runtime:
    """Open a target and perhaps a draft model, by default the bundled pair; the result closes as a context.

    Models are files, or names that `localspec models` lists. `context` is in tokens; 0 is the default size.
    `request` sets everything else, such as devices, threads and caches. llama.cpp places the models where
    it leaves that open; there is no plan. Raises `UserError` for unusable files.
    """
    from dataclasses import replace

    from localspec.demo import bundled_pair
    from localspec.errors import UserError
    from localspec.hardware.placement.open_plan import as_asked
    from localspec.inference.runtime import Runtime  # numpy and llama.cpp: 0.3 s
    from localspec.llama.backends import devices
    from localspec.models.pair_files import find_pair
    from localspec.models.pair_request import PairRequest

    asked = request or PairRequest()
    named = [
        asked.target.name if target is None else str(target),
        asked.draft.name if draft is None else str(draft),
    ]
    if not named[0] and named[1]:
        raise UserError("a draft model alone writes nothing", "name the target that it is to serve, too")
    if not named[0]:
        named = [str(path) for path in bundled_pair()]
    asked = replace(
        asked,
        target=replace(asked.target, name=named[0]),
        draft=replace(asked.draft, name=named[1]),
        context=asked.context if context is None else context,
    )
    files = find_pair(asked, _OnDisk())
    if named[1] and files.draft is None:
        raise UserError(files.notes[0], "name another draft model, or none")
    on_processor = all(device.kind == "cpu" for device in devices())
    return Runtime.open(as_asked(files, asked, on_processor=on_processor))


def ask(
    models: OpenModels,
    question: str | tuple[Message, ...],
    mode: Mode | None = None,
    *,
    sampling: Sampling | None = None,
    max_tokens: int | None = None,
    seed: int | None = None,
) -> Iterator[GenerationEvent]:
    """Yield the answer to a question, or to a conversation, as it is written; the last event has the figures.

    No answer waits for a measurement. `mode` None uses the fastest mode by the known costs; call
    `choose_settings` of the models once to measure them, in about a second. `sampling` None uses the
    recommendation of the model's maker. Closing the iterator ends the answer. For all other settings, give
    `models.generate` a `Request`.
    """
    from localspec.inference.interface import QuickChooser
    from localspec.types.request import EngineSettings, Message, Request, Sampling

    choose = models.known_settings if isinstance(models, QuickChooser) else models.choose_settings
    settings = choose()[0] if mode is None else EngineSettings(mode)
    prompt = (Message("user", question),) if isinstance(question, str) else question
    sampling = sampling or models.target.recommended.sampling.over(Sampling())
    return models.generate(Request(prompt, sampling, settings, max_tokens=max_tokens, seed=seed))


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
