"""What is done before a fork so that sessions start warm, and after it so that they are not alike."""

import posix
import sys

import kernel_output
from kernel_imports import import_bridge


def reseed():
    """Makes siblings of one zygote unlike each other: they were forked with the same state."""
    modules = sys.modules
    if "random" in modules:
        modules["random"].seed()
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "tempfile" in modules:
        modules["tempfile"]._name_sequence = None
    if "uuid" in modules:
        for name in ("_node", "_last_timestamp", "_last_timestamp_v6", "_last_timestamp_v7"):
            setattr(modules["uuid"], name, None)
    if "ssl" in modules:
        modules["ssl"].RAND_add(posix.urandom(32), 32.0)
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = posix.urandom(32)


def choose_plots():
    """Matplotlib draws without a screen, unless the session says otherwise."""
    if "os" in sys.modules:
        sys.modules["os"].environ.setdefault("MPLBACKEND", "Agg")
    elif b"MPLBACKEND" not in posix.environ:
        posix.environ[b"MPLBACKEND"] = b"Agg"  # of which `os` makes its own
        posix.putenv(b"MPLBACKEND", b"Agg")


def prepare(preload):
    """Imports modules ahead of the fork and returns the names of those that could not be imported."""
    import gc

    choose_plots()
    kernel_output.prepare()
    import_bridge().prepare()
    missing = []
    for name in ("asyncio", *preload):
        try:
            __import__(name)
        except Exception:
            missing.append(name)
    if "ssl" in sys.modules:
        # Has OpenSSL make its tables here, once, which it otherwise would in every child for the first randomness
        # that is asked of it: 3 MB each. The children reseed what comes of it.
        sys.modules["ssl"].RAND_status()
    gc.collect()
    gc.freeze()  # or each child's collector would touch, and so copy, every page
    return missing
