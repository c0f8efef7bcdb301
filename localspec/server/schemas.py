"""The JSON schemas of one request: checked when its answer is finished, with warnings for client and log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from localspec.chat.schema_check import CheckedSchema, Remark


@dataclass(frozen=True, slots=True)
class ReplySchemas:
    """What the text of an answer, or the arguments of its calls, have to meet."""

    answer: CheckedSchema | None = None
    arguments: Mapping[str, CheckedSchema] = field(default_factory=dict)  # by the name of the tool
    report: Callable[[str], object] = lambda _line: None

    def warnings(self, text: str, calls: Iterable[tuple[str, str]], *, is_cut: bool) -> list[str]:
        """Return the warnings about a finished answer, and report them; `calls` are names and arguments."""
        found: list[Remark] = []
        called = list(calls)
        if self.answer is not None and not called:
            found += self.answer.remarks(text, is_cut=is_cut)
        for name, arguments in called:
            if name in self.arguments:
                found += self.arguments[name].remarks(arguments or "{}", is_cut=is_cut)
        for remark in found:
            self.report(f"{time.strftime('%H:%M:%S')}  warning: {remark.logged}")
        return [remark.text for remark in found]


NO_SCHEMAS = ReplySchemas()
