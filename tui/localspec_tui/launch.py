"""From what the command line has settled to a running screen, and back to an exit code."""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path

from localspec.app.screen import ScreenRequest
from localspec.chat.loading import ModelLoader
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.inference.worker.wire import LogLine
from localspec.storage import paths
from localspec_tui.app import LocalSpecApp
from localspec_tui.widgets.log_panel import KEPT


def launch(request: ScreenRequest) -> int:
    """Open the screen and return the exit code; raises `UserError` and `StoreError` before it opens."""
    log: deque[LogLine] = deque(maxlen=KEPT)
    with Store(paths.chats_file()) as store:
        first_start = store.last_chat() is None and request.opens_default_pair
        session = ChatSession(
            store,
            request.profiles.good,
            request.session,
            request.profile,
            start="last" if request.resumes else "new",
            experience=request.knowledge,
        )
        loader = ModelLoader(lambda on_progress: request.open_models(on_progress, log.append))
        try:
            app = LocalSpecApp(session, loader, request.config, Path.cwd(), log, first_start=first_start)
            app.chat_screen.tuner = lambda choice, stop: request.tune(choice, stop, log.append)
            for problem in request.profiles.problems:
                log.append(LogLine(logging.WARNING, "profiles", str(problem)))
            return app.run() or 0
        finally:
            loader.close()
