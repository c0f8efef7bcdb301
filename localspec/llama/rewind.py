"""What a model's memory lets speculation do; where that is in doubt, found out by trying."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.errors import EngineError
from localspec.llama.context import Context


@dataclass(frozen=True, slots=True)
class Rewind:
    """Whether tokens can be taken back, and whether sequences can branch anywhere; why not, in words."""

    can_rewind: bool
    can_branch: bool
    reason: str = ""


def probe(context: Context) -> Rewind:
    """Find out what an empty context can do; it is empty again afterwards."""
    if context.length():
        raise ValueError("only an empty context can be probed")
    model = context.model
    if not model.recurrent:  # llama.cpp's caches of tokens take back any; trying would read all weights once
        return Rewind(can_rewind=True, can_branch=True)
    return Rewind(
        can_rewind=_takes_back_a_token(context),
        can_branch=False,
        reason=(
            f"{model.name} ({model.header.architecture}) keeps a running state instead of every token, "
            "so tokens that were guessed wrong cannot be taken back: it writes without speculation"
        ),
    )


def _takes_back_a_token(context: Context) -> bool:
    # llama.cpp common/common.cpp, common_context_can_seq_rm: decode two tokens, remove one
    context.evaluate([0, 0], logits=0)
    try:
        context.truncate(1)
    except EngineError:
        return False
    finally:
        context.truncate(0)
    return True
