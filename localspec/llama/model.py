"""An open GGUF model: its weights, vocabulary and chat template."""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from localspec import units
from localspec.errors import Cancelled, EngineError, ModelFileError, OutOfMemoryError, UserError
from localspec.gguf import TOKENS, Header, check_model_file
from localspec.llama import backends, library, tile_code
from localspec.llama.adapters import check_adapters, open_adapters
from localspec.llama.backends import BackendDevice
from localspec.llama.library import native
from localspec.llama.memory import free_memory
from localspec.llama.overrides import CPU, all_overrides, check_overrides, device_of
from localspec.llama.template.chat_template import ChatTemplate
from localspec.llama.template.template_file import usable_template
from localspec.llama.tensor_split import check_tensor_split
from localspec.llama.vocabulary import Vocabulary
from localspec.safe_text import safe_line
from localspec.supported import unsupported, unsupported_type
from localspec.types.models import ModelInfo, ModelOptions

Progress = Callable[[float], bool]

_PAGEABLE = "the GPU could not get memory that it copies from directly, so it reads prompts more slowly"
_MAPPED = (
    "there was too little memory to read the model's file, so it is mapped: prompts are read more slowly"
)
SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_LOAD_PLAIN = 0
_LOAD_MMAP = 1


class _Override(ctypes.Structure):
    """llama.h, llama_model_tensor_buft_override: a regular expression, and where such tensors go."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


class Model:
    """A model's weights in memory; open one with `Model.open`, and close it."""

    def __init__(
        self,
        pointer: int,
        options: ModelOptions,
        header: Header,
        cards: Sequence[BackendDevice],
        *,
        allocated: bool = True,
        template: str | None = None,
    ) -> None:
        """Wrap a loaded model; `template` replaces its own."""
        api = native()
        self.allocated = allocated
        self._given_template = template
        self._free = weakref.finalize(self, api.llama_model_free, pointer)
        self.options = options
        self.header = header
        self.notes: tuple[str, ...] = ()  # for the user
        self.adapters: tuple[int, ...] = ()  # llama.cpp's LoRA adapters, in the order of the options
        eom = header.values.get("tokenizer.ggml.eom_token_id")  # llama.cpp has no function for it
        self.vocabulary = Vocabulary(
            api.llama_model_get_vocab(pointer),
            digest=header.tokens_digest,
            likely_ends=(eom,) if isinstance(eom, int) else (),
        )
        self.layers: int = api.llama_model_n_layer(pointer)
        self.training_context: int = api.llama_model_n_ctx_train(pointer)
        self.recurrent: bool = api.llama_model_is_recurrent(pointer) or api.llama_model_is_hybrid(pointer)
        self.cards = tuple(card.name for card in cards)  # devices other than the CPU that hold a part of it
        self.layers_at_home = computes_layers(cards, options, header)
        words = tuple(f"{card.description} ({card.name})" for card in cards)
        self._devices = (*words, CPU) if self.layers_at_home else words
        self._pointer: int | None = pointer
        self._dependents: list[weakref.WeakMethod[Callable[[], None]]] = []

    @classmethod
    def open(
        cls,
        options: ModelOptions,
        on_progress: Progress | None = None,
        *,
        allocate: bool = True,
        vocabulary: bool = True,
        head: bool = False,
        embeds: bool = False,
    ) -> Model:
        """Load a model; `on_progress(fraction)` returns False to stop with `Cancelled`.

        Without `allocate` nothing takes memory and nothing can be computed: only sizes are real. Without
        `vocabulary`, whose reading takes most of such a load, texts cannot be converted either. With `head`
        it may be one of EAGLE-3, and its own MTP head is loaded, which must be there. What `embeds` need not
        be able to chat.

        Raises `ModelFileError` for a file that cannot chat, `UserError` for options that cannot be met.
        """
        header = check_model_file(options.path, head=head or embeds)
        given = options.chat_template if allocate else None
        template = None if given is None else usable_template(given)
        native()
        cards = _cards(options)
        names = tuple(card.name for card in cards)
        if options.split_mode == "tensor":
            check_tensor_split(header, names, options.flash_attention, options.tensor_split)
            options = replace(options, devices=options.devices or names)
        _check_devices(options, cards)
        check_adapters(options, header)
        check_overrides(header, options.overrides, options.experts_at_home, names)
        if allocate:
            _check_room(options, header, cards)
        load = partial(
            _load, header=header, on_progress=on_progress, allocate=allocate, vocabulary=vocabulary, mtp=head
        )
        try:
            pointer, notes = load(options)
        except OutOfMemoryError:
            if options.mmap:
                raise
            options = replace(options, mmap=True)
            pointer, notes = load(options)
            notes = (*notes, _MAPPED)
        used = [cards[options.main_gpu]] if cards and options.split_mode == "none" else cards
        model = cls(pointer, options, header, used, allocated=allocate, template=template)
        model.notes = notes
        if allocate and options.adapters:
            try:
                model.adapters = open_adapters(pointer, options.adapters)
            except BaseException:
                model.close()
                raise
        return model

    def sharing(self, options: ModelOptions, header: Header) -> Model:
        """Return a view of these weights with other options: closing one closes both."""
        here = self.options
        other = copy(self)
        other.options = replace(
            options,
            gpu_layers=here.gpu_layers,
            devices=here.devices,
            output_at_home=here.output_at_home,
            experts_at_home=here.experts_at_home,
            overrides=here.overrides,
        )
        other.header = header
        return other

    @cached_property
    def template(self) -> ChatTemplate:
        """Return the chat template; not used for a draft model."""
        if self._given_template is not None:
            return ChatTemplate(self.vocabulary, self._given_template)
        raw = native().llama_model_chat_template(self.pointer, None)
        return ChatTemplate(self.vocabulary, raw.decode("utf-8", "replace") if raw else None)

    @property
    def pointer(self) -> int:
        """Return the native model; raise `EngineError` once it is closed."""
        if self._pointer is None:
            raise EngineError(f"{self.options.path} is closed")
        return self._pointer

    @property
    def name(self) -> str:
        """Return the model's own name, else that of its file."""
        return self.header.name

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Return every token that ends the model's turn, those of its chat template included."""
        return self.vocabulary.end_tokens.union(self.template.traits.end_tokens)

    def info(self, context: int = 0) -> ModelInfo:
        """Describe the model; `context` is its size in tokens (0: as trained)."""
        return ModelInfo(
            path=self.options.path,
            name=self.name,
            architecture=self.header.architecture,
            parameters=self.header.parameters,
            file_bytes=self.header.file_bytes,
            context=context or self.training_context,
            training_context=self.training_context,
            vocabulary=self.vocabulary.size,
            devices=self._devices,
            adapters=self.options.adapters,
        )

    def close_before(self, close: Callable[[], None]) -> None:
        """Register a method that must run before the weights are freed."""
        self._dependents.append(weakref.WeakMethod(close))

    def close(self) -> None:
        """Close the model's contexts and free its weights; a second call does nothing."""
        for dependent in self._dependents:
            if close := dependent():
                close()
        self._dependents.clear()
        self.vocabulary.close()
        self._pointer = None
        self._free()


