#!/workspace/.venv/bin/python -IS
"""`pip` of a session: runs `uv pip` where uv is available, because it takes a tenth of the time, and else the pip of the
interpreter. Also the module that `python -m pip` runs. If the host has no uv, also `uv` and `uvx`: the package mirror
downloads uv when a session first uses one of these.

Subcommands and options that uv lacks go to the interpreter's pip. It changes only the virtual environment: `--user` and
`--break-system-packages` have no effect. `uv pip list` would leave out packages of the system, so pip lists.
"""

import os
import sys

# The directory in which the mirror provides uv, as a mount of the host. It does not exist if the host has uv.
UV_OF_MIRROR = "/run/ringfence/bin/uv"
UV_TIMEOUT_S = 60

# The options of pip that uv has: its name there, "" for options without effect, None for those that need pip.
INSTALL_FLAGS = {
    "-U": "--upgrade", "-q": "--quiet", "-v": "--verbose", "-I": "--reinstall", "--upgrade": "--upgrade",
    "--quiet": "--quiet", "--verbose": "--verbose", "--ignore-installed": "--reinstall", "--force-reinstall": "--reinstall",
    "--no-deps": "--no-deps", "--pre": "--prerelease=allow", "--no-index": "--no-index", "--dry-run": "--dry-run",
    "--require-hashes": "--require-hashes", "--no-build-isolation": "--no-build-isolation", "--no-cache-dir": "--no-cache",
    "--compile": "--compile-bytecode", "--no-compile": "", "--user": "", "--break-system-packages": "", "--no-input": "",
    "--prefer-binary": "", "--no-warn-script-location": "", "--no-warn-conflicts": "", "--no-color": "", "--use-pep517": "",
    "--disable-pip-version-check": "", "--no-python-version-warning": "", "--no-user": "", "-y": "", "--yes": "",
}  # fmt: skip
INSTALL_VALUES = {
    "-r": "--requirements", "--requirement": "--requirements", "-c": "--constraints", "--constraint": "--constraints",
    "-e": "--editable", "--editable": "--editable", "-t": "--target", "--target": "--target", "--prefix": "--prefix",
    "-i": "--index-url", "--index-url": "--index-url", "--extra-index-url": "--extra-index-url", "-f": "--find-links",
    "--find-links": "--find-links", "--only-binary": "--only-binary", "--no-binary": "--no-binary", "--group": "--group",
    "--trusted-host": "--allow-insecure-host", "-C": "--config-setting", "--config-settings": "--config-setting",
    "--progress-bar": "", "--root-user-action": "", "--upgrade-strategy": "", "--timeout": "", "--retries": "",
    "--exists-action": "", "--cache-dir": "", "--log": "",
}  # fmt: skip
UNINSTALL_FLAGS = {name: INSTALL_FLAGS[name] for name in (
    "-y", "--yes", "-q", "--quiet", "-v", "--verbose", "--break-system-packages", "--no-input", "--disable-pip-version-check",
)}  # fmt: skip
UNINSTALL_VALUES = {name: INSTALL_VALUES[name] for name in ("-r", "--requirement", "--root-user-action")}
OPTIONS = {"install": (INSTALL_FLAGS, INSTALL_VALUES), "uninstall": (UNINSTALL_FLAGS, UNINSTALL_VALUES)}

NO_EFFECT = ("--user", "--break-system-packages")

# Subcommands that uv has too, for an interpreter without pip.
SAME_IN_UV = ("list", "show", "freeze", "check", "tree")

# Settings of pip that uv calls otherwise.
VARIABLES = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_EXTRA_INDEX_URL": "UV_INDEX", "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_CONSTRAINT": "UV_CONSTRAINT", "PIP_CERT": "SSL_CERT_FILE", "PIP_TRUSTED_HOST": "UV_INSECURE_HOST",
}  # fmt: skip

NO_INSTALLER = """\
pip: this sandbox has neither uv nor pip
hint: install uv or python3-pip on the host of ringfence, or pip in the image; sessions that start afterwards have it
"""

# Runs the pip in a directory or wheel. It is loaded from there, but the path stays as it is.
RUN_PIP = """\
import importlib.machinery, importlib.util, sys
sys.path.remove("") if "" in sys.path else None
spec = importlib.machinery.PathFinder.find_spec("pip", [sys.argv.pop(1)])
sys.modules["pip"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from pip._internal.cli.main import main
sys.argv[0] = "pip"
sys.exit(main())
"""


