/*
 * launch_k8s.c -- see the header. All names follow from these, for a job called x:
 *
 *     aq-x         the Service and the StatefulSet; pod of rank R: aq-x-R, its host: aq-x-R.aq-x
 *     aq-x-launch  the Job
 *     aq-x-keys    the Secret; the user makes it, as the file explains
 */
#include "launch_k8s.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "out.h"
#include "places.h"
#include "run_folder.h"

/* A pod's host is in a certificate: "aq-NAME-255.aq-NAME" has to fit into AQ_ENDPOINT_NAME_BYTES. */
enum { NAME_BYTES = 25, CONTROL_PORT = 7400, LINK_PORT = 7500, BEGINS_MAX = 6 };
static const uint64_t mib = 1 << 20, gib = 1 << 30;
static const uint64_t beside_bytes = 512 << 20; /* of a stage's sum: the daemon, and pages of files being written */

static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/";

/* A label of DNS's, whatever the job's name is. */
static enum aq_status label_of(const char *name, char out[NAME_BYTES])
{
    size_t used = 0;
    for (const char *at = name; *at && used + 1 < NAME_BYTES; at++) {
        const char c = isascii(*at) && isalnum(*at) ? (char)tolower(*at) : '-';
        if (c != '-' || used > 0) out[used++] = c;
    }
    while (used > 0 && out[used - 1] == '-')
        used--;
    out[used] = 0;
    return used ? AQ_OK
                : aq_fail(AQ_INVAL, "launch", "job.name: %.80s has no letter or digit a-z, 0-9 for --on k8s", name);
}

/* A scalar of YAML in double quotes. Control characters were refused. */
static void quoted(struct aq_text *out, const char *text)
{
    aq_text_add(out, "\"");
    for (const char *at = text; *at; at++)
        aq_text_add(out, "%s%c", *at == '"' || *at == '\\' ? "\\" : "", *at);
    aq_text_add(out, "\"");
}

/* A word of a command: there Kubernetes puts a variable's value for $(NAME), and $ for $$. */
static void quoted_word(struct aq_text *out, const char *text)
{
    struct aq_text doubled = {0};
    for (const char *at = text; *at; at++)
        aq_text_add(&doubled, *at == '$' ? "$$" : "%c", *at);
    quoted(out, aq_text_of(&doubled));
    if (doubled.status != AQ_OK && out->status == AQ_OK) out->status = doubled.status;
    aq_text_deinit(&doubled);
}

/* Is the path the folder, or below it? */
static bool below(const char *path, const char *folder)
{
    const size_t bytes = strlen(folder);
    return strncmp(path, folder, bytes) == 0 && (path[bytes] == '/' || path[bytes] == 0);
}

static enum aq_status check_path(const char *what, const char *path, const char *mount)
{
    if (path[strspn(path, plain)])
        return aq_fail(AQ_INVAL, "launch", "%s: %.200s: with --on k8s it can have only letters, digits and ._-/", what,
                       path);
    if (below(path, mount)) return AQ_OK;
    return aq_fail(AQ_INVAL, "launch",
                   "%s: %.200s is not below %.200s, which is all that pods see: move it there, or pass --mount DIR",
                   what, path, mount);
}

static enum aq_status check_word(const char *option, const char *text)
{
    if (!text) return aq_fail(AQ_INVAL, "launch", "--on k8s needs %s", option);
    for (const char *at = text; *at; at++)
        if ((unsigned char)*at <= ' ' || *at == '"' || *at == '\\' || (unsigned char)*at > '~') text = "";
    return text[0] ? AQ_OK : aq_fail(AQ_INVAL, "launch", "%s: must be a word without blanks and quotes", option);
}

static enum aq_status check_claim(const char *claim)
{
    AQ_TRY(check_word("--claim NAME, a PersistentVolumeClaim (ReadWriteMany)", claim));
    const size_t bytes = strlen(claim);
    const bool name = claim[strspn(claim, "abcdefghijklmnopqrstuvwxyz0123456789-.")] == 0 && bytes <= 253;
    if (name && isalnum(claim[0]) && isalnum(claim[bytes - 1])) return AQ_OK;
    return aq_fail(AQ_INVAL, "launch", "--claim: '%.80s' is not a name in Kubernetes: use a-z, 0-9, '-' and '.'",
                   claim);
}

