"""`aqpipe launch --on mpi`: ranks that somebody else has started: by a stand-in that sets what mpirun would, and by mpirun where it is installed."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import jobs
from jobs import check, launch, losses, manifest, no_workers, weights
from kit import BIN, REPLICAS, ROOT, marked, twins

KEYS = {**REPLICAS, "edges.forward.codec": "aqsgd", "edges.forward.bits": 4, "train.epochs": 3, "checkpoint.every": "2 steps"}
RANKS = 4
# Of each starter the variables of one rank; {r} its number, {n} how many, {s} the start.
STARTERS = {"openmpi": {"OMPI_COMM_WORLD_RANK": "{r}", "OMPI_COMM_WORLD_SIZE": "{n}", "PMIX_NAMESPACE": "prterun@{s}"},
            "pmix": {"PMIX_RANK": "{r}", "SLURM_NTASKS": "{n}", "SLURM_JOB_ID": "{s}", "SLURM_STEP_ID": "0"},
            "srun": {"SLURM_PROCID": "{r}", "SLURM_NTASKS": "{n}", "SLURM_JOB_ID": "{s}", "SLURM_STEP_ID": "1"},
            "hydra": {"PMI_RANK": "{r}", "PMI_SIZE": "{n}", "PMI_JOBID": "{s}"}}
OURS = ("OMPI_", "PMIX_", "PMI_", "SLURM_")


def begin(path, variables, ranks=RANKS, start=0, hold=None, address="127.0.0.1"):
    """One process a rank, each of a session of its own, as on hosts of their own; without an address each finds its own."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(OURS)}
    return [subprocess.Popen([BIN / "aqpipe", "launch", path, "--on", "mpi", "--restarts", "0"], stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
                             env={**own, **(hold.environment() if hold else {}), "AQPIPE_MPI_ADDRESS": address,
                                  **{key: value.format(r=r, n=ranks, s=start) for key, value in variables.items()}})
            for r in range(ranks)]


def end(tag, processes, want):
    """Rank 0 has that exit status, the others 0, and nothing is left."""
    said = [process.communicate(timeout=jobs.PATIENCE)[1] for process in processes]
    codes = [process.returncode for process in processes]
    check(codes == [want] + [0] * (len(codes) - 1), f"{tag}: exit codes {codes}\n" + "\n".join(text[-1500:] for text in said))
    check(not (ROOT / f"{tag}.mpi").exists(), f"{tag}: left {list((ROOT / f'{tag}.mpi').rglob('*'))}")
    no_workers(tag)


def same(tag):
    check(losses(tag) == losses("plain") and weights(tag) == weights("plain"), f"{tag}: not the run of a plain launch")


def begin_held(tag, starter, start):
    """The same, and stopped after step 4: the processes, and the hold."""
    path = manifest(tag, **KEYS)
    hold = jobs.Hold(5, also=twins(path, 0))
    processes = begin(path, STARTERS[starter], start=start, hold=hold)
    hold.reached(*processes)
    marked(path, 4)
    return processes, hold


def taken(process, number):
    """Until the process has read the signal that was sent to it."""
    deadline = time.time() + jobs.PATIENCE
    status = pathlib.Path(f"/proc/{process.pid}/status")
    while int(re.search(r"^ShdPnd:\s*(\w+)", status.read_text(), re.M)[1], 16) >> (number - 1) & 1:
        check(time.time() < deadline, f"process {process.pid} does not read signal {number}")
        time.sleep(0.005)


