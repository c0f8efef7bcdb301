"""Profiles in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from localspec import units
from localspec.models.default_pair import default_pair, suited
from localspec.storage.profiles import Profile, shipped_files

_HEADINGS = ("NAME", "TITLE", "TASK", "FROM", "DESCRIPTION")


def origin(profile: Profile) -> str:
    """Return whose file a profile is from."""
    shipped = shipped_files().get(profile.name)
    if shipped is None:
        return "own"
    return "shipped" if profile.path == shipped else "own over shipped"


def table(profiles: Iterable[Profile]) -> list[str]:
    """Return a line for each profile."""
    rows = ((known.name, known.title, known.task, origin(known), known.description) for known in profiles)
    return units.columns([_HEADINGS, *rows])


def described(profile: Profile) -> list[str]:
    """Return everything that a profile settles, what it leaves open resolved."""
    speculation = profile.speculation.settled
    prompts = profile.tuning_prompts()
    whose = "its own" if profile.own_tuning else f"of the shipped profile for {profile.task}"
    facts = [
        ("task", profile.task),
        ("from", f"{origin(profile)}: {profile.path}"),
        ("sampling", _values(asdict(profile.sampling))),
        *_sampling_of_the_usual_model(profile),
        ("speculation", _values(speculation) or "as tuned, else as measured"),
        ("tuning", f"{len(prompts.prompts)} prompts and {len(prompts.held_out)} held out, {whose}"),
    ]
    lines = [f"{profile.name}: {profile.title}"]
    lines += [f"  {profile.description}"] if profile.description else []
    lines += [f"  {line}" for line in units.columns(facts)]
    return [*lines, "", *(profile.system_prompt.splitlines() or ["(no system prompt)"])]


def as_json(profile: Profile) -> dict[str, object]:
    """Return everything that a profile settles as `--json` prints it."""
    prompts = profile.tuning_prompts()
    return {
        "name": profile.name,
        "title": profile.title,
        "description": profile.description,
        "task": profile.task,
        "from": origin(profile),
        "path": str(profile.path),
        "system_prompt": profile.system_prompt,
        "sampling": asdict(profile.sampling),
        "speculation": profile.speculation.settled,
        "tuning": {
            "own": profile.own_tuning is not None,
            "prompts": list(prompts.prompts),
            "held_out": list(prompts.held_out),
        },
    }


def _sampling_of_the_usual_model(profile: Profile) -> list[tuple[str, str]]:
    """Return how the model that opens by itself is sampled under a profile, where that is another way."""
    usual = suited(profile, default_pair()[0]).sampling
    return [] if usual == profile.sampling else [("with SmolLM2", _values(asdict(usual)))]


def _values(values: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
