"""How the Python kernel imports what is its own, whatever guest code has put into the path or the workspace."""

import sys
from _thread import RLock

BESIDE = __file__.rpartition("/")[0]
OWN_PATH = [place for place in sys.path if place != BESIDE]
OWN_IMPORTS = RLock()

load_later = None  # where start.py has the bridge: loads it


def import_own(name):
    """A module of the interpreter's own, whatever the workspace has of that name. From one thread at a time: another
    would find it half made, or take the path of this one for the guest's."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        return module
    with OWN_IMPORTS:
        path = sys.path
        sys.path = OWN_PATH
        try:
            return __import__(name)
        finally:
            sys.path = path


def import_beside(name):
    """A module from beside this file: `-I` leaves that directory out of the path."""
    path = sys.path
    sys.path = [BESIDE, *OWN_PATH]
    try:
        return __import__(name)
    finally:
        sys.path = path


def import_bridge():
    """mcp_bridge.py with its parts."""
    if load_later and "mcp_bridge" not in sys.modules:
        load_later()
    return import_beside("mcp_bridge")


class BridgeFinder:
    """Finds `mcp`, `mcp.runtime` and `mcp.servers`, which the bridge makes."""

    def __init__(self, load_bridge):
        self.load_bridge = load_bridge

    def find_spec(self, name, path=None, target=None):
        if name == "mcp" or name.startswith(("mcp.runtime", "mcp.servers")):
            return self.load_bridge().find_spec(name)
        return None
