"""Text that can be read on any colour, by the contrast ratio of WCAG 2."""

from __future__ import annotations

from textual.color import Color

_WEIGHTS = (0.2126, 0.7152, 0.0722)
_BETTER_BLACK = 0.179  # from this luminance, black has more contrast than white


def readable_on(background: Color) -> Color:
    """Return black or white, whichever has more contrast with a colour: 4.5 or more."""
    channels = (channel / 255 for channel in background.rgb)
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    luminance = sum(weight * c for weight, c in zip(_WEIGHTS, linear, strict=True))
    return Color.parse("black" if luminance > _BETTER_BLACK else "white")
