"""When Python looks for garbage: not while text is streaming, as far as that can be helped."""

from __future__ import annotations

import gc
from typing import Final

_YOUNG: Final = 10_000
_MIDDLE: Final = 5
_OLD: Final = 100


def collect_rarely() -> None:
    """Leave what a started program consists of out of collections, and make those rarer.

    A full collection looks at every widget, style and syntax tree, and holds the screen up for 60 to 100 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
