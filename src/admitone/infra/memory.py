"""Memory while blocks are made: what is freed stays with the process, and nobody looks for garbage meanwhile.

A block is made of a few arrays of tens of megabytes, which are freed and wanted again with the next one. Given back to
the system in between, they come as new pages each time, and clearing those takes longer than some of the work.
"""

from __future__ import annotations

import ctypes
import gc
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pyarrow as pa

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_KEPT_BYTES = 1 << 30


@cache
def keep_freed_memory() -> None:
    """Let this process keep what it frees, up to a limit; only where the C library can."""
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(_M_MMAP_MAX, 0)
    library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    pa.set_memory_pool(pa.system_memory_pool())


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Spare the collector from walking through many new objects again and again; none of them is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
