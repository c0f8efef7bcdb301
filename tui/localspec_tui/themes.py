"""LocalSpec's own colours; Textual's other themes can be chosen as well."""

from textual.theme import Theme

DARK = Theme(
    name="localspec-dark",
    primary="#7aa2f7",
    secondary="#9ece6a",
    accent="#e0af68",
    warning="#e0af68",
    error="#f7768e",
    success="#9ece6a",
    foreground="#c8d0e8",
    background="#13151c",
    surface="#191c26",
    panel="#232735",
    dark=True,
)
LIGHT = Theme(
    name="localspec-light",
    primary="#2c55c4",
    secondary="#3f7d1f",
    accent="#9a5b00",
    warning="#9a5b00",
    error="#b3163a",
    success="#3f7d1f",
    foreground="#1d2333",
    background="#fbfbfd",
    surface="#f2f3f8",
    panel="#e3e6f0",
    dark=False,
)
