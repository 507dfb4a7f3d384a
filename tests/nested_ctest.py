"""ctest within a test of ctest. A second ctest in the same build folder empties Testing/Temporary/LastTest.log, even with
--show-only, and the output of what the first one ran is lost. This one has a folder of its own, which includes the build's.

    with nested_ctest.folder(build) as folder:
        subprocess.run(["ctest", "--test-dir", folder, ...])
"""
import contextlib
import pathlib
import tempfile


@contextlib.contextmanager
def folder(build):
    with tempfile.TemporaryDirectory(prefix="aqpipe-ctest-") as name:
        pathlib.Path(name, "CTestTestfile.cmake").write_text(f'subdirs("{pathlib.Path(build).resolve()}")\n')
        yield name
