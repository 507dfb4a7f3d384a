/*
 * job.c -- values derived from a job, and the canonical manifest with all values. See job.h.
 */
#include "job.h"

#include <stdio.h>
#include <string.h>

#include "aqsgd/device.h"
#include "keys.h"
#include "security.h"

uint32_t aq_job_ranks(const struct aq_job *job)
{
    return job->pipeline.stage_count * job->pipeline.replicas;
}

bool aq_job_same_host(const struct aq_job *job, uint32_t a, uint32_t b)
{
    const char *left = job->pipeline.stages[a].host, *right = job->pipeline.stages[b].host;
    return left == right || (left && right && strcmp(left, right) == 0);
}

bool aq_job_apart(const struct aq_job *job, uint32_t a, uint32_t b)
{
    const char *left = job->pipeline.stages[a].host, *right = job->pipeline.stages[b].host;
    return !aq_job_same_host(job, a, b) &&
           ((left && !aq_security_inside(left)) || (right && !aq_security_inside(right)));
}

enum aq_transport_kind aq_job_edge_transport(const struct aq_job *job, uint32_t rank)
{
    const struct aq_job_stage *a = &job->pipeline.stages[rank], *b = a + 1;
    const bool cpu = aq_device_gpu(a->device) == AQ_GPU_NO || aq_device_gpu(b->device) == AQ_GPU_NO;
    if (job->link.transport != AQ_TRANSPORT_AUTO) return job->link.transport;
    return cpu || job->link.rate_mbps > 0 ? AQ_TRANSPORT_LINKS : AQ_TRANSPORT_AUTO;
}

/* The first replica that shares a replica's host. */
static uint32_t leader(const struct aq_job *job, uint32_t replica)
{
    const uint32_t P = job->pipeline.stage_count;
    uint32_t first = 0;
    while (!aq_job_same_host(job, first * P, replica * P))
        first++;
    return first;
}

uint32_t aq_job_machine(const struct aq_job *job, uint32_t replica)
{
    uint32_t number = 0;
    for (uint32_t v = 0; v < leader(job, replica); v++)
        number += leader(job, v) == v;
    return number;
}

uint32_t aq_job_reducers(const struct aq_job *job)
{
    uint32_t machines = 0;
    if (!job->reduce.machine_first) return job->pipeline.replicas;
    for (uint32_t v = 0; v < job->pipeline.replicas; v++)
        machines += leader(job, v) == v;
    return machines;
}

uint32_t aq_job_threads(const struct aq_job *job, uint32_t rank, uint32_t cores)
{
    AQ_ASSERT(rank < aq_job_ranks(job));
    const struct aq_job_stage *mine = &job->pipeline.stages[rank];
    if (mine->threads) return mine->threads;
    if (job->pipeline.threads) return job->pipeline.threads;
    uint32_t sharing = 0; /* workers of the same host */
    for (uint32_t r = 0; r < aq_job_ranks(job); r++) {
        const char *host = job->pipeline.stages[r].host;
        sharing += host == mine->host || (host && mine->host && strcmp(host, mine->host) == 0);
    }
    const uint32_t each = cores > sharing ? cores / sharing : 1;
    return each < AQ_DEVICE_THREADS_MAX ? each : AQ_DEVICE_THREADS_MAX;
}

double aq_job_speed(const struct aq_job *job, uint32_t s)
{
    double least = (double)job->pipeline.stages[s].speed;
    for (uint32_t r = s; r < aq_job_ranks(job); r += job->pipeline.stage_count)
        if ((double)job->pipeline.stages[r].speed < least) least = (double)job->pipeline.stages[r].speed;
    return least;
}

uint64_t aq_job_memory(const struct aq_job *job, uint32_t s)
{
    uint64_t least = 0;
    for (uint32_t r = s; r < aq_job_ranks(job); r += job->pipeline.stage_count) {
        const uint64_t limit = job->pipeline.stages[r].memory;
        if (limit && (least == 0 || limit < least)) least = limit;
    }
    return least;
}

bool aq_job_linked(const struct aq_job *job, uint32_t a, uint32_t b)
{
    const uint32_t P = job->pipeline.stage_count;
    if (a / P == b / P) return a + 1 == b || b + 1 == a;
    return a % P == b % P;
}

uint32_t aq_job_listener(const struct aq_job *job, uint32_t a, uint32_t b)
{
    const struct aq_job_stage *stages = job->pipeline.stages;
    const uint32_t lower = a < b ? a : b, higher = a < b ? b : a;
    return stages && stages[higher].dials ? lower : higher;
}

bool aq_job_relayed(const struct aq_job *job, uint32_t a, uint32_t b)
{
    const struct aq_job_stage *stages = job->pipeline.stages;
    return stages && stages[a].dials && stages[b].dials && aq_job_linked(job, a, b);
}

bool aq_job_listens(const struct aq_job *job, uint32_t rank)
{
    for (uint32_t other = 0; other < aq_job_ranks(job); other++)
        if (aq_job_linked(job, rank, other) && aq_job_listener(job, rank, other) == rank) return true;
    return false;
}

