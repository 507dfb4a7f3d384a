"""What tools/tarball and tools/wheel share: the installed files of a build with the libraries that they need.

Two forms, for two kinds of machine:
    with_c_library(build, top)   everything, the C library and its loader too: any Linux of that processor, but no CUDA
    on_system(build, top)        all but the C library, which is the system's: glibc of glibc_floor(top) or later

The second form has real programs in bin/, with the run path $ORIGIN/../lib/aqpipe (CMakeLists.txt), so that they load the
GPU's driver and CUDA's libraries of the machine."""
import contextlib
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = ("aqpipe", "aqpiped", "aqpipe-bench")
RUN_PATH = "$ORIGIN/../lib/aqpipe"
START = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec "$here/{loader}" --inhibit-cache --library-path "$here" --argv0 "$0" "$here/programs/{program}" "$@"
"""
# What other programs print is parsed here: it must not depend on a language.
ENVIRONMENT = {**os.environ, "LC_ALL": "C"}
SYSTEM = ("/usr/", "/opt/")
# glibc loads these by name at run time, for host names. No program lists them.
NAMED = ("libnss_dns.so.2", "libnss_files.so.2")
LEFT = ("lib/cmake", "lib/pkgconfig", "lib/systemd", "include")
C_LIBRARY = re.compile(r"(libc|libm|libdl|librt|libpthread|libresolv|libutil|libanl|libmvec|libnss_\w+|ld-linux[\w-]*)\.so(\.\d+)*$")


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, env=ENVIRONMENT)
    if done.returncode != 0:
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {' '.join(map(str, command))}\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


def fail(text):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {text}")


def version():
    return re.search(r"project\(aqpipe VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


def switched_on(build, option):
    return re.search(rf"^{option}:BOOL=(ON|TRUE|1)$", (build / "CMakeCache.txt").read_text(), re.M) is not None


def cuda(build):
    """"cuda13" of a build with CUDA 13; "" of one without CUDA."""
    if not switched_on(build, "AQ_CUDA"):
        return ""
    compiler = next(build.glob("CMakeFiles/*/CMakeCUDACompiler.cmake")).read_text()
    return "cuda" + re.search(r'CMAKE_CUDA_COMPILER_VERSION "(\d+)', compiler).group(1)


def for_others(build):
    """Fails if the programs search folders of a user of this machine for CUDA's libraries: on another machine anybody may own that path."""
    value = re.search(r"^AQ_GPU_FOLDERS:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)
    own = [folder for folder in (value.group(1).split(":") if value else ()) if folder and not folder.startswith(SYSTEM)]
    if own:
        fail(f"{build}: its programs search {', '.join(own)} for CUDA's libraries, which is a folder of this machine. For a package build without it: "
             f"cmake {build} -DAQ_GPU_FOLDERS= && cmake --build {build}")


@contextlib.contextmanager
def written(path):
    """Lends a name beside `path`. What was written there becomes `path` at the end, and is removed if anything fails."""
    beside = path.with_name(f"{path.name}.partial")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def libraries(program):
    """Name to path of all that the loader would load, and the loader."""
    told, loader = {}, None
    for line in run("ldd", program).splitlines():
        if match := re.match(r"\s*(\S+) => (/\S+) ", line):
            told[match.group(1)] = pathlib.Path(match.group(2))
        elif match := re.match(r"\s*(/\S*ld-linux\S*) ", line):
            loader = pathlib.Path(match.group(1))
        elif "not found" in line:
            fail(f"{program}: {line.strip()}")
    if not loader:
        fail(f"{program} has no loader: is it linked statically?")
    return told, loader


def copy_licences(paths, folder):
    """Copies the copyright file of the Debian package of each library. Packages know a file as /lib/... or as /usr/lib/..."""
    names = {path: {place for each in (path, path.resolve()) for place in (str(each), str(each).removeprefix("/usr"))} for path in paths}
    told = subprocess.run(["dpkg", "-S", *sorted(set().union(*names.values()))], capture_output=True, text=True, check=False, env=ENVIRONMENT).stdout
    packages = {line.rsplit(": ", 1)[1]: re.split("[:,]", line)[0] for line in told.splitlines() if ": /" in line}
    folder.mkdir(parents=True)
    for path, places in names.items():
        package = next((packages[place] for place in places if place in packages), None)
        copyright_file = pathlib.Path("/usr/share/doc") / str(package) / "copyright"
        if not copyright_file.exists():
            fail(f"no package's copyright file is known for {path}: a library may only be handed on with its licence")
        shutil.copyfile(copyright_file, folder / package)


def copy_libraries(wanted, here, top):
    for name, path in sorted(wanted.items()):
        shutil.copyfile(path.resolve(), here / name)
        (here / name).chmod(0o755)
    copy_licences(wanted.values(), top / "share" / "doc" / "licenses")


def installed(build, top):
    """What `cmake --install` installs, without what a relocatable folder cannot have: the unit (it names /usr), libaqsgd."""
    for_others(build)
    run("cmake", "--install", build, "--prefix", top, "--strip")
    for name in LEFT:
        shutil.rmtree(top / name, ignore_errors=True)
    for library in list(top.glob("lib/libaqsgd*")) + list(top.glob("lib/*/libaqsgd*")):
        library.unlink()


def with_c_library(build, top):
    """bin/aqpipe leads to lib/aqpipe/aqpipe, a script next to the loader, which runs lib/aqpipe/programs/aqpipe by it."""
    installed(build, top)
    here = top / "lib" / "aqpipe"
    (here / "programs").mkdir(parents=True)
    wanted, loaders = {}, set()
    for program in PROGRAMS:
        shutil.move(top / "bin" / program, here / "programs" / program)
        told, loader = libraries(here / "programs" / program)
        wanted.update(told)
        loaders.add(loader)
    loader = loaders.pop()
    beside = next(iter(path.parent for name, path in wanted.items() if name.startswith("libc.so")))
    wanted.update({name: beside / name for name in NAMED if (beside / name).exists()})
    wanted[loader.name] = loader
    copy_libraries(wanted, here, top)
    for program in PROGRAMS:
        start = here / program
        start.write_text(START.format(loader=loader.name, program=program))
        start.chmod(0o755)
        (top / "bin" / program).symlink_to(pathlib.Path("..") / "lib" / "aqpipe" / program)


def on_system(build, top):
    """bin/aqpipe is the program; lib/aqpipe has its libraries, without the C library."""
    installed(build, top)
    here = top / "lib" / "aqpipe"
    here.mkdir(parents=True)
    wanted = {}
    built = build / ("bin/shared" if switched_on(build, "AQ_TEST_STATIC") else "bin")  # aq_installed in CMakeLists.txt
    for program in PROGRAMS:
        if f"[{RUN_PATH}]" not in run("readelf", "-d", built / program):
            fail(f"{built}/{program} has no run path {RUN_PATH}: build it again (cmake --build {build})")
        wanted.update(libraries(top / "bin" / program)[0])
        shutil.copyfile(built / program, top / "bin" / program)  # cmake --install removed the run path
        run("strip", top / "bin" / program)
        (top / "bin" / program).chmod(0o755)
    copy_libraries({name: path for name, path in wanted.items() if not C_LIBRARY.match(name)}, here, top)


def glibc_floor(top):
    """(2, 36): the oldest glibc that has all symbol versions which the programs and libraries below `top` name."""
    found = {(2, 17)}
    for path in [*top.glob("bin/*"), *top.glob("lib/aqpipe/*")]:
        told = run("readelf", "--version-info", "--wide", path)
        found |= {tuple(map(int, match.split("."))) for match in re.findall(r"Name: GLIBC_(2\.\d+)", told)}
    return max(found)


def named(build):
    """aqpipe-VERSION[-cudaN]-MACHINE"""
    return "-".join(filter(None, ("aqpipe", version(), cuda(build), platform.machine())))


def checksum(path):
    """Puts the file's line into SHA256SUMS of its folder; `sha256sum -c SHA256SUMS` checks them all."""
    sums = path.parent / "SHA256SUMS"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    lines = [line for line in sums.read_text().splitlines() if line.split()[1:] != [path.name]] if sums.exists() else []
    with written(sums) as beside:
        beside.write_text("\n".join(sorted([*lines, f"{digest}  {path.name}"], key=lambda line: line.split()[1])) + "\n")
