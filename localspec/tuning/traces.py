"""Record traces; each traced answer is kept in a file of its own, in NumPy's compressed format."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from localspec.decoding.measurements import TraceRequest, TraceSegment
from localspec.errors import ContextFullError, EngineError
from localspec.storage.paths import make_private_folder, write_atomically
from localspec.storage.profiles import Profile
from localspec.tuning.plan import ReopenedModels, requests
from localspec.tuning.run_folder import digest
from localspec.types import Request


def record(models: ReopenedModels, asked: Iterable[Request], folder: Path) -> Iterator[TraceSegment]:
    """Yield a trace of each answer, that in the folder if there is one; without tokens where there is none.

    That happens to a prompt that the context cannot hold, and to one at which the models failed; they are
    opened again then. A second failure in a row raises its `EngineError`. Raises `StoreError` and `OSError`.
    """
    make_private_folder(folder)
    has_failed = False
    for request in asked:
        file = folder / f"{digest(request)}.npz"
        if (kept := _read(file)) is not None:
            yield kept
            continue
        try:
            segment = models.now.trace(TraceRequest(request))
            has_failed = False
        except ContextFullError:
            segment = _untraced()
        except EngineError:
            if has_failed:
                raise
            has_failed, segment = True, _untraced()
            models.again()
        write_atomically(file, _packed(segment))
        yield segment


def recorded(profile: Profile, count: int, folder: Path) -> tuple[TraceSegment, ...]:
    """Return the traces of the first `count` answers to a profile's prompts, none where one is missing."""
    asked = requests(None, profile, profile.tuning_prompts().prompts)
    read = (_read(folder / f"{digest(request)}.npz") for request in asked)
    found = list(islice((each for each in read if each is not None), count))  # none of what did not fit
    return with_tokens(found) if len(found) == count else ()


def with_tokens(segments: Iterable[TraceSegment]) -> tuple[TraceSegment, ...]:
    """Return the answers that could be traced."""
    return tuple(segment for segment in segments if len(segment.tokens))


def _untraced() -> TraceSegment:
    import numpy as np  # 0.1 s that `--help` should not cost

    tokens, of_tokens = np.zeros(0, np.int32), np.zeros(0, np.float32)
    ids, values = tokens.reshape(0, 0), of_tokens.reshape(0, 0)
    return TraceSegment((), tokens, ids, values, of_tokens, ids, values, values, 0.0, ended=False)


def _packed(segment: TraceSegment) -> bytes:
    import numpy as np

    file = BytesIO()
    arrays = {each.name: getattr(segment, each.name) for each in fields(segment)}
    np.savez_compressed(file, **arrays | {"prompt": np.array(segment.prompt, np.int32)})
    return file.getvalue()


def _read(file: Path) -> TraceSegment | None:
    """Return a traced answer; None where there is none, or a damaged one."""
    import numpy as np

    with suppress(OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error):
        found = np.load(BytesIO(file.read_bytes()))
        values: dict[str, Any] = {each.name: found[each.name] for each in fields(TraceSegment)}
        plain = {name: values[name].tolist() for name in ("prompt", "decode_s", "ended")}
        return TraceSegment(**values | plain | {"prompt": tuple(plain["prompt"])})
    return None