/* The paths that the launcher and the workers open. */
static enum aq_status check_paths(const struct aq_job *job, const char *manifest, const char *mount)
{
    const struct aq_job_data *data = &job->data;
    const char *const one[][2] = {{"the manifest", manifest},
                                  {"output.path", job->output.path},
                                  {"checkpoint.path", job->checkpoint.path},
                                  {"cache.path", job->cache.path},
                                  {"model.weights", job->model.weights},
                                  {"data.tokenizer_path", data->tokenizer_path},
                                  {"data.cache", data->cache},
                                  {"data.chat", data->chat}};
    for (size_t i = 0; i < sizeof one / sizeof *one; i++)
        if (one[i][1]) AQ_TRY(check_path(one[i][0], one[i][1], mount));
    for (uint32_t i = 0; i < data->train_count; i++)
        AQ_TRY(check_path("data.train", data->train[i], mount));
    for (uint32_t i = 0; i < data->heldout_count; i++)
        AQ_TRY(check_path("data.heldout", data->heldout[i], mount));
    return AQ_OK;
}

struct names {
    char label[NAME_BYTES];
    char manifest[AQ_RUN_PATH_BYTES], mount[AQ_RUN_PATH_BYTES];
};

static enum aq_status check(const struct aq_k8s *k8s, struct names *names)
{
    const struct aq_job *job = k8s->plan->job;
    AQ_TRY(label_of(job->name, names->label));
    AQ_TRY(check_word("--image IMAGE, with aqpipe in it", k8s->image));
    AQ_TRY(check_claim(k8s->claim));
    if (!aq_absolute(k8s->manifest, names->manifest) ||
        !aq_absolute(k8s->mount ? k8s->mount : k8s->manifest, names->mount))
        return aq_fail(AQ_INVAL, "launch", "the manifest's path, or that of --mount, is too long");
    char *slash = strrchr(names->mount, '/'); /* an absolute path has one */
    if (!k8s->mount || slash[1] == 0) *slash = 0;
    if (!names->mount[0]) return aq_fail(AQ_INVAL, "launch", "--mount: must be a folder below /");
    for (uint32_t r = 0; r < aq_job_ranks(job); r++)
        if (job->pipeline.stages[r].host || job->pipeline.stages[r].address)
            return aq_fail(AQ_INVAL, "launch",
                           "pipeline.stages: --on k8s names the pods, so leave out host and address");
    for (uint32_t i = 0; i < k8s->sets->count; i++)
        for (const char *at = k8s->sets->of[i]; *at; at++)
            if ((unsigned char)*at < ' ') return aq_fail(AQ_INVAL, "launch", "--set: must not have control characters");
    return check_paths(job, names->manifest, names->mount);
}

static void add_head(const struct aq_k8s *k8s, const struct names *names, struct aq_text *out)
{
    const uint32_t ranks = k8s->plan->ranks;
    const char *name = names->label;
    aq_text_add(out,
                "# Written by aqpipe launch --on k8s, version %s. Before the first time, the job's keys:\n"
                "#   aqpipe keys init KEYS --job %s --stages %u --hosts ",
                AQ_VERSION, name, ranks);
    for (uint32_t r = 0; r < ranks; r++)
        aq_text_add(out, "%saq-%s-%u.aq-%s", r ? "," : "", name, r, name);
    aq_text_add(
        out,
        "\n#   mv KEYS/authority-key.pem SAFE-PLACE; kubectl create secret generic aq-%s-keys --from-file=KEYS\n"
        "# Then kubectl apply -f THIS-FILE; kubectl logs -f job/aq-%s-launch. At the end, or to stop: kubectl "
        "delete -f THIS-FILE\n",
        name, name);
}

static void add_object(struct aq_text *out, const char *version, const char *kind, const char *name, const char *suffix)
{
    aq_text_add(out,
                "---\napiVersion: %s\nkind: %s\nmetadata:\n  name: aq-%s%s\n  labels: {app.kubernetes.io/name: aqpipe, "
                "app.kubernetes.io/instance: aq-%s}\nspec:\n",
                version, kind, name, suffix, name);
}

static void add_service(const struct names *names, struct aq_text *out)
{
    add_object(out, "v1", "Service", names->label, "");
    aq_text_add(out,
                "  clusterIP: None\n"
                "  publishNotReadyAddresses: true\n"
                "  selector: {app.kubernetes.io/instance: aq-%s, app.kubernetes.io/component: stage}\n"
                "  ports:\n"
                "  - {name: control, port: %d}\n"
                "  - {name: link, port: %d}\n",
                names->label, CONTROL_PORT, LINK_PORT);
}