uint32_t aq_job_links(const struct aq_job *job)
{
    uint32_t count = 0;
    for (uint32_t a = 0; a < aq_job_ranks(job); a++)
        for (uint32_t b = a + 1; b < aq_job_ranks(job); b++)
            count += aq_job_linked(job, a, b);
    return count;
}

bool aq_job_at_client(const struct aq_job *job, uint32_t rank)
{
    const bool last = rank + 1 == job->pipeline.stage_count && job->split.labels == AQ_SPLIT_LABELS_CLIENT;
    return job->split.client && (rank == 0 || last);
}

bool aq_job_global(const struct aq_job *job)
{
    return job->split.clients > 0 && job->split.mode == AQ_SPLIT_GLOBAL;
}

uint32_t aq_job_turns(const struct aq_job *job)
{
    return aq_job_global(job) ? job->split.clients : job->split.parallel;
}

bool aq_job_counts_updates(const struct aq_job *job)
{
    return job->split.clients > 0 && job->split.mode != AQ_SPLIT_GLOBAL;
}

bool aq_job_sealed(const struct aq_job *job)
{
    return job->split.client && job->split.seal;
}

void aq_job_measured(struct aq_job *job, const float *rtt_ms, float group_rtt_ms, const float *loss, double rate_mbps)
{
    struct aq_job_edge *edges = (struct aq_job_edge *)(uintptr_t)job->edges; /* the job's own memory */
    for (uint32_t e = 0; e + 1 < job->pipeline.stage_count; e++) {
        edges[e].rtt_ms = rtt_ms[e];
        edges[e].loss = loss[e];
    }
    job->link.rtt_ms = group_rtt_ms;
    job->link.rate_mbps = rate_mbps;
}

uint32_t aq_job_micro_batches(const struct aq_job *job, uint32_t samples)
{
    return (samples + job->train.micro_batch - 1) / job->train.micro_batch;
}

static void write_paths(const char *const *paths, uint32_t count, struct aq_text *text)
{
    aq_text_add(text, "[");
    for (uint32_t i = 0; i < count; i++) {
        if (i) aq_text_add(text, ", ");
        aq_key_quote(paths[i], text);
    }
    aq_text_add(text, "]");
}

/* "{codec: aqsgd, bits: 4, ...}" */
static void write_codec(const struct aq_codec_config *config, struct aq_text *text)
{
    const struct aq_key_table keys = aq_keys_codec();
    bool first = true;
    aq_text_add(text, "{");
    for (uint32_t i = 0; i < keys.count; i++) {
        struct aq_text value = {0};
        if (aq_key_write(&keys.keys[i], config, &value)) {
            aq_text_add(text, "%s%s: %s", first ? "" : ", ", keys.keys[i].name, aq_text_of(&value));
            first = false;
        }
        if (text->status == AQ_OK) text->status = value.status;
        aq_text_deinit(&value);
    }
    aq_text_add(text, "}");
}

/* A key of a stage's entry: one value where all replicas have the same, else a list of one each. */
static void write_stage_key(const struct aq_job *job, uint32_t s, const struct aq_key *key, struct aq_text *text)
{
    const uint32_t P = job->pipeline.stage_count, W = job->pipeline.replicas;
    struct aq_text list = {0}, first = {0};
    bool same = true, any = false;
    for (uint32_t w = 0; w < W; w++) {
        struct aq_text value = {0};
        const bool has = aq_key_write(key, &job->pipeline.stages[w * P + s], &value);
        const char *one = has ? aq_text_of(&value) : "\"\""; /* no text: an empty one is read as none */
        any = any || has;
        same = same && (w == 0 || strcmp(one, aq_text_of(&first)) == 0);
        if (w == 0) aq_text_add(&first, "%s", one);
        aq_text_add(&list, "%s%s", w ? ", " : "", one);
        if (text->status == AQ_OK) text->status = value.status;
        aq_text_deinit(&value);
    }
    if (any && same) aq_text_add(text, "      %s: %s\n", key->name, aq_text_of(&first));
    if (any && !same) aq_text_add(text, "      %s: [%s]\n", key->name, aq_text_of(&list));
    if (text->status == AQ_OK) text->status = list.status != AQ_OK ? list.status : first.status;
    aq_text_deinit(&list);
    aq_text_deinit(&first);
}

static void write_stages(const struct aq_job *job, struct aq_text *text)
{
    const struct aq_key_table keys = aq_keys_stage();
    if (job->pipeline.automatic && !job->pipeline.listed) {
        aq_text_add(text, "  stages: %u\n", job->pipeline.stage_count);
        return;
    }
    aq_text_add(text, "  stages:\n");
    for (uint32_t s = 0; s < job->pipeline.stage_count; s++) {
        const struct aq_job_stage *stage = &job->pipeline.stages[s];
        if (job->pipeline.automatic)
            aq_text_add(text, "    -\n");
        else
            aq_text_add(text, "    - layers: %u-%u\n", stage->layer_first, stage->layer_end - 1);
        for (uint32_t i = 0; i < keys.count; i++)
            if (aq_key_is_scalar(&keys.keys[i])) write_stage_key(job, s, &keys.keys[i], text);
    }
}

