"""The bundled pair of tiny models, so that everything can be shown and tested offline."""

from pathlib import Path

FOLDER = Path(__file__).parent


def bundled_pair() -> tuple[Path, Path]:
    """Return the target and the draft model that come with the package."""
    return FOLDER / "demo-target.gguf", FOLDER / "demo-draft.gguf"
