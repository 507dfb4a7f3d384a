/* split_state.c -- what of the server is on disk (split_server.h has the map). */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "json_text.h"
#include "split_private.h"

static const char *const AREA = "split";

enum status_bytes { STATE_BYTES_MAX = 1 << 20 };

enum aq_status state_path(const struct server *server, char out[AQ_RUN_PATH_BYTES], const char *format, ...)
{
    char name[AQ_RUN_PATH_BYTES];
    va_list arguments;
    va_start(arguments, format);
    const int bytes = vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    if (bytes < 0 || bytes >= (int)sizeof name) return aq_fail(AQ_INVAL, AREA, "a path below output.path is too long");
    return aq_run_path(server->job->output.path, name, out);
}

const char *state_mode(const struct server *server)
{
    static const char *const names[] = {[AQ_SPLIT_RELAY] = "relay",
                                        [AQ_SPLIT_FED1] = "splitfed1",
                                        [AQ_SPLIT_FED2] = "splitfed2",
                                        [AQ_SPLIT_GLOBAL] = "global"};
    return names[server->job->split.mode];
}

uint32_t state_sites_max(const struct server *server)
{
    return aq_job_global(server->job) ? AQ_JOB_TURNS_MAX : AQ_JOB_CLIENTS_MAX;
}

static const struct site no_site = {
    .deadline_ns = AQ_NEVER, .out.fd = -1, .in.fd = -1, .epsilon = (double)NAN, .delta = (double)NAN};

struct site *state_site(struct server *server, const char *name)
{
    for (uint32_t i = 0; i < server->site_count; i++)
        if (strcmp(server->sites[i].name, name) == 0) return &server->sites[i];
    if (server->site_count == state_sites_max(server) || !aq_tls_host_good(name)) return NULL;
    struct site *site = &server->sites[server->site_count++];
    *site = no_site;
    memcpy(site->name, name, strlen(name) + 1);
    return site;
}

void state_forget(struct server *server, struct site *site)
{
    aq_control_close(site->control);
    aq_split_job_close(&site->job);
    aq_split_out_close(&site->out);
    aq_split_in_close(&site->in);
    const uint32_t at = (uint32_t)(site - server->sites);
    AQ_ASSERT(server->weights == SPLIT_WEIGHTS_NONE && !server->ahead.site && at < server->site_count);
    server->site_count--;
    for (uint32_t i = at; i < server->site_count; i++) {
        server->sites[i] = server->sites[i + 1];
        server->sites[i].session.name = server->sites[i].name; /* it moved with the site */
    }
    server->sites[server->site_count] = no_site;
}

struct site *state_after(const struct server *server, const struct site *before)
{
    const struct site *next = NULL;
    for (uint32_t i = 0; i < server->site_count; i++) {
        const struct site *site = &server->sites[i];
        if (before && strcmp(site->name, before->name) <= 0) continue;
        if (!next || strcmp(site->name, next->name) < 0) next = site;
    }
    return (struct site *)(uintptr_t)next; /* the caller's server may be changed by it */
}

uint64_t state_mark(const struct server *server, const struct site *site)
{
    char path[AQ_RUN_PATH_BYTES];
    static struct aq_run_mark mark;
    if (state_path(server, path, "clients/%s/checkpoint", site->name) != AQ_OK) return 0;
    const enum aq_status status = aq_run_mark_read(path, &mark);
    if (status != AQ_OK) aq_error_clear();
    return status == AQ_OK ? mark.step : 0;
}

json_t *state_line(const struct site *site)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:b, s:I, s:I, s:s, s:o, s:o}", "name",
                     site->name, "round", (json_int_t)site->round, "turns", (json_int_t)site->turns, "missed",
                     (json_int_t)site->missed, "rested", (json_int_t)site->rested, "late", (json_int_t)site->lates,
                     "samples", (json_int_t)site->samples, "begin", (json_int_t)site->begin, "until",
                     (json_int_t)site->until, "kept", site->kept, "first", (json_int_t)site->first, "absent",
                     site->absent, "began_samples", (json_int_t)site->began_all, "began_first",
                     (json_int_t)site->began_first, "why", site->missed_why, "epsilon",
                     aq_control_number(site->epsilon), "delta", aq_control_number(site->delta));
}