static void write_edges(const struct aq_job *job, struct aq_text *text)
{
    const uint32_t edges = job->pipeline.stage_count - 1;
    const struct aq_key_table keys = aq_keys_edge();
    if (edges == 0) {
        aq_text_add(text, "  list: []\n");
        return;
    }
    aq_text_add(text, "  list:\n");
    for (uint32_t e = 0; e < edges; e++) {
        aq_text_add(text, "    - edge: %u\n      forward: ", e);
        write_codec(&job->edges[e].forward, text);
        aq_text_add(text, "\n      backward: ");
        write_codec(&job->edges[e].backward, text);
        aq_text_add(text, "\n");
        for (uint32_t i = 0; i < keys.count; i++) {
            aq_text_add(text, "      %s: ", keys.keys[i].name);
            (void)aq_key_write(&keys.keys[i], &job->edges[e], text);
            aq_text_add(text, "\n");
        }
    }
}

/* Sections and groups around it. */
static int depth_of(const char *name)
{
    int depth = 0;
    for (; *name; name++)
        depth += *name == '.';
    return depth;
}

static void write_key(const struct aq_job *job, const struct aq_key *key, struct aq_text *text)
{
    const char *name = strrchr(key->name, '.') + 1;
    struct aq_text value = {0};
    switch (key->kind) {
    case AQ_KEY_PATHS: {
        const char *base = (const char *)job + key->offset;
        aq_text_add(text, "  %s: ", name);
        write_paths(*(const char *const *const *)base, *(const uint32_t *)(base + sizeof(char *)), text);
        aq_text_add(text, "\n");
        break;
    }
    case AQ_KEY_STAGES:
        write_stages(job, text);
        break;
    case AQ_KEY_EDGES:
        write_edges(job, text);
        break;
    default:
        if (aq_key_is_scalar(key) && aq_key_write(key, job, &value))
            aq_text_add(text, "%*s%s: %s\n", 2 * depth_of(key->name), "", name, aq_text_of(&value));
        if (text->status == AQ_OK) text->status = value.status;
        aq_text_deinit(&value);
    }
}

/* The heads of the sections and groups that it is in and the key before it is not. */
static void write_heads(const char *name, const char *before, struct aq_text *text)
{
    int depth = 0;
    const char *word = name;
    for (const char *dot = strchr(name, '.'); dot; dot = strchr(word, '.'), depth++) {
        if (!before || strncmp(before, name, (size_t)(dot + 1 - name)) != 0)
            aq_text_add(text, "%*s%.*s:\n", 2 * depth, "", (int)(dot - word), word);
        word = dot + 1;
    }
}

enum aq_status aq_job_canonical(const struct aq_job *job, char **out)
{
    struct aq_text text = {0};
    const struct aq_key_table keys = aq_keys_job();
    const char *before = NULL;
    for (uint32_t i = 0; i < keys.count; i++) {
        const struct aq_key *key = &keys.keys[i];
        if (!aq_key_applies(key, job->model.config.kind)) continue;
        write_heads(key->name, before, &text);
        before = key->name;
        write_key(job, key, &text);
    }
    return aq_text_take(&text, out);
}

uint64_t aq_job_every_steps(const struct aq_job_every *every, uint64_t steps_per_epoch)
{
    return every->epochs ? every->count * steps_per_epoch : every->count;
}

enum aq_status aq_trackers_read(const char *text, uint32_t *wanted, char *wrong, size_t bytes)
{
    static const char *const names[] = {
        [AQ_TRACKER_TENSORBOARD] = "tensorboard", [AQ_TRACKER_WANDB] = "wandb", [AQ_TRACKER_MLFLOW] = "mlflow"};
    static const char between[] = ", \t";
    *wanted = 0;
    if (!text || strcmp(text, "none") == 0) return AQ_OK;
    for (text += strspn(text, between); *text; text += strspn(text, between)) {
        const size_t length = strcspn(text, between);
        uint32_t i = 0;
        while (i < AQ_TRACKERS && (strlen(names[i]) != length || strncmp(names[i], text, length) != 0))
            i++;
        if (i == AQ_TRACKERS) {
            snprintf(wrong, bytes, "%.*s", (int)(length < bytes ? length : bytes - 1), text);
            return AQ_INVAL;
        }
        *wanted |= 1U << i;
        text += length;
    }
    return AQ_OK;
}

const char *aq_job_link_scheme(const struct aq_job *job, bool tls)
{
    static const char *const SCHEMES[2][2] = {{"tcp://", "tls+tcp://"}, {"quic://", "tls+quic://"}};
    return SCHEMES[job->link.protocol == AQ_PROTOCOL_QUIC][tls];
}