/* The part of a pod that both kinds have. The user is this one: files of the claim are, too. */
static void add_pod(const struct aq_k8s *k8s, const struct names *names, const char *component, struct aq_text *out)
{
    aq_text_add(out,
                "  template:\n"
                "    metadata:\n"
                "      labels: {app.kubernetes.io/name: aqpipe, app.kubernetes.io/instance: aq-%s, "
                "app.kubernetes.io/component: %s}\n"
                "    spec:\n"
                "      automountServiceAccountToken: false\n"
                "      terminationGracePeriodSeconds: %u\n"
                "      securityContext: {runAsUser: %u, runAsGroup: %u, fsGroup: %u, fsGroupChangePolicy: "
                "OnRootMismatch, seccompProfile: {type: RuntimeDefault}}\n"
                "      volumes:\n"
                "      - {name: shared, persistentVolumeClaim: {claimName: \"%s\"}}\n"
                "      - {name: secret, secret: {secretName: aq-%s-keys, defaultMode: 292}}\n"
                "      - {name: keys, emptyDir: {medium: Memory, sizeLimit: 4Mi}}\n",
                names->label, component, k8s->warning_s, (unsigned)geteuid(), (unsigned)getegid(), (unsigned)getegid(),
                k8s->claim, names->label);
    /* A Secret's files are links in a folder that others may write to: keys are refused there. */
    aq_text_add(out, "      initContainers:\n"
                     "      - name: keys\n"
                     "        image: ");
    quoted(out, k8s->image);
    aq_text_add(out,
                "\n"
                "        command: [sh, -c, \"umask 077 && mkdir -p /keys/job && cp -L /secret/*.pem /keys/job/\"]\n"
                "        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}\n"
                "        resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {memory: 64Mi}}\n"
                "        volumeMounts:\n"
                "        - {name: secret, mountPath: /secret, readOnly: true}\n"
                "        - {name: keys, mountPath: /keys}\n"
                "      containers:\n"
                "      - name: %s\n"
                "        image: ",
                component);
    quoted(out, k8s->image);
    aq_text_add(out, "\n        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}\n");
}

static void add_mounts(const struct names *names, bool cache, struct aq_text *out)
{
    aq_text_add(out, "        volumeMounts:\n        - {name: shared, mountPath: ");
    quoted(out, names->mount);
    aq_text_add(out, "}\n        - {name: keys, mountPath: /keys}\n");
    if (cache) aq_text_add(out, "        - {name: cache, mountPath: /cache}\n");
}

/* Needs of the largest stage: pods of a StatefulSet are alike. */
struct demand {
    uint64_t memory_bytes, cache_bytes; /* cache 0: none on disk, or the manifest sets the path */
    uint32_t threads;
    bool gpu;
};

static struct demand demand_of(const struct aq_plan *plan)
{
    const struct aq_job *job = plan->job;
    struct demand most = {.threads = job->pipeline.threads};
    for (uint32_t r = 0; r < plan->ranks; r++) {
        const struct aq_job_stage *place = &job->pipeline.stages[r];
        const struct aq_plan_stage *stage = &plan->stages[r % plan->stage_count];
        const bool disk = stage->cache.slots > 0 && strcmp(stage->cache.kind, "memory") != 0 && !job->cache.path;
        if (place->threads > most.threads) most.threads = place->threads;
        if (stage->memory_bytes > most.memory_bytes) most.memory_bytes = stage->memory_bytes;
        if (disk && stage->cache_bytes > most.cache_bytes) most.cache_bytes = stage->cache_bytes;
        most.gpu |= aq_device_gpu(place->device) != AQ_GPU_NO;
    }
    if (most.threads == 0) most.threads = 1;
    return most;
}

static unsigned long long rounded(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit;
}

static void add_stages(const struct aq_k8s *k8s, const struct names *names, struct aq_text *out)
{
    const struct demand most = demand_of(k8s->plan);
    const unsigned long long memory = rounded(most.memory_bytes + beside_bytes, mib);
    add_object(out, "apps/v1", "StatefulSet", names->label, "");
    aq_text_add(out,
                "  serviceName: aq-%s\n"
                "  replicas: %u\n"
                "  podManagementPolicy: Parallel\n"
                "  selector:\n"
                "    matchLabels: {app.kubernetes.io/instance: aq-%s, app.kubernetes.io/component: stage}\n",
                names->label, k8s->plan->ranks, names->label);
    add_pod(k8s, names, "stage", out);
    aq_text_add(out,
                "        env:\n"
                "        - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}\n"
                "        command: [aqpiped, --listen, \"*:%d\", --host, $(POD).aq-%s, --keys, /keys/job]\n"
                "        ports:\n"
                "        - {name: control, containerPort: %d}\n"
                "        - {name: link, containerPort: %d}\n"
                "        startupProbe: {tcpSocket: {port: control}, periodSeconds: 2, failureThreshold: 30}\n"
                "        readinessProbe: {tcpSocket: {port: control}, periodSeconds: 10}\n"
                "        livenessProbe: {tcpSocket: {port: control}, periodSeconds: 30, timeoutSeconds: 10}\n"
                "        resources: {requests: {cpu: %u, memory: %lluMi}, limits: {memory: %lluMi%s}}\n",
                CONTROL_PORT, names->label, CONTROL_PORT, LINK_PORT, most.threads, memory, memory,
                most.gpu ? ", nvidia.com/gpu: 1" : "");
    add_mounts(names, most.cache_bytes > 0, out);
    if (most.cache_bytes > 0)
        aq_text_add(out,
                    "  volumeClaimTemplates:\n"
                    "  - metadata: {name: cache}\n"
                    "    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: %lluGi}}}\n",
                    rounded(most.cache_bytes + most.cache_bytes / 8, gib));
}