def _load(
    options: ModelOptions,
    *,
    header: Header,
    on_progress: Progress | None,
    allocate: bool,
    vocabulary: bool,
    mtp: bool,
) -> tuple[int, tuple[str, ...]]:
    """Return a loaded model, and what the user should know of how it was loaded."""
    api = native()
    parameters, keep = _parameters(options)
    parameters.load_mtp = mtp
    if numbers := _header_changes(header, vocabulary=vocabulary):
        keep.append(entries := (api.llama_model_kv_override * (len(numbers) + 1))())  # one without a key ends
        for entry, (key, value) in zip(entries, numbers.items(), strict=False):
            entry.key = key.replace("{arch}", header.architecture).encode()
            if isinstance(value, int):
                entry.tag = api.LLAMA_KV_OVERRIDE_TYPE_INT
                entry.value.val_i64 = value
            else:
                entry.tag = api.LLAMA_KV_OVERRIDE_TYPE_STR
                entry.value.val_str = value.encode()
        parameters.kv_overrides = entries
    if not allocate:
        parameters.no_alloc = True
        parameters.load_mode = _LOAD_PLAIN
    failures: list[BaseException] = []  # an exception cannot cross C, so it waits here

    def report(fraction: float, _user_data: object) -> bool:
        if on_progress is None:
            return True
        try:
            if not failures and not on_progress(min(1.0, max(0.0, fraction))):
                failures.append(Cancelled("loading was stopped"))
        except BaseException as error:  # noqa: BLE001 - also Ctrl-C, which is raised again after the call
            failures.append(error)
        return not failures

    keep.append(callback := api.llama_progress_callback(report))
    parameters.progress_callback = callback
    with library.problems_of_this_thread() as problems:
        pointer: int | None = api.llama_model_load_from_file(os.fsencode(options.path), parameters)
    if failures:
        if pointer:
            api.llama_model_free(pointer)
        raise failures[0]
    if not pointer:
        raise _load_error(options, problems)
    is_pageable = any(library.PINNED in problem for problem in problems)
    return pointer, (_PAGEABLE,) if is_pageable else ()


