"""Imports of the kernel, which never load a module from the guest's path or workspace, and hooks on the imports of
guest code."""

import sys
from _frozen_importlib import BuiltinImporter, FrozenImporter
from _frozen_importlib_external import FileFinder, PathFinder, _get_supported_file_loaders
from _thread import RLock, get_ident

KERNEL_DIRECTORY = __file__.rpartition("/")[0]
STDLIB_PATH = [entry for entry in sys.path if entry != KERNEL_DIRECTORY]
IMPORT_LOCK = RLock()

load_bridge_modules = None  # set by loader.py


class StdlibFinder:
    """Finds modules for the thread in which the kernel imports. `sys.path` is not changed for that, since other threads
    may use it meanwhile."""

    def __init__(self):
        self.thread = self.path = None

    def find_spec(self, name, path=None, target=None):
        if self.thread != get_ident() or path is not None:
            return None
        spec = BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name)
        spec = spec or PathFinder.find_spec(name, self.path)
        if spec is None:  # the next finders would search the guest's path
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec


finder = StdlibFinder()
sys.meta_path.insert(0, finder)


def import_stdlib(name):
    """Imports a module of the standard library, even if the workspace has one of that name. Waits if another thread is
    importing it: a module that is found early is incomplete."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        return module
    return import_from(STDLIB_PATH, name)


def import_from(path, name):
    with IMPORT_LOCK:
        outer = finder.thread, finder.path
        finder.thread, finder.path = get_ident(), path
        try:
            return __import__(name)
        finally:
            finder.thread, finder.path = outer


def import_bridge():
    """Imports mcp_bridge.py and its parts from the directory of this file, which `-I` leaves out of the path."""
    if load_bridge_modules and "mcp_bridge" not in sys.modules:
        load_bridge_modules()
    return import_from([KERNEL_DIRECTORY, *STDLIB_PATH], "mcp_bridge")


def register_directory(directory):
    """Lets modules be found in a directory as soon as it is created. Python's own finder checks once whether it exists
    and caches the result."""
    sys.path_importer_cache[directory] = FileFinder(directory, *_get_supported_file_loaders())


class BridgeFinder:
    """Finds `mcp`, `mcp.runtime` and `mcp.servers`, which the bridge creates."""

    def __init__(self, load_bridge):
        self.load_bridge = load_bridge

    def find_spec(self, name, path=None, target=None):
        if name == "mcp" or name.startswith(("mcp.runtime", "mcp.servers")):
            return self.load_bridge().find_spec(name)
        return None


class ImportHook:
    """Calls `actions[name](module)` for modules that are loaded already, and for others once they are imported."""

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
