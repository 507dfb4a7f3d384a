"""What a test that imports PyTorch or transformers imports before them, and how it ends.

Python's collector of cycles walks about 300,000 objects of these packages again and again while they load, and the end of the
interpreter frees each of them: together a third of such a test's processor time (docs/DECISIONS.md 1235)."""
import gc
import os
import sys

gc.disable()


def leave(code=0):
    """Ends the process with this exit status and frees nothing. A test that fails by an exception does not come here."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
