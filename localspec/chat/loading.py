"""Open models in the background with progress, and open them again when their process has ended."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from localspec.errors import Cancelled, EngineError, LocalSpecError, UserError
from localspec.inference.interface import OpenModels
from localspec.types.models import ModelInfo

MAX_DEATHS = 3  # within
DEATHS_WITHIN_S = 60.0
CLOSING_S = 5.0  # patience with a load that is to stop
_DEATHS = "the log says why; a shorter context or a smaller model may help"

Opener = Callable[[Callable[[float], bool]], OpenModels]


@dataclass(frozen=True, slots=True)
class Closed:
    """No models are open, and none are being opened."""


@dataclass(frozen=True, slots=True)
class Loading:
    """Models are being opened; `fraction` of that is done, from 0 to 1."""

    fraction: float = 0.0


@dataclass(frozen=True, slots=True)
class Ready:
    """The models are open; `problem` says why others, which were to take their place, are not."""

    models: OpenModels
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The models could not be opened; `hint` says what the error itself does not."""

    error: LocalSpecError
    hint: str = ""


LoadState = Closed | Loading | Ready | Failed


class ModelLoader:
    """Holder of the open models; every method may be called from any thread.

    `on_change` is called in whichever thread the state changed, without a lock, and must not wait for
    anything. By then the state may have changed again: read `state` rather than remember the last call.
    """

    def __init__(
        self,
        open_models: Opener,
        on_change: Callable[[LoadState], None] = lambda _state: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `open_models(on_progress)` is to stop with `Cancelled` when that returns False."""
        self.on_change = on_change
        self._open_models = open_models
        self._can_go_back = False  # to models that were open, where others do not open
        self._problem = ""  # with those others
        self._clock = clock
        self._changed = threading.Condition()
        self._state: LoadState = Closed()
        self._attempt: object = None  # the one load whose outcome is wanted
        self._thread: threading.Thread | None = None  # of the latest load
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._closed = False

    @property
    def state(self) -> LoadState:
        """Return the state; never waits."""
        return self._state

    @property
    def ready(self) -> OpenModels | None:
        """Return the models if they are open; never waits."""
        state = self._state
        return state.models if isinstance(state, Ready) else None

    @property
    def open_now(self) -> tuple[ModelInfo, ...]:
        """Return the open models' information, the target's first; never waits."""
        models = self.ready
        return tuple(each for each in (models.target, models.draft) if each) if models else ()

    def models(self, *, wait: bool = True, wanted: Callable[[], bool] = lambda: True) -> OpenModels:
        """Return the open models, or wait for them while they are loading.

        Raises the error of opening them, `Cancelled` if that was cancelled or is not `wanted` here any more
        (`look_again` has that asked), and `UserError` if they are loading and `wait` is False.
        """
        with self._changed:
            while isinstance(self._state, Loading):
                if not wait:
                    raise UserError("the models are still being opened", "wait a moment")
                if not wanted():
                    raise Cancelled("stopped")
                self._changed.wait()
            if isinstance(self._state, Ready):
                return self._state.models
            raise self._state.error if isinstance(self._state, Failed) else Cancelled("no models are open")

    def look_again(self) -> None:
        """Have everyone who waits for the models ask whether they are still wanted."""
        with self._changed:
            self._changed.notify_all()

    def start(self) -> None:
        """Start opening the models, unless they are open or loading; after `close` do nothing."""
        with self._changed:
            if self._closed or isinstance(self._state, Loading | Ready):
                return
            self._deaths.clear()
            self._begin()
        self.on_change(self._state)

    def reopen(self, died: OpenModels | None = None) -> None:
        """Open the models again because their process has ended; `died` are those models, None the open ones.

        Does nothing if others are open already. After `MAX_DEATHS` deaths, the state is `Failed`.
        """
        with self._changed:
            if not isinstance(self._state, Ready) or (died or self._state.models) is not self._state.models:
                return
            dead = self._state.models
            now_s = self._clock()
            if len(self._deaths) == MAX_DEATHS and now_s - self._deaths[0] < DEATHS_WITHIN_S:
                error = EngineError(f"the models ended {MAX_DEATHS + 1} times within a minute")
                self._set(Failed(error, _DEATHS))
            else:
                self._deaths.append(now_s)
                self._begin()
        self.on_change(self._state)
        _release(dead)

    def switch(self, open_models: Opener) -> None:
        """Open other models instead; if that fails or is cancelled, these open again."""
        with self._changed:
            if self._closed:
                return
            gone = self._state.models if isinstance(self._state, Ready) else None
            self._can_go_back = self._can_go_back or gone is not None
            self._deaths.clear()
            self._begin(open_models, gone)
        self.on_change(self._state)

    def cancel(self) -> bool:
        """Stop opening models; open ones stay. Return whether the previous models open again."""
        with self._changed:
            if not isinstance(self._state, Loading):
                return False
            self._attempt = None
            self._set(Closed())
            if comes_back := self._can_go_back:
                self._begin()
        self.on_change(self._state)
        return comes_back

    def release(self) -> None:
        """Close the models, or stop opening them, and wait until their memory is free; `start` opens them."""
        with self._changed:
            state = self._state
            self._attempt = None
            self._set(Closed())
        self.on_change(self._state)
        if isinstance(state, Ready):
            _release(state.models)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSING_S)

    def close(self) -> None:
        """Close the models, or stop opening them, for good; a second call does nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        self.release()

    def _begin(self, others: Opener | None = None, gone: OpenModels | None = None, problem: str = "") -> None:
        self._attempt = attempt = object()
        self._can_go_back = self._can_go_back and others is not None
        self._problem = problem
        work = partial(self._load, attempt, self._thread, others or self._open_models, gone)
        self._thread = threading.Thread(target=work, name="localspec-load", daemon=True)
        self._set(Loading())
        self._thread.start()

    def _set(self, state: LoadState) -> None:
        self._state = state
        self._changed.notify_all()

    def _load(
        self, attempt: object, before: threading.Thread | None, opener: Opener, gone: OpenModels | None
    ) -> None:
        """Open models in a thread, when others are `gone` and the load before has ended: for memory."""
        if gone is not None:
            _release(gone)
        if before is not None:
            before.join()
        if self._attempt is not attempt:
            return
        outcome: LoadState
        try:
            models = opener(lambda fraction: self._progress(attempt, fraction))
            outcome = Ready(models, self._problem)
        except Cancelled:
            outcome = Closed()
        except LocalSpecError as error:
            outcome = Failed(error)
        except Exception as error:  # noqa: BLE001 - shown as the state
            outcome = Failed(EngineError(f"opening the models failed: {error!r}"))
        with self._changed:
            wanted = self._attempt is attempt
            if wanted and isinstance(outcome, Failed) and self._can_go_back:
                self._begin(problem=str(outcome.error))
            elif wanted:
                self._open_models = opener
                self._can_go_back = False
                self._set(outcome)
        if wanted:
            self.on_change(self._state)
        elif isinstance(outcome, Ready):
            _release(outcome.models)

    def _progress(self, attempt: object, fraction: float) -> bool:
        """Set the progress of a load; return whether to continue."""
        with self._changed:
            if self._attempt is not attempt:
                return False
            state = Loading(round(min(max(fraction, 0.0), 1.0), 2))  # smaller changes are not visible
            if state == self._state:
                return True
            self._set(state)
        self.on_change(state)
        return True


def _release(models: OpenModels) -> None:
    """Close models of which nothing more is expected."""
    with suppress(LocalSpecError):
        models.close()
