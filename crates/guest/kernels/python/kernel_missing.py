"""Hints for missing names: modules that are not installed, with the distribution to install and installed modules with
similar names, and MCP servers that the call did not name."""

import posix
import sys

from kernel_imports import import_stdlib

MAX_NAMES = 10_000
MAX_ALIAS = 64
SIMILARITY = 0.8  # of difflib
SUFFIXES = (".py", ".so")

# Modules whose distribution has another name. An empty name: no single distribution has the module.
DISTRIBUTIONS = """
Crypto=pycryptodome IPython=ipython Levenshtein=levenshtein MySQLdb=mysqlclient OpenSSL=pyopenssl PIL=pillow
Xlib=python-xlib attr=attrs bs4=beautifulsoup4 community=python-louvain cv2=opencv-python-headless dateutil=python-dateutil
discord=discord.py dns=dnspython docx=python-docx dotenv=python-dotenv faiss=faiss-cpu fitz=pymupdf flask_cors=flask-cors
git=gitpython github=pygithub google= googleapiclient=google-api-python-client gridfs=pymongo igraph=python-igraph
impala=impyla jose=python-jose jwt=pyjwt kafka=kafka-python ldap=python-ldap lxml_html_clean=lxml-html-clean magic=python-magic
markdown_it=markdown-it-py mpl_toolkits=matplotlib mx= nacl=pynacl ninja=ninja osgeo=gdal pkg_resources=setuptools
playhouse=peewee pptx=python-pptx psycopg2=psycopg2-binary pythoncom=pywin32 pylab=matplotlib pymysql=pymysql
rest_framework=djangorestframework ruamel=ruamel.yaml sentence_transformers=sentence-transformers serial=pyserial
skimage=scikit-image sklearn=scikit-learn slugify=python-slugify snappy=python-snappy socks=pysocks sqlalchemy_utils=sqlalchemy-utils
telegram=python-telegram-bot tensorflow_hub=tensorflow-hub umap=umap-learn usb=pyusb win32api=pywin32 wx=wxpython
yaml=pyyaml zmq=pyzmq
"""


def hint_for_missing_module(error):
    """Returns a line that names the next step if a module is not installed, else nothing."""
    if type(error) is not ModuleNotFoundError or type(error.name) is not str:
        return ""
    name = error.name.partition(".")[0]
    # A package of the guest, or a module that an installed package lacks, is not to be installed.
    if not name.isidentifier() or name in sys.modules or name in getattr(sys, "stdlib_module_names", ()):
        return ""
    distributions = dict(entry.split("=") for entry in DISTRIBUTIONS.split())
    distribution = distributions.get(name, name.strip("_").replace("_", "-"))
    install = f"run `pip install {distribution}` with execute_command" if distribution else ""
    similar = [] if name in distributions else similar_modules(name)
    if similar:
        names = " or ".join(f"`{name}`" for name in similar)
        return f"hint: import {names}, which is installed" + (f"; otherwise {install}\n" if install else "\n")
    return f"hint: {install}\n" if install else ""


def hint_for_missing_server(error):
    """Returns a line that names the next step if code uses an MCP server that its call did not name, else nothing."""
    if type(error) is not NameError:
        return ""
    name = getattr(error, "name", None)  # since Python 3.10
    if name is None:
        name = str(error.args[0]).partition("'")[2].partition("'")[0] if error.args else ""
    prefix, _, alias = name.partition("_") if type(name) is str else ("", "", "")
    if prefix != "mcp" or not alias.strip("_") or not alias.isascii() or len(alias) > MAX_ALIAS:
        return ""
    return f'hint: pass servers=["{alias}"] with the code\n'


def similar_modules(name):
    by_lower = {found.lower(): found for found in installed_modules()}
    matches = import_stdlib("difflib").get_close_matches(name.lower(), by_lower, 2, SIMILARITY)
    return [by_lower[match] for match in matches]


def installed_modules():
    names = {name for name in getattr(sys, "stdlib_module_names", ()) if name[0] != "_"}
    for directory in sys.path:
        try:
            entries = posix.listdir(directory or ".")
        except (OSError, TypeError):
            continue
        for entry in entries[:MAX_NAMES]:
            stem, dot, _ = entry.partition(".")
            if stem.isidentifier() and stem[0] != "_" and (not dot or entry.endswith(SUFFIXES)):
                names.add(stem)
    return names
