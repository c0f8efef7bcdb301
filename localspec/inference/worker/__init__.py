"""The runtime in a process of its own: whatever native code does to it, this one lives on.

Nothing here imports numpy or llama.cpp but `child`, which only the other process imports.
"""

from localspec.inference.worker.client import Worker
from localspec.inference.worker.wire import LogLine

__all__ = ["LogLine", "Worker"]
