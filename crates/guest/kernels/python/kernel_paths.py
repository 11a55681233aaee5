"""`sys.path` of the kernel, in the order of an interpreter in the session's virtual environment: the working directory,
PYTHONPATH, the library, packages of the environment, packages of the user, and packages of the system.

The kernel runs isolated (`-I`), and a forked kernel was started outside of the environment, so neither Python nor `site`
does this.
"""

import posix
import sys

from kernel_imports import register_directory

PACKAGES = ("/site-packages", "/dist-packages")


def set_up_path(site, environ):
    rest = sys.path[next((n for n, entry in enumerate(sys.path) if entry.endswith(PACKAGES)), len(sys.path)) :]
    del sys.path[len(sys.path) - len(rest) :]
    sys.path[:0] = ["", *given_entries(environ.get("PYTHONPATH", ""))]
    packages = "lib/python%d.%d/site-packages" % sys.version_info[:2]
    environment = environ.get("VIRTUAL_ENV", "")
    if environment:
        enter_environment(site, environment)
        add_packages(site, f"{environment}/{packages}", rest)
        sys.meta_path.append(NewPackages(f"{environment}/{packages}"))
    # `site` would touch a quarter of a megabyte of pages that all sessions share. A zygote has another HOME.
    site.USER_BASE = f"{environ.get('HOME', '/')}/.local"
    site.USER_SITE = f"{site.USER_BASE}/{packages}"
    add_packages(site, site.USER_SITE, rest)
    sys.path += [entry for entry in rest if entry not in sys.path]


def given_entries(variable):
    """Returns the entries of PYTHONPATH as absolute paths. They may be created later."""
    entries = [entry if entry[0] == "/" else f"{posix.getcwd()}/{entry}" for entry in variable.split(":") if entry]
    for entry in entries:
        if not posix.access(entry, posix.F_OK):
            register_directory(entry)
    return entries


def enter_environment(site, environment):
    """Makes this interpreter one of the environment, so that packages are installed there with `sys.executable`."""
    if sys.prefix != environment and posix.access(f"{environment}/bin/python", posix.X_OK):
        sys.prefix = sys.exec_prefix = environment
        sys.executable = f"{environment}/bin/python"
        site.PREFIXES.insert(0, environment)


def add_packages(site, directory, known):
    """Adds a directory of packages, which may be created later, and the paths that its `.pth` files name."""
    register_directory(directory)
    if directory not in known and path_files(directory):
        site.addsitedir(directory)
    elif directory not in sys.path:
        sys.path.append(directory)


def path_files(directory):
    try:
        return {name for name in posix.listdir(directory) if name.endswith(".pth")}
    except OSError:
        return set()


class NewPackages:
    """Finds modules of packages that were installed since the kernel started. The last finder: it is asked only for a
    module that no other finds. Then it lets the directory be read again, because its time stamp is coarse, and applies
    `.pth` files that are new, such as those of editable installs."""

    def __init__(self, directory):
        self.directory = directory
        self.known = path_files(directory)
        self.is_searching = False

    def find_spec(self, name, path=None, target=None):
        if path is not None or self.is_searching or self.directory not in sys.path:
            return None
        self.is_searching = True  # a `.pth` file may import
        try:
            self.refresh()
            others = [finder for finder in sys.meta_path if finder is not self]
            return next(filter(None, (finder.find_spec(name, None, target) for finder in others)), None)
        finally:
            self.is_searching = False

    def refresh(self):
        finder = sys.path_importer_cache.get(self.directory)
        if finder is None:  # the guest has cleared the cache
            register_directory(self.directory)
        else:
            finder.invalidate_caches()
        new = sorted(path_files(self.directory) - self.known)
        self.known.update(new)
        if new:
            import site

            end = len(sys.path)
            for name in new:
                site.addpackage(self.directory, name, None)
            added = sys.path[end:]
            del sys.path[end:]
            after = sys.path.index(self.directory) + 1
            sys.path[after:after] = added