def _header_changes(header: Header, *, vocabulary: bool) -> dict[str, int | str]:
    """Return the values that llama.cpp takes instead of those in a header."""
    changes: dict[str, int | str] = {}
    if missing := _missing_heads(header):  # llama.cpp would refuse the file for them
        changes["{arch}.block_count"] = header.integer("{arch}.block_count") - missing
        changes["{arch}.nextn_predict_layers"] = 0
    if not vocabulary and (tokens := header.counts.get(TOKENS)):
        changes["tokenizer.ggml.model"] = "no_vocab"  # llama-vocab.cpp
        changes["{arch}.vocab_size"] = tokens
    return changes


def _missing_heads(header: Header) -> int:
    """Return the number of prediction layers in a header that its file lacks."""
    heads = header.integer("{arch}.nextn_predict_layers")
    first = f"blk.{header.integer('{arch}.block_count') - heads}."
    return 0 if any(tensor.name.startswith(first) for tensor in header.tensors) else heads


def _parameters(options: ModelOptions) -> tuple[Any, list[object]]:
    """Return llama.cpp's parameters, and objects that must stay alive while they are used."""
    api = native()
    keep: list[object] = []
    parameters = api.llama_model_default_params()
    parameters.n_gpu_layers = -1 if options.gpu_layers is None else options.gpu_layers
    parameters.split_mode = SPLIT_MODES[options.split_mode]
    parameters.main_gpu = options.main_gpu
    parameters.load_mode = _LOAD_MMAP if options.mmap else _LOAD_PLAIN
    parameters.use_extra_bufts = not tile_code.is_broken()
    if options.devices is not None:
        keep.append(array := backends.device_array(options.devices))
        parameters.devices = ctypes.cast(array, ctypes.c_void_p)
    if options.tensor_split:
        limit = api.llama_max_devices()
        shares = (ctypes.c_float * limit)(*options.tensor_split)
        keep.append(shares)
        parameters.tensor_split = shares
    if overrides := all_overrides(options):
        entries = [(each.pattern.encode(), backends.buffer_type(each.device)) for each in overrides]
        end = _Override()
        keep.append(array := (_Override * (len(entries) + 1))(*(_Override(*entry) for entry in entries), end))
        parameters.tensor_buft_overrides = ctypes.cast(array, ctypes.c_void_p)
    return parameters, keep


