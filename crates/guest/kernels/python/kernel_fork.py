"""Preparation of a zygote before it forks kernels, and reseeding of random state after a fork."""

import posix
import sys

import kernel_output
from kernel_imports import import_bridge


def reseed():
    """Reseeds random generators: kernels of one zygote are forked with the same state."""
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


def set_plot_backend():
    """Makes matplotlib draw without a screen, unless the session sets another backend."""
    if "os" in sys.modules:
        sys.modules["os"].environ.setdefault("MPLBACKEND", "Agg")
    elif b"MPLBACKEND" not in posix.environ:
        posix.environ[b"MPLBACKEND"] = b"Agg"  # which `os` copies when it is imported
        posix.putenv(b"MPLBACKEND", b"Agg")


def warm_up(preload):
    """Imports modules before the fork and returns the names of those that could not be imported."""
    import gc

    set_plot_backend()
    kernel_output.preload()
    import_bridge().preload()
    missing = []
    for name in ("asyncio", *preload):
        try:
            __import__(name)
        except Exception:
            missing.append(name)
    if "ssl" in sys.modules:
        # Creates the tables of OpenSSL once. Otherwise each child would create them with its first random number, 3 MB
        # each. The children reseed the generator.
        sys.modules["ssl"].RAND_status()
    gc.collect()
    gc.freeze()  # otherwise the collector of each child would touch, and so copy, every page
    return missing