enum aq_status state_save(struct server *server)
{
    char path[AQ_RUN_PATH_BYTES];
    const uint64_t elapsed_ns = round_elapsed_ns(server);
    json_t *sites = json_array();
    for (uint32_t i = 0; i < server->site_count; i++)
        json_array_append_new(sites, state_line(&server->sites[i]));
    json_t *all = json_pack(
        "{s:s, s:i, s:s, s:I, s:I, s:f, s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:b, s:o, s:o}", "job", server->job->name,
        "format", 1, "mode", state_mode(server), "round", (json_int_t)server->round, "drawn", (json_int_t)server->drawn,
        "round_seconds", (double)elapsed_ns * 1e-9, "weights", server->weights, "last", server->last, "all_samples",
        (json_int_t)server->all_samples, "vocabulary", (json_int_t)server->vocabulary, "labels",
        (json_int_t)server->labels, "round_steps", (json_int_t)(server->all_samples ? round_steps(server) : 0),
        "steps_before", (json_int_t)server->steps_before, "ended", server->ended, "planned", report_planned(server),
        "clients", sites);
    enum aq_status status = state_path(server, path, "split.json");
    if (status != AQ_OK) {
        json_decref(all);
        return status;
    }
    AQ_TRY(aq_json_replace(path, all, JSON_INDENT(1)));
    server->round_kept_ns = elapsed_ns;
    return AQ_OK;
}

static enum aq_status read_site(struct server *server, const json_t *line)
{
    const char *name;
    uint32_t round, turns, missed, lates;
    uint64_t begin, until, samples;
    AQ_TRY(aq_control_get_text(line, "name", &name));
    AQ_TRY(aq_control_get_u32(line, "round", &round));
    AQ_TRY(aq_control_get_u32(line, "turns", &turns));
    AQ_TRY(aq_control_get_u32(line, "missed", &missed));
    AQ_TRY(aq_control_get_u32(line, "late", &lates));
    AQ_TRY(aq_control_get_u64(line, "samples", &samples));
    AQ_TRY(aq_control_get_u64(line, "begin", &begin));
    AQ_TRY(aq_control_get_u64(line, "until", &until));
    struct site *site = state_site(server, name);
    if (!site) return aq_fail(AQ_PROTO, AREA, "'%.63s' is not a client", name);
    site->round = round;
    site->turns = turns;
    site->missed = missed;
    site->rested = (uint32_t)aq_control_u64_or(line, "rested", 0);
    site->lates = lates;
    site->samples = samples;
    site->begin = begin;
    site->until = until;
    site->first = aq_control_u64_or(line, "first", 0);
    site->absent = aq_control_bool_or(line, "absent", false);
    site->began_all = aq_control_u64_or(line, "began_samples", 0);
    site->began_first = aq_control_u64_or(line, "began_first", 0);
    site->kept = aq_control_bool_or(line, "kept", false);
    site->epsilon = aq_control_number_or(line, "epsilon", NAN);
    site->delta = aq_control_number_or(line, "delta", NAN);
    aq_printable_text(aq_control_text_or(line, "why", ""), site->missed_why, sizeof site->missed_why);
    if (site->kept && turns == 0) return aq_fail(AQ_PROTO, AREA, "'%.63s' has trained without a turn", name);
    site->mark = site->tried_mark = state_mark(server, site);
    return AQ_OK;
}

static bool is_settled(const struct server *server)
{
    return server->job->split.mode == AQ_SPLIT_GLOBAL && server->round > 0;
}

/* With global sampling the parts of all clients are contiguous in order of names; else no client has a part. */
static bool parts_whole(const struct server *server)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < server->site_count; i++) {
        const struct site *site = &server->sites[i];
        uint64_t before = 0;
        for (uint32_t j = 0; j < server->site_count; j++)
            if (strcmp(server->sites[j].name, site->name) < 0 && !server->sites[j].absent)
                before += server->sites[j].samples;
        const bool has = is_settled(server) && !site->absent;
        if (site->samples > UINT32_MAX || site->first != (has ? before : 0) || (site->absent && !is_settled(server)))
            return false;
        all += site->absent ? 0 : site->samples;
    }
    return is_settled(server) ? server->all_samples == all && all > 0 && all <= UINT32_MAX : server->all_samples == 0;
}

/* And turns are of steps that all have. */
static bool turns_whole(const struct server *server)
{
    for (uint32_t i = 0; i < server->site_count && is_settled(server); i++) {
        const struct site *site = &server->sites[i];
        if (site->until && (site->absent || site->until != site->begin + round_steps(server))) return false;
    }
    return true;
}