def main(arguments):
    program = os.path.basename(sys.argv[0])
    if program in ("uv", "uvx"):
        return run_uv(["tool", "run", *arguments] if program == "uvx" else arguments)
    translated, pip = translate(arguments), find_pip()
    # The mirror may have to download uv, so it is requested only if it is used.
    uv = find_uv() if translated is not None or not pip else None
    if not uv:
        translated = None
    if not uv and not pip:
        sys.stderr.write(NO_INSTALLER)
        return 1
    if translated is None and not pip:
        translated = arguments if arguments[:1] and arguments[0] in SAME_IN_UV else None
        if translated is None:
            sys.stderr.write(f"pip: uv has no equivalent of `pip {' '.join(arguments)}`\n")
            sys.stderr.write("hint: use `pip install` or `uv`, or install python3-pip on the host of ringfence\n")
            return 1
    if "--user" in arguments:
        sys.stderr.write("pip: --user has no effect: packages are installed into the session's virtual environment\n")
        sys.stderr.flush()
    if translated is not None:
        command, *rest = translated
        if command == "install" and is_set(os.environ.get("PIP_NO_INDEX", "")):
            rest.insert(0, "--no-index")
        try:
            os.execve(uv, ["uv", "pip", command, "--python", sys.executable, *rest], uv_environment(os.environ))
        except OSError as error:
            if not pip:
                sys.stderr.write(f"pip: {uv} cannot be executed: {error.strerror}\n")
                return 1
    arguments = [argument for argument in arguments if argument not in NO_EFFECT]  # older pips lack the second
    os.execv(sys.executable, [sys.executable, "-c", RUN_PIP, pip, *arguments])


def translate(arguments):
    """Returns the arguments for `uv pip`, or None if uv cannot do this."""
    arguments = list(arguments)
    leading = []  # pip takes general options before the subcommand too
    while arguments and arguments[0].startswith("-"):
        leading.append(arguments.pop(0))
    if not arguments or arguments[0] not in OPTIONS:
        return None
    command = arguments.pop(0)
    flags, values = OPTIONS[command]
    translated, rest = [command], leading + arguments
    while rest:
        given = rest.pop(0)
        name, equals, value = given.partition("=")
        if given == "--":
            return [*translated, given, *rest]
        if not given.startswith("-") or given == "-":
            translated.append(given)
        elif given in flags:
            translated += [flags[given]] if flags[given] else []
        elif name in values and (equals or rest):
            value = value if equals else rest.pop(0)
            translated += [values[name], value] if values[name] else []
        elif len(given) > 2 and given[1] != "-" and given[:2] in values:  # -rFILE
            translated += [values[given[:2]], given[2:]]
        elif given[1] != "-" and all(f"-{letter}" in flags for letter in given[1:]):  # -qU
            rest[:0] = [f"-{letter}" for letter in given[1:]]
        else:
            return None
    return translated


def uv_environment(environment):
    environment = dict(environment)
    for of_pip, of_uv in VARIABLES.items():
        if of_pip in environment:
            environment.setdefault(of_uv, environment[of_pip])
    return environment


def is_set(value):
    return value.lower() not in ("", "0", "false", "no", "off")


def run_uv(arguments):
    uv = find_uv()
    if not uv:
        sys.stderr.write("uv: it is not installed, and the package mirror cannot provide it\n")
        sys.stderr.write("hint: use pip, or install uv on the host of ringfence; sessions that start afterwards have it\n")
        return 1
    os.execv(uv, ["uv", *arguments])


def find_uv():
    for directory in os.environ.get("PATH", os.defpath).split(":"):
        path = f"{directory}/uv"
        if directory and os.access(path, os.X_OK) and not os.path.samefile(path, __file__):
            return path
    return uv_of_mirror()


def uv_of_mirror():
    """Returns the uv of the package mirror, which downloads it at the first request."""
    mirror = os.environ.get("UV_DEFAULT_INDEX", "").partition("/pypi/")[0]
    if not os.path.isdir(os.path.dirname(UV_OF_MIRROR)) or not mirror.startswith("http://127.0.0.1:"):
        return None
    if not os.access(UV_OF_MIRROR, os.X_OK):
        import http.client

        try:
            connection = http.client.HTTPConnection(mirror.removeprefix("http://"), timeout=UV_TIMEOUT_S)
            connection.request("GET", "/programs/uv")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return None
    return UV_OF_MIRROR if os.access(UV_OF_MIRROR, os.X_OK) else None


def find_pip():
    """Returns the directory or wheel of the interpreter's own pip."""
    library = os.path.dirname(os.__file__)
    name = os.path.basename(library)
    packages = [f"{library}/site-packages", f"{library}/dist-packages"]
    packages += [f"/usr/local/lib/{name}/dist-packages", "/usr/lib/python3/dist-packages"]
    for directory in packages:
        if os.path.isfile(f"{directory}/pip/__main__.py"):
            return directory
    for directory in (f"{library}/ensurepip/_bundled", "/usr/share/python-wheels"):
        try:
            wheels = sorted(name for name in os.listdir(directory) if name.startswith("pip-") and name.endswith(".whl"))
        except OSError:
            continue
        if wheels:
            return f"{directory}/{wheels[-1]}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
