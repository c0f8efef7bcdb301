"""Where log lines go: nowhere, or to standard error."""

from __future__ import annotations


def set_up_logging(*, verbose: bool) -> None:
    """Send LocalSpec's own log and llama.cpp's to standard error if `verbose`, and nowhere otherwise."""
    import logging  # 5 ms that `--help` does without

    handler: logging.Handler = logging.StreamHandler() if verbose else logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("localspec")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.NOTSET)