def scenario_mpi():
    """Losses and model of the plain launch, by each starter; stopped by a signal and gone on with; what is wrong is refused, and nobody is left."""
    launch(manifest("plain", **KEYS))
    for number, (starter, variables) in enumerate(STARTERS.items()):
        end(starter, begin(manifest(starter, **KEYS), variables, start=100 + number, address="" if starter == "srun" else "127.0.0.1"), 0)
        same(starter)

    # As mpirun passes it on, to all processes of all ranks; and once more, which changes nothing.
    processes, hold = begin_held("stopped", "openmpi", 200)
    for process in processes:
        os.killpg(process.pid, signal.SIGUSR1)
    taken(processes[0], signal.SIGUSR1)  # else both are one
    os.killpg(processes[0].pid, signal.SIGUSR1)
    taken(processes[0], signal.SIGUSR1)
    hold.release_others()
    end("stopped", processes, 3)
    check(len(losses("stopped")) == 5, f"stopped in step 5, it has made {len(losses('stopped'))} steps")
    end("stopped", begin(manifest("stopped", **KEYS), STARTERS["openmpi"], start=201), 0)
    same("stopped")

    for tag, variables, ranks, words in (("few", STARTERS["hydra"], 3, "3 ranks were started, and the job has 4 workers"),
                                         ("none", {"PMI_RANK": "x"}, 1, "the environment names no rank")):
        said = [(process.communicate(timeout=jobs.PATIENCE)[1], process.returncode)
                for process in begin(manifest(tag, **KEYS), variables, ranks)]
        check(all(code == 2 for _, code in said) and "".join(text for text, _ in said).count(words) == 1, f"{tag}: {said}")

    beside()

    # A rank that is killed takes the run with it, and no daemon stays.
    processes, hold = begin_held("killed", "pmix", 400)
    os.killpg(processes[2].pid, signal.SIGKILL)
    hold.release()
    for process in processes:
        process.communicate(timeout=jobs.PATIENCE)
    codes = [process.returncode for process in processes]
    check(codes == [1, 0, -signal.SIGKILL, 0], f"killed: exit codes {codes}")
    no_workers("killed")

    # All ranks are killed at once, and nothing else: daemons, workers and launcher end with them.
    processes, hold = begin_held("all-killed", "pmix", 600)
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
    deadline = time.time() + jobs.PATIENCE
    while (left := jobs.ours()) and time.time() < deadline:
        time.sleep(0.02)
    for pid, *_ in left:  # a test that fails leaves none of them either
        subprocess.run(["kill", "-9", pid], stderr=subprocess.DEVNULL, check=False)  # it may have ended meanwhile
    check(not left, f"all-killed: processes are left: {left}")
    hold.release()
    shutil.rmtree(ROOT / "all-killed.mpi")
    mpirun()


def said(processes):
    return [(process.communicate(timeout=jobs.PATIENCE)[1], process.returncode) for process in processes]


def beside():
    """Starts beside one that runs: of another folder; of its folder, refused; of its folder and its name, refused. It never notices."""
    first, hold = begin_held("first", "openmpi", 500)
    other, other_hold = begin_held("other", "openmpi", 501)
    late = said(begin(ROOT / "first.yaml", STARTERS["openmpi"], start=502))
    check(late[0][1] in (1, 2) and "in use" in late[0][0] and all(code == 0 for _, code in late[1:]), f"a second start in one folder: {late}")
    twin = said(begin(ROOT / "first.yaml", STARTERS["openmpi"], start=500))
    check(all(code == 1 and "is of another start" in text for text, code in twin), f"a second start of one name: {twin}")
    check(first[0].poll() is None, "the first start has ended too early to be disturbed")
    check(other[0].poll() is None, "the other start has ended too early to disturb")
    hold.release()
    other_hold.release()
    end("first", first, 0)
    end("other", other, 0)
    same("first")
    same("other")


def mpirun():
    """The real one."""
    program = shutil.which("mpirun")
    if not program:
        print("no mpirun here (Debian: openmpi-bin): its variables were set by hand alone")
        return
    command = [program, "--allow-run-as-root", "--oversubscribe", "-np", str(RANKS), BIN / "aqpipe", "launch", ROOT / "real.yaml", "--on", "mpi"]
    path = manifest("real", **KEYS)
    hold = jobs.Hold(5, also=twins(path, 0))
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "stdin": subprocess.DEVNULL,
               "env": {**os.environ, **hold.environment(), "AQPIPE_MPI_ADDRESS": "127.0.0.1"}}
    process = subprocess.Popen(command, **options)
    hold.reached(process)
    marked(path, 4)
    process.send_signal(signal.SIGUSR1)  # it tells all processes of all ranks
    hold.release_others()
    said, _ = process.communicate(timeout=jobs.PATIENCE)
    check(process.returncode == 3 and len(losses("real")) < len(losses("plain")), f"mpirun, stopped: {process.returncode}\n{said[-3000:]}")
    no_workers("real")
    shutil.rmtree(ROOT / "real.mpi", ignore_errors=True)  # mpirun may have ended ranks before they could tidy up
    hold.release()
    done = subprocess.run(command, timeout=jobs.PATIENCE, check=False, **options)
    check(done.returncode == 0, f"mpirun: {done.returncode}\n{done.stdout[-3000:]}")
    same("real")
    check(not (ROOT / "real.mpi").exists(), "under mpirun: something is left")
    no_workers("real")
