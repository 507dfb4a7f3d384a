"""`aqpipe launch --on k8s`: manifests that are YAML, by the rules that the API server has for them (names, required fields, ports, references), and
whose commands programs of this machine take. No cluster is needed."""
import json
import os
import re
import subprocess
import sys

from kit import BIN, ROOT, check
import jobs
from jobs import aqpipe, manifest

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # DNS-1123
QUANTITY = re.compile(r"[0-9]+(m|Mi|Gi)?")
OPTIONS = "--image", "registry.example/aqpipe:0.1.0", "--claim", "shared"
KINDS = {"Service": "v1", "StatefulSet": "apps/v1", "Job": "batch/v1"}


def documents(path, *arguments):
    done = aqpipe("launch", path, "--on", "k8s", "--print", *OPTIONS, *arguments)
    check(done.returncode == 0 and not done.stderr, f"--on k8s {arguments} ended with {done.returncode}: {done.stderr}")
    try:
        import yaml
    except ImportError:
        print("skip: no PyYAML here (apt-get install python3-yaml)")
        sys.exit(77)

    class Strict(yaml.SafeLoader):
        """Keys that come twice are refused, as kubectl --validate=strict does."""
        def construct_mapping(self, node, deep=False):
            keys = [key.value for key, _ in node.value]
            check(len(keys) == len(set(keys)), f"keys come twice: {keys}")
            return super().construct_mapping(node, deep)
    found = {document["kind"]: document for document in yaml.load_all(done.stdout, Strict) if document}
    check({kind: document["apiVersion"] for kind, document in found.items()} == KINDS, f"{list(found)}")
    return done.stdout, found


def slurm_asks_for_memory():
    """The script asks for the plan's memory, unless the user does; its log gets lines of progress."""
    path = manifest("queue", **{"pipeline.stages": 2, "pipeline.threads": 2})
    plan = json.loads(aqpipe("plan", path, "--json").stdout)
    most = max(stage["memory_bytes"] for stage in plan["stages"])
    script = aqpipe("launch", path, "--on", "slurm", "--dry-run").stdout
    asked = int(re.search(r"^#SBATCH --mem-per-cpu=(\d+)M$", script, re.M).group(1))
    check(most < 2 * asked * 2**20 < most + 2**29, f"{asked} MiB for each of 2 cores; the plan has {most} bytes")
    check("--no-progress" not in script and "--open-mode=append" in script, script)
    script = aqpipe("launch", path, "--on", "slurm", "--sbatch=--mem=3G", "--dry-run").stdout
    check("--mem-per-cpu" not in script and "#SBATCH --mem=3G\n" in script, script)


def pod_is_sound(spec, mounted):
    """Of a pod template: everything that is named is there."""
    volumes = {volume["name"] for volume in spec["volumes"]} | mounted
    check(spec["securityContext"]["runAsUser"] == os.geteuid() and spec["terminationGracePeriodSeconds"] > 0, f"{spec}")
    containers = spec["initContainers"] + spec["containers"]
    for container in containers:
        check(LABEL.fullmatch(container["name"]) and container["image"] == OPTIONS[1], f"{container}")
        check(all(isinstance(word, str) for word in container["command"]), f"words of a command are texts: {container['command']}")
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        check({mount["name"] for mount in container["volumeMounts"]} <= volumes and len(paths) == len(set(paths)), f"{container}")
        check(all(path.startswith("/") and ":" not in path for path in paths), f"{paths}")
        resources = container["resources"]
        check(all(QUANTITY.fullmatch(str(value)) for kind in resources.values() for value in kind.values()), f"{resources}")
        check(not container["securityContext"]["allowPrivilegeEscalation"], "privileges")
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        check(all(LABEL.fullmatch(name) and len(name) <= 15 and 0 < port < 65536 for name, port in ports.items()), f"{ports}")
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            check(probe not in container or container[probe]["tcpSocket"]["port"] in ports, f"{container}")
    names = [container["name"] for container in containers]
    check(len(names) == len(set(names)), f"{names}")


def sound(found, ranks):
    for document in found.values():
        check(LABEL.fullmatch(document["metadata"]["name"]) and document["metadata"]["name"][0].isalpha(), f"{document['metadata']}")
        check(all(LABEL.fullmatch(value) for value in document["metadata"]["labels"].values()), f"{document['metadata']}")
    service, stages, job = (found[kind]["spec"] for kind in KINDS)
    labels = stages["template"]["metadata"]["labels"].items()
    check(stages["selector"]["matchLabels"].items() <= labels and service["selector"].items() <= labels, "the selectors' pods")
    check(not service["selector"].items() <= job["template"]["metadata"]["labels"].items(), "the launcher is no stage")
    check(stages["serviceName"] == found["Service"]["metadata"]["name"] and service["clusterIP"] == "None", "a headless service")
    check(stages["replicas"] == ranks, f"{stages['replicas']} pods")
    check({port["port"] for port in service["ports"]} == {port["containerPort"] for port in stages["template"]["spec"]["containers"][0]["ports"]}, "ports")
    claims = {claim["metadata"]["name"] for claim in stages.get("volumeClaimTemplates", [])}
    pod_is_sound(stages["template"]["spec"], claims)
    pod_is_sound(job["template"]["spec"], set())
    check(job["template"]["spec"]["restartPolicy"] == "Never", "a policy of failures wants Never")
    return claims