static void place(const void *context, uint32_t rank, bool address, struct aq_text *out)
{
    const struct names *names = context;
    aq_text_add(out, "%saq-%s-%u.aq-%s:%d", address ? "" : "tcp://", names->label, rank, names->label,
                address ? LINK_PORT : CONTROL_PORT);
}

static void add_set(struct aq_text *out, const char *setting, size_t bytes)
{
    struct aq_text one = {0};
    aq_text_bytes(&one, setting, bytes);
    aq_text_add(out, "        - --set\n        - ");
    quoted_word(out, aq_text_of(&one));
    aq_text_add(out, "\n");
    if (one.status != AQ_OK && out->status == AQ_OK) out->status = one.status;
    aq_text_deinit(&one);
}

/* Exit 2 is final; a launcher that was stopped, or lost its node, restarts and resumes. */
static enum aq_status add_launcher(const struct aq_k8s *k8s, const struct names *names, struct aq_text *out)
{
    struct aq_text places = {0};
    add_object(out, "batch/v1", "Job", names->label, "-launch");
    aq_text_add(out,
                "  backoffLimit: %d\n"
                "  podFailurePolicy:\n"
                "    rules:\n"
                "    - {action: Ignore, onPodConditions: [{type: DisruptionTarget, status: \"True\"}]}\n"
                "    - {action: Ignore, onExitCodes: {containerName: launch, operator: In, values: [3]}}\n"
                "    - {action: FailJob, onExitCodes: {containerName: launch, operator: In, values: [2]}}\n",
                BEGINS_MAX);
    add_pod(k8s, names, "launch", out);
    aq_text_add(out,
                "        command:\n        - sh\n        - -c\n"
                "        - 'if [ -d \"$0\" ]; then set -- --resume \"$@\"; fi; exec aqpipe launch \"$@\"'\n        - ");
    quoted_word(out, k8s->plan->job->output.path);
    aq_text_add(out, "\n        - ");
    quoted_word(out, names->manifest);
    aq_text_add(out, "\n        - --no-progress\n        - --run\n        - ");
    quoted_word(out, k8s->plan->job->output.path);
    aq_text_add(out, "\n        - --restarts\n        - \"%u\"\n", k8s->restarts);
    for (uint32_t i = 0; i < k8s->sets->count; i++)
        add_set(out, k8s->sets->of[i], strlen(k8s->sets->of[i]));
    static const char keys[] = "security.keys=/keys/job", cache[] = "cache.path=/cache";
    add_set(out, keys, sizeof keys - 1);
    if (demand_of(k8s->plan).cache_bytes > 0) add_set(out, cache, sizeof cache - 1);
    enum aq_status status = aq_places_settings(k8s->plan->job, place, names, &places);
    for (const char *at = aq_text_of(&places); status == AQ_OK && *at; at += strcspn(at, "\n") + 1)
        add_set(out, at, strcspn(at, "\n"));
    aq_text_deinit(&places);
    aq_text_add(out, "        resources: {requests: {cpu: 1, memory: 1Gi}, limits: {memory: 4Gi}}\n");
    add_mounts(names, false, out);
    aq_text_add(out, "      restartPolicy: Never\n");
    return status;
}

enum aq_status aq_k8s_manifests(const struct aq_k8s *k8s, struct aq_text *out)
{
    static struct names names;
    AQ_TRY(check(k8s, &names));
    add_head(k8s, &names, out);
    add_service(&names, out);
    add_stages(k8s, &names, out);
    AQ_TRY(add_launcher(k8s, &names, out));
    return out->status;
}

int aq_k8s_write(const struct aq_k8s *k8s)
{
    static char path[AQ_RUN_PATH_BYTES];
    struct aq_text text = {0};
    enum aq_status status = aq_k8s_manifests(k8s, &text);
    if (status == AQ_OK && !k8s->print) {
        if (snprintf(path, sizeof path, "%s.k8s.yaml", k8s->plan->job->output.path) >= (int)sizeof path)
            status = aq_fail(AQ_INVAL, "launch", "the path of the run folder is too long");
        else
            status = aq_file_replace(NULL, path, 0600, aq_text_of(&text), text.used);
    }
    if (status == AQ_OK && k8s->print) aq_out_raw(aq_text_of(&text));
    if (status == AQ_OK && !k8s->print) aq_out("wrote %s; its first lines describe the next steps\n", path);
    aq_text_deinit(&text);
    return status == AQ_OK ? AQ_EXIT_DONE : status == AQ_INVAL ? AQ_EXIT_USAGE : AQ_EXIT_FAILED;
}
