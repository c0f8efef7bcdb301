"""Fields of requests under other programs' names, and fields that LocalSpec does not offer.

What would change an answer is obeyed or refused by its name; nothing of the kind is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from localspec.app.answer_json import Json
from localspec.errors import UserError

_ALIASES = {
    "max_new_tokens": "max_tokens",  # TGI's
    "n_predict": "max_tokens",  # llama-server's
    "reasoning_budget": "thinking_budget",
    "reasoning_budget_tokens": "thinking_budget",
    "thinking_budget_tokens": "thinking_budget",
    "thinking_token_budget": "thinking_budget",  # vLLM's
    "repetition_penalty": "repeat_penalty",  # vLLM's
}
_NOT_OFFERED: Mapping[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "do_sample": (True,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "min_keep": (0, 1),
    "min_tokens": (0,),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "modalities": (["text"],),
    "n_indent": (0,),
    "n_probs": (0,),
    "negative_prompt": ("",),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "post_sampling_probs": (False,),
    "prompt_logprobs": (0, False),
    "smoothing_factor": (0,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "t_max_predict_ms": (0, -1),
    "tfs_z": (1,),
    "top_a": (0,),
    "top_n_sigma": (0, -1),
    "typ_p": (1,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "web_search_options": (),
    "xtc_probability": (0,),
}
"""By name, the values other than null that change nothing."""

_SHARED = ("model", "stream", "max_tokens", "temperature", "top_k", "top_p", "min_p", "repeat_penalty",
           "presence_penalty", "frequency_penalty", "repeat_last_n", "seed", "stop", "logit_bias", "grammar",
           "response_format", "chat_template_kwargs", "speculative", "parallel_tool_calls", "max_tool_calls",
           "reasoning_effort", "thinking_budget", "prompt_cache_retention", "id_slot", "lora",
           "ignore_eos", "return_progress", "timings_per_token")  # fmt: skip
_BY_NAME = "name one that `serve --mcp` offers: with a tool of the type mcp, or mcp_toolset"
_SWITCHES = ("think", "thinking", "enable_thinking", "reasoning")
"""Of Ollama, Anthropic, Qwen and OpenRouter."""
_TYPES = {"disabled": False, "enabled": True, "adaptive": True}  # of Anthropic's
_VARIABLES = "chat_template_kwargs"
_ORDER = ("penalties", "top_k", "top_p", "min_p", "temperature")  # in which LocalSpec samples
_SWITCHED_OFF = {
    "penalties": {"repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1},
    "min_p": {"min_p": 0},
    "temperature": {"temperature": 1},
}
"""By step of sampling, the fields that leave it out."""
_NEVER_ON = {
    "adaptive_p",
    "dry",
    "tfs_z",
    "top_n_sigma",
    "typ_p",
    "typical_p",
    "xtc",
}  # steps whose fields are not offered


def in_known_words(value: object) -> object:
    """Return a request with the names of fields that are read here.

    Raises UserError for a field that would change the answer and is not offered.
    """
    if not isinstance(value, dict):
        return value
    body: Json = dict(value)
    if body.pop("continue_final_message", None) is True:  # vLLM's word for what is always done here
        if body.get("add_generation_prompt") is True:
            problem = "add_generation_prompt and continue_final_message cannot both be true"
            raise UserError(problem, "send only one of them")
        body.pop("add_generation_prompt", None)
    refuse(body, _NOT_OFFERED)
    for alias, name in _ALIASES.items():
        given = body.pop(alias, None)
        if given is not None and body.get(name) not in (None, given):
            raise UserError(f"{alias} and {name} differ", "send only one of them")
        if given is not None:
            body[name] = given
    if body.get("top_k") == -1:  # vLLM's word for none
        body["top_k"] = 0
    if (schema := body.pop("json_schema", None)) is not None:
        form = body.get("response_format") or {"type": "text"}
        if form not in ({"type": "text"}, {"type": "json_object"}):
            raise UserError("response_format and json_schema cannot be combined", "send only one of them")
        body["response_format"] = {"type": "json_schema", "schema": schema}
    if body.pop("mcp_servers", None):
        raise UserError("mcp_servers: this server connects to no address that a client names", _BY_NAME)
    if (integrations := body.pop("integrations", None)) is not None:
        body["tools"] = [*_listed(body.get("tools"), "tools"), *_servers(integrations)]
    if (samplers := body.pop("samplers", None)) is not None:
        body |= _without_steps(samplers)
    return body


def with_known_thinking(body: Json) -> Json:
    """Return the request of a chat whose thinking is switched or limited by the fields that are read here.

    These go before other programs' fields for it, which are left out. Raises UserError.
    """
    body = dict(body)
    words: Json = {}
    for name in _SWITCHES:
        words |= _thinking(name, body.pop(name, None))
    switch = words.pop("enable_thinking", None)
    variables = body.get(_VARIABLES)
    if switch is not None and isinstance(variables, dict | None):
        variables = {"enable_thinking": switch} | (variables or {})
        body[_VARIABLES] = variables
        words |= {} if variables["enable_thinking"] else {"thinking_budget": 0}
    return body | {name: value for name, value in words.items() if body.get(name) is None}


def _thinking(name: str, value: object) -> Json:
    if isinstance(value, bool):
        return {"enable_thinking": value}
    if name == "think" and isinstance(value, str):
        return {"reasoning_effort": value}
    if name in ("think", "enable_thinking") or not isinstance(value, dict | None):
        if value is None:
            return {}
        raise UserError(f"{name} is not true or false")
    given = value or {}
    words = {
        "enable_thinking": given.get("enabled", _TYPES.get(str(given.get("type")))),
        "reasoning_effort": given.get("effort"),
        "thinking_budget": given.get("budget_tokens", given.get("max_tokens")),
    }
    return {name: value for name, value in words.items() if value is not None}


def _listed(value: object, where: str) -> list[object]:
    if not isinstance(value, list | None):
        raise UserError(f"{where} is not a list")
    return list(value or ())


def _servers(integrations: object) -> Iterator[Json]:
    """Yield the tools that LM Studio's `integrations` ask for: of servers that the server's mcp.json has."""
    for at, item in enumerate(_listed(integrations, "integrations")):
        wanted = {"type": "plugin", "id": item} if isinstance(item, str) else item
        if not isinstance(wanted, dict) or wanted.get("type") != "plugin":
            problem = f"integrations[{at}]: this server connects to no address that a client names"
            raise UserError(problem, _BY_NAME)
        if not isinstance(name := wanted.get("id"), str):
            raise UserError(f"integrations[{at}].id is missing")
        label = name.removeprefix("mcp/")
        yield {"type": "mcp", "server_label": label, "allowed_tools": wanted.get("allowed_tools")}


def shared(body: Json) -> Json:
    """Return the fields that mean the same in every protocol, as far as a request has them."""
    return {name: body[name] for name in _SHARED if body.get(name) is not None}


def refuse(body: Json, fields: Mapping[str, tuple[object, ...]]) -> None:
    """Raise UserError for a field that is switched on: it has a value other than null and those listed."""
    for name in fields.keys() & body.keys():
        if body[name] is not None and body[name] not in fields[name]:
            raise UserError(f"{name} is not offered by this server", "leave it out")


def _without_steps(samplers: object) -> Json:
    """Return the fields that leave out the steps of sampling that llama-server's `samplers` does not list."""
    if not isinstance(samplers, list) or not all(isinstance(step, str) for step in samplers):
        raise UserError("samplers is not a list of names")
    steps = [step for step in samplers if step not in _NEVER_ON]
    if steps != [step for step in _ORDER if step in steps]:
        raise UserError("samplers has steps that are not offered, or not in this order", ", ".join(_ORDER))
    left_out = [fields for step, fields in _SWITCHED_OFF.items() if step not in steps]
    return {name: value for fields in left_out for name, value in fields.items()}