def settings(found):
    words = found["Job"]["spec"]["template"]["spec"]["containers"][0]["command"]
    return [words[i + 1] for i, word in enumerate(words) if word == "--set"]


def commands_work(path, text, found, ranks):
    """The keys as the file says, a daemon as in the pods, the launcher's settings: each taken by the program that it is for."""
    keys = ROOT / f"keys-{ranks}"
    line = re.search(r"aqpipe keys init KEYS (.*)", text)[1]
    made = aqpipe("keys", "init", keys, *line.split())
    check(made.returncode == 0, made.stderr)
    name = found["StatefulSet"]["metadata"]["name"]
    command = found["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]["command"]
    check(command[0] == "aqpiped" and command[1:3] == ["--listen", "*:7400"], f"{command}")
    host = command[command.index("--host") + 1].replace("$(POD)", f"{name}-{ranks - 1}")
    daemon = subprocess.Popen([BIN / "aqpiped", "--listen", "127.0.0.1:0", "--port-file", ROOT / f"port-{ranks}", "--host", host, "--keys", keys])
    jobs.await_file(ROOT / f"port-{ranks}")
    daemon.terminate()
    check(daemon.wait() == 0, "the daemon")
    words = [word for one in settings(found) for word in ("--set", one.replace("/keys/job", str(keys)))]
    done = aqpipe("plan", path, "--json", *words)
    check(done.returncode == 0, f"the launcher's settings: {done.stderr}")
    hosts = re.findall(r"tcp://([^:\"]+):7400", " ".join(words))
    check(sorted(hosts) == sorted(f"{name}-{rank}.{name}" for rank in range(ranks)), f"{hosts}")


def refused(pattern, *arguments, path=None):
    done = aqpipe("launch", path or manifest("wrong", pipeline__stages=2), "--on", "k8s", "--print", *arguments)
    check(done.returncode == 2 and not done.stdout and re.search(pattern, done.stderr), f"{arguments}: wanted /{pattern}/: {done.returncode} {done.stderr}")


def scenario_k8s():
    path = manifest("two", pipeline__stages=2)
    text, found = documents(path)
    check(sound(found, 2) == {"cache"} and "cache.path=/cache" in settings(found), "caches on disks of pods' own")
    check("nvidia.com/gpu" not in text, "a GPU that nobody wants")
    commands_work(path, text, found, 2)

    path = manifest("'Many. Stages_&_a name that is much too long for DNS'", pipeline__replicas=2, data__train_samples_max=24, cache__kind="memory",
                    output__path=ROOT / "many").rename(ROOT / "many.yaml")
    listed = "pipeline.stages=[{layers: 0-2, device: cuda, threads: 3}, {layers: 3-5, device: cuda}]"
    text, found = documents(path, "--set", listed, "--set", 'data.labels="a \\ b"')
    check(sound(found, 4) == set() and not any(one.startswith("cache.path") for one in settings(found)), "caches in memory want no disk")
    _, dollars = documents(path, "--set", 'data.labels="$(POD) $b"')  # there $(POD) is a variable's value, and $$ is $
    check('data.labels="$$(POD) $$b"' in settings(dollars), f"{settings(dollars)}")
    stage = found["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]["resources"]
    check(stage["limits"]["nvidia.com/gpu"] == 1 and stage["requests"]["cpu"] == 3, f"{stage}")
    check(settings(found)[:2] == [listed, 'data.labels="a \\ b"'], f"{settings(found)}")

    done = aqpipe("launch", manifest("two", pipeline__stages=2), "--on", "k8s", *OPTIONS)
    check(done.returncode == 0 and (ROOT / "two.k8s.yaml").stat().st_mode & 0o777 == 0o600 and not (ROOT / "two").exists(), done.stderr)
    refused("--on k8s needs --image")
    refused("--on k8s needs --claim", "--image", "x")
    refused("not a name in Kubernetes", "--image", "x", "--claim", "Shared_1")
    refused("--image .*without blanks", "--image", 'x" y', "--claim", "shared")
    refused("output.path: .*not below", *OPTIONS, "--run", "/elsewhere/run")
    refused("data.train: .*not below|the manifest: .*not below", *OPTIONS, "--mount", ROOT / "folder")
    refused("letters, digits", *OPTIONS, "--run", ROOT / "a b")
    refused("leave out host and address", *OPTIONS, "--set", "pipeline.stages=[{host: \"tcp://127.0.0.1:7000\"}, {}]")
    refused("model.blocks", *OPTIONS, path=manifest("bad", model__blocks=0))
    refused("no letter or digit", *OPTIONS, path=manifest("'___'", output__path=ROOT / "odd"))
    refused("--image, --claim and --mount need --on k8s", "--on", "slurm", "--claim", "x")
    slurm_asks_for_memory()
