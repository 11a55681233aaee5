"""How the Python kernel imports what is its own, whatever guest code has put into the path or the workspace; and how it
learns of what guest code imports."""

import sys
from _frozen_importlib import BuiltinImporter, FrozenImporter
from _frozen_importlib_external import FileFinder, PathFinder, _get_supported_file_loaders
from _thread import RLock, get_ident

BESIDE = __file__.rpartition("/")[0]
OWN_PATH = [place for place in sys.path if place != BESIDE]
OWN_IMPORTS = RLock()

load_later = None  # where load.py has the bridge: loads it


class OwnFinder:
    """Finds what the kernel imports, for the thread in which it does: `sys.path` stays as it is, since others may look
    at it meanwhile."""

    def __init__(self):
        self.thread = self.path = None

    def find_spec(self, name, path=None, target=None):
        if self.thread != get_ident() or path is not None:
            return None
        spec = BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name)
        spec = spec or PathFinder.find_spec(name, self.path)
        if spec is None:  # the finders behind this one would ask the guest
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec


finder = OwnFinder()
sys.meta_path.insert(0, finder)


def import_own(name):
    """A module of the interpreter's own, whatever the workspace has of that name. From one thread at a time: another
    would find it half made."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        return module
    return import_from(OWN_PATH, name)


def import_from(path, name):
    with OWN_IMPORTS:
        outer = finder.thread, finder.path
        finder.thread, finder.path = get_ident(), path
        try:
            return __import__(name)
        finally:
            finder.thread, finder.path = outer


def import_bridge():
    """mcp_bridge.py with its parts, from beside this file: `-I` leaves that directory out of the path."""
    if load_later and "mcp_bridge" not in sys.modules:
        load_later()
    return import_from([BESIDE, *OWN_PATH], "mcp_bridge")


def expect_modules(place):
    """Has modules be found in a directory from the moment that it is made. The path's own finder asks once whether there
    is one, and takes that for an answer."""
    sys.path_importer_cache[place] = FileFinder(place, *_get_supported_file_loaders())


class BridgeFinder:
    """Finds `mcp`, `mcp.runtime` and `mcp.servers`, which the bridge makes."""

    def __init__(self, load_bridge):
        self.load_bridge = load_bridge

    def find_spec(self, name, path=None, target=None):
        if name == "mcp" or name.startswith(("mcp.runtime", "mcp.servers")):
            return self.load_bridge().find_spec(name)
        return None


class ImportHook:
    """Does something with modules from the moment that they are imported: `{name: what}`."""

    def __init__(self, actions):
        self.actions = actions

    def install(self):
        for name in [name for name in self.actions if name in sys.modules]:
            self.actions.pop(name)(sys.modules[name])
        if self.actions:
            sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        action = self.actions.get(name)
        if action is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None:
            if isinstance(spec.loader, type):  # shared by all modules of its kind
                spec.loader = type(spec.loader.__name__, (spec.loader,), {})
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), action(module))
        return spec
