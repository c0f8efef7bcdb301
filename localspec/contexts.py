"""The two contexts of a pair: sizes, processor threads, and what their models allow."""

from __future__ import annotations

from dataclasses import replace

from localspec.errors import UserError
from localspec.llama import Context, Model, devices, physical_cores, probe
from localspec.types import ModelOptions

DEFAULT_CONTEXT = 8192  # models trained on 128k tokens would ask for many GiB of cache
SMALLEST_CONTEXT = 64
DRAFT_SHARE = (
    4  # where both models compute on the processor at once, the draft model takes one core in so many
)


class Contexts:
    """An open context for the target, and one with branches for the draft model."""

    def __init__(
        self, target: Model, draft: Model | None, max_fan_out: int, draft_threads: int | None
    ) -> None:
        """Open the contexts; raises `UserError` for sizes that cannot work or do not fit in memory."""
        size = target.options.context or min(target.training_context, DEFAULT_CONTEXT)
        if size < SMALLEST_CONTEXT:
            raise UserError(
                f"a context of {size} tokens is too small to talk", f"give -c {SMALLEST_CONTEXT} or more"
            )
        self.target = Context(target, replace(target.options, context=size))
        rewind = probe(self.target)
        self.can_rewind, self.can_branch = rewind.can_rewind, False
        self.draft: Context | None = None
        notes = [rewind.reason] if rewind.reason else []
        if draft is not None:
            options = replace(draft.options, context=size)
            if (
                options.flash_attention is None
                and options.kv_type_v in {"f32", "f16", "bf16"}
                and _on_cpu(draft)
            ):
                options = replace(options, flash_attention=False)  # half the price of a branch on small heads
            self.draft = Context(draft, options, sequences=max_fan_out + 1)
            branching = probe(self.draft)
            self.can_branch = branching.can_branch
            self.can_rewind = self.can_rewind and branching.can_rewind
            notes += [branching.reason] if branching.reason else []
        self.notes = tuple(notes)
        self._plan_threads(target.options, draft, draft_threads)

    def _plan_threads(self, target: ModelOptions, draft: Model | None, draft_threads: int | None) -> None:
        cores = physical_cores()
        wanted = target.threads or cores
        self._threads_alone = (wanted, draft_threads or wanted)
        self._threads_together = self._threads_alone
        if draft is not None and _on_cpu(self.target.model) and _on_cpu(draft):
            for_draft = draft_threads or max(1, wanted // DRAFT_SHARE)
            self._threads_together = (max(1, wanted - for_draft), for_draft)

    def share_threads(self, *, together: bool) -> None:
        """Give each model all threads, or divide them for both to work at once."""
        self.give_target(together=together)
        if self.draft is not None:
            self.draft.set_threads((self._threads_together if together else self._threads_alone)[1])

    def give_target(self, *, together: bool) -> None:
        """Give the target its threads; the draft model, which may be at work, is left alone."""
        self.target.set_threads((self._threads_together if together else self._threads_alone)[0])

    def cancel(self) -> None:
        """Stop what both models do; callable from any thread."""
        self.target.cancel()
        if self.draft is not None:
            self.draft.cancel()

    def resume(self) -> None:
        """Take back a cancel that nobody has noticed."""
        self.target.resume()
        if self.draft is not None:
            self.draft.resume()


def _on_cpu(model: Model) -> bool:
    """Tell whether the processor computes at least a part of a model."""
    options = model.options
    if options.devices == () or not any(device.kind != "cpu" for device in devices()):
        return True
    return options.gpu_layers is not None and options.gpu_layers < model.layers
