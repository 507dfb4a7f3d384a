"""aqpipe's programs as a Python package: `pip install aqpipe` puts aqpipe and aqpiped on the path.

The programs are machine code in this folder (bin/, with their libraries in lib/aqpipe). Python only starts them, and is gone then.
FOLDER/share/doc/aqpipe has the pages and examples, FOLDER/share/aqpipe/tools the scripts (`python3 -m aqpipe --where` prints FOLDER)."""
import os
import sys

FOLDER = os.path.dirname(os.path.realpath(__file__))


def start(program, arguments):
    """This process becomes the program. Does not return; OSError: it cannot be started."""
    path = os.path.join(FOLDER, "bin", program)
    os.environ.setdefault("AQPIPE_PYTHON", sys.executable or "python3")  # output.report_to: the packages next to this one
    os.execv(path, [path, *arguments])


def aqpipe():
    start("aqpipe", sys.argv[1:])


def aqpiped():
    start("aqpiped", sys.argv[1:])