def _cards(options: ModelOptions) -> list[BackendDevice]:
    """Return the model's devices, other than the CPU."""
    if options.gpu_layers == 0:
        return []
    if options.devices is None:
        return list(backends.graphics())
    backends.device_array(options.devices)  # names that do not exist are refused here
    return [
        device for device in backends.devices() if device.kind != "cpu" and device.name in options.devices
    ]


def _check_devices(options: ModelOptions, devices: Sequence[BackendDevice]) -> None:
    cards = len(devices)
    if options.split_mode == "row" and (unable := [card.name for card in devices if not card.splits_rows]):
        raise backends.rows_refused(unable[0])
    if options.gpu_layers is not None and options.gpu_layers < 0:
        raise UserError(f"{options.gpu_layers} layers cannot be offloaded", "give 0 or more")
    limit = native().llama_max_devices()
    shares = options.tensor_split
    if len(shares) > limit or any(not 0 <= share < float("inf") for share in shares):
        raise UserError(
            f"the tensor split {shares} is not up to {limit} shares of 0 or more", "for instance 3,1"
        )
    if cards and len(shares) > cards:
        raise UserError(f"the tensor split has {len(shares)} shares for {cards} devices", "give one for each")
    if cards and not 0 <= options.main_gpu < cards:
        raise UserError(f"there is no device number {options.main_gpu} among {cards}", "counting starts at 0")


def computes_layers(cards: Sequence[BackendDevice], options: ModelOptions, header: Header) -> bool:
    """Return whether the CPU computes layers of a model, or the experts of some."""
    layers = header.integer("{arch}.block_count") - _missing_heads(header)
    if not cards or (options.gpu_layers is not None and options.gpu_layers <= layers):
        return True
    moved = all_overrides(replace(options, output_at_home=False))
    return any(
        device_of(tensor.name, moved) == CPU for tensor in header.tensors if tensor.name.startswith("blk.")
    )


def _check_room(options: ModelOptions, header: Header, cards: Sequence[BackendDevice]) -> None:
    """Refuse weights that plainly fit nowhere; the system would rather kill the process than say no."""
    free = free_memory()
    moved = all_overrides(options)
    here = sum(tensor.bytes for tensor in header.tensors if device_of(tensor.name, moved) == CPU)
    if here > free:
        raise UserError(
            f"the weights of {options.path} in RAM need {units.memory(here)}; {units.memory(free)} are free",
            "put more on the GPU, choose a smaller model or quantization, or close other programs",
        )
    on_cards = sum(card.memory_free for card in cards)
    needed = header.weight_bytes
    if needed > free + on_cards:
        there = f"{units.memory(free)} of memory"
        if on_cards:
            there += f" and {units.memory(on_cards)} on the GPUs"
        raise UserError(
            f"{options.path} needs {units.memory(needed)}; {there} are free",
            "choose a smaller model or a smaller quantization, or close other programs",
        )


_UNKNOWN = re.compile(
    r"un(?:known|supported) (?:model )?(architecture|tokenizer|pre-tokenizer)(?: type)?: '(.*)'"
)
_UNKNOWN_TYPE = re.compile(r"has invalid ggml type (-?\d+)")


def _load_error(options: ModelOptions, problems: list[str]) -> UserError:
    reason = safe_line(library.load_problem(problems))
    if found := _UNKNOWN.search(reason):
        return unsupported(options.path, found[1], found[2])
    if found := _UNKNOWN_TYPE.search(reason):
        return unsupported_type(options.path, int(found[1]))
    if "alloc" in reason or "out of memory" in reason or "insufficient" in reason:
        return OutOfMemoryError(
            f"not enough memory for {options.path}: {reason}",
            "offload fewer layers or choose a smaller model",
        )
    return ModelFileError(
        f"llama.cpp cannot load {options.path}: {reason}", "choose another file, or report the model"
    )