/* A version without modes wrote a relay's state, without draws. */
static enum aq_status read_all(struct server *server, const json_t *all)
{
    const json_t *sites = json_object_get(all, "clients");
    const char *last = aq_control_text_or(all, "last", "");
    uint32_t format;
    AQ_TRY(aq_control_get_u32(all, "format", &format));
    AQ_TRY(aq_control_get_u32(all, "round", &server->round));
    const json_t *weights = json_object_get(all, "weights");
    if (format != 1 || !json_is_integer(weights) || json_integer_value(weights) < -1 ||
        json_integer_value(weights) > 1 || (last[0] && !aq_tls_host_good(last)))
        return aq_fail(AQ_PROTO, AREA, "of another format");
    const double seconds = aq_control_number_or(all, "round_seconds", 0);
    if (!(seconds >= 0 && seconds < 1e9)) return aq_fail(AQ_PROTO, AREA, "of a round without its time");
    server->round_before_ns = server->round_kept_ns = (uint64_t)(seconds * 1e9);
    server->weights = (int)json_integer_value(weights);
    server->drawn = (uint32_t)aq_control_u64_or(all, "drawn", server->round);
    server->all_samples = aq_control_u64_or(all, "all_samples", 0);
    server->vocabulary = (uint32_t)aq_control_u64_or(all, "vocabulary", 0); /* absent in older versions: 0 */
    server->labels = (uint32_t)aq_control_u64_or(all, "labels", 0);
    server->ended = aq_control_bool_or(all, "ended", true); /* absent in older versions */
    snprintf(server->last, sizeof server->last, "%s", last);
    for (size_t i = 0; i < json_array_size(sites); i++)
        AQ_TRY(read_site(server, json_array_get(sites, i)));
    /* In a file of before clients could be out all rounds were alike. */
    const uint64_t before = server->all_samples ? (server->round - 1) * round_steps(server) : 0;
    server->steps_before = aq_control_u64_or(all, "steps_before", before);
    for (uint32_t i = 0; i < server->site_count && server->all_samples > 0; i++) {
        struct site *site = &server->sites[i];
        if (site->began_all > 0 || site->absent) continue;
        site->began_all = server->all_samples;
        site->began_first = site->first;
    }
    return AQ_OK;
}

/* A round that began in one mode does not end in another. */
static enum aq_status same_mode(const struct server *server, const json_t *all, const char *path)
{
    const char *was = aq_control_text_or(all, "mode", "relay");
    if (strcmp(was, state_mode(server)) == 0) return AQ_OK;
    return aq_fail(AQ_REFUSED, AREA,
                   "%s is of split.mode: %.20s, and the job has %s: set it back, or choose "
                   "another output.path",
                   path, was, state_mode(server));
}

/* With global sampling all count the steps of all rounds: a round has as many as before. */
static enum aq_status same_steps(const struct server *server, const json_t *all, const char *path)
{
    const uint64_t was = aq_control_u64_or(all, "round_steps", 0);
    const uint64_t is = server->all_samples ? round_steps(server) : was;
    if (was == 0 || was == is) return AQ_OK;
    return aq_fail(AQ_REFUSED, AREA,
                   "%s is of rounds of %" PRIu64 " steps, and the job's have %" PRIu64
                   " (split.mode: global): set split.epochs and train.batch back",
                   path, was, is);
}

enum aq_status state_load(struct server *server)
{
    static const char *const folders[] = {"weights/0", "weights/1", "round", "turns", "clients", "labels", "logs"};
    char path[AQ_RUN_PATH_BYTES], *text;
    size_t count;
    server->weights = SPLIT_WEIGHTS_NONE;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        AQ_TRY(state_path(server, path, "%s", folders[i]));
        AQ_TRY(aq_run_make_folder(path));
    }
    AQ_TRY(state_path(server, path, "split.json"));
    const enum aq_status status = aq_file_load(NULL, path, STATE_BYTES_MAX, &text, &count);
    if (status == AQ_NOTFOUND) return AQ_OK;
    AQ_TRY(status);
    json_t *all = json_loadb(text, count, 0, NULL);
    aq_free(text);
    struct aq_error_hold hold; /* the line below says it */
    aq_error_hold(&hold);
    bool read = all && read_all(server, all) == AQ_OK;
    aq_error_release(&hold);
    enum aq_status same = read ? same_mode(server, all, path) : AQ_OK; /* before what that mode has is looked for */
    read = read && same == AQ_OK && parts_whole(server);
    if (read) same = same_steps(server, all, path);
    json_decref(all);
    AQ_TRY(same);
    read = read && turns_whole(server);
    return read ? AQ_OK : aq_fail(AQ_CORRUPT, AREA, "%s is damaged: put it back, or choose another output.path", path);
}

/* Copies the middle stage of the turn next to its ends. */
static enum aq_status keep_middle(const struct server *server, const struct site *site)
{
    char from[AQ_RUN_PATH_BYTES], folder[AQ_RUN_PATH_BYTES], to[AQ_RUN_PATH_BYTES];
    AQ_TRY(state_path(server, from, "clients/%s/checkpoint/%" PRIu64 "/stage-1.safetensors", site->name, site->until));
    AQ_TRY(round_ends(server, site, folder));
    AQ_TRY(aq_run_path(folder, "stage-1.safetensors", to));
    return aq_split_copy(from, to);
}

enum aq_status state_commit(struct server *server, struct site *site)
{
    AQ_TRY(keep_middle(server, site));
    if (server->job->split.mode == AQ_SPLIT_RELAY) {
        server->weights = server->weights == 0 ? 1 : 0;
    } else {
        site->kept = true;
        memcpy(server->last, site->name, sizeof server->last);
    }
    site->round = server->round;
    site->turns++;
    site->begin = site->until = 0;
    return state_save(server); /* who calls ends the server where this fails: nothing of it is read again */
}
