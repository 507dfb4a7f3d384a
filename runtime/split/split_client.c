/* split_client.c -- see the header: connect, join, turns, and the lines between the server and the daemon here. */
#include "split_client.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "confine.h"
#include "control.h"
#include "control_socket.h"
#include "message.h"
#include "net/endpoint.h"
#include "net/tls.h"
#include "run_folder.h"
#include "runtime_text.h"
#include "split_daemon.h"
#include "split_folder.h"
#include "split_gate.h"
#include "split_job.h"
#include "split_key.h"
#include "split_labels.h"
#include "split_part.h"
#include "split_piece.h"
#include "split_samples.h"
#include "split_seen.h"
#include "split_session.h"
#include "split_visits.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;
static const char *const AREA = "split";
enum { CONNECT_S = 15, TICK_MS = 100, PAUSE_MS_MAX = 5000, LINES = 256, INSTANCE_BYTES = 17 };

struct client {
    const struct aq_split_client_config *config;
    struct aq_split_job job;
    char *manifest, *lengths; /* lengths: of its samples, as text; NULL: all alike */
    uint64_t join_hash;       /* of the plan of only this client, with which it joins */
    struct aq_tls *tls;
    int lock;
    struct aq_control *server; /* NULL: not connected */
    struct aq_split_daemon daemon;
    char run[AQ_RUN_PATH_BYTES], checkpoint[AQ_RUN_PATH_BYTES], cache[AQ_RUN_PATH_BYTES], begin[AQ_RUN_PATH_BYTES];
    struct aq_split_gate gate;
    struct aq_split_visits *visits;     /* NULL: the job has no epsilon                          */
    struct aq_split_epsilon epsilon;    /* as it was told last                                   */
    char seal[AQ_SPLIT_KEY_TEXT_BYTES]; /* the key of the server's cache, with split.seal */
    uint64_t until;                     /* of the turn under way; 0: none                */
    uint64_t told;                      /* its number, which goes back to the server; 0: it has none */
    uint32_t awaited;                   /* files that are on their way here              */
    struct aq_split_in in;
    uint64_t in_at, in_of; /* of the file on its way here: bytes that have come, and all */
    struct aq_split_out out;
    uint32_t outs;
    bool sends;
    uint64_t instance;         /* a random number of output.path: two machines with one bundle have two */
    uint32_t labels_due;       /* files of labels that the server still needs */
    uint64_t joined_ns;        /* when it was last connected to the server, or started to look for it */
    char full[AQ_ERROR_BYTES]; /* what a stage here said whose disk is full; "": none has */
    bool bad_disk;             /* a file of this client could not be written */
    bool stopping, over;
    struct aq_split_seen *seen; /* client.json */
    bool spent;                 /* it ends because of split.privacy.epsilon_max */
    enum aq_split_end end;
};

#define say(client, ...) aq_progress_say((client)->config->progress, __VA_ARGS__)

/* For --json. Takes the reference. */
static void event(const struct client *client, json_t *line)
{
    if (line) aq_progress_json(client->config->progress, line);
    json_decref(line);
}

static void pause_ms(uint32_t ms)
{
    const struct timespec moment = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&moment, NULL);
}

/* ---- the server's lines ---- */

static void no_turn(struct client *client)
{
    aq_split_daemon_end(&client->daemon);
    aq_split_in_close(&client->in);
    aq_split_out_close(&client->out);
    client->awaited = client->outs = 0;
    client->in_at = 0;
    client->sends = false;
    client->until = 0;
}

/* ---- epsilon ---- */

/* Failures that another try may cure: the server is away, or restarts. */
static bool passes(enum aq_status status)
{
    return status == AQ_CLOSED || status == AQ_TIMEOUT || status == AQ_IO;
}

/* Of this machine's disk: not the server's fault, and connecting again cures nothing. */
static enum aq_status own_disk(struct client *client, enum aq_status status)
{
    client->bad_disk |= status != AQ_OK && status != AQ_CORRUPT && status != AQ_NOMEM;
    return passes(status) ? AQ_ABORTED : status;
}

/* What its user hears: at the beginning, and at the end of each turn. */
static enum aq_status tell_epsilon(struct client *client)
{
    const float most = client->job.job->split.privacy.epsilon_max;
    struct aq_split_epsilon *now = &client->epsilon;
    char limit[48] = "";
    if (!client->visits) return AQ_OK;
    AQ_TRY(own_disk(client, aq_split_visits_now(client->visits, now)));
    if (most > 0) snprintf(limit, sizeof limit, " of at most %g", (double)most);
    say(client, "epsilon %.4g%s, delta %g: %u visits of the %s sample that has most", now->epsilon, limit, now->delta,
        now->visits, now->heldout ? "held-out" : "training");
    event(client, json_pack("{s:s, s:f, s:f, s:o, s:I}", "event", "epsilon", "epsilon", now->epsilon, "delta",
                            now->delta, "epsilon_max", most > 0 ? json_real((double)most) : json_null(), "visits",
                            (json_int_t)now->visits));
    return AQ_OK;
}

/* For the server's report and page. */
static void add_epsilon(const struct client *client, json_t *line)
{
    if (!client->visits || !line) return;
    json_object_set_new(line, "epsilon", aq_control_number(client->epsilon.epsilon));
    json_object_set_new(line, "delta", aq_control_number(client->epsilon.delta));
}

/* The server hears why, before the connection ends. */
static void say_leave(struct client *client, const char *why)
{
    json_t *line = json_pack("{s:s, s:s}", "op", "leave", "text", why);
    add_epsilon(client, line);
    (void)aq_control_send(client->server, line);
    (void)aq_control_flush(client->server, aq_clock_after(second_ns));
}

/* Ends this client's part if the turn would pass split.privacy.epsilon_max: nothing of it is sent. */
static enum aq_status turn_fits(struct client *client, uint64_t round, uint64_t mark)
{
    const struct aq_job_privacy *privacy = &client->job.job->split.privacy;
    char why[AQ_SPLIT_TEXT_BYTES];
    double after;
    bool fits;
    if (!client->visits) return AQ_OK;
    AQ_TRY(own_disk(client, aq_split_visits_now(client->visits, &client->epsilon)));
    AQ_TRY(own_disk(client, aq_split_visits_fit(client->visits, mark, client->until, &fits, &after)));
    if (fits) return AQ_OK;
    snprintf(why, sizeof why,
             "split.privacy.epsilon_max %g: round %" PRIu64 " would raise epsilon from %.4g to %.4g (delta %g), so %s "
             "stops here and sends nothing more of its data",
             (double)privacy->epsilon_max, round, client->epsilon.epsilon, after, (double)privacy->delta,
             client->config->id);
    say(client, "%s", why);
    say_leave(client, why);
    event(client, json_pack("{s:s, s:s, s:s, s:f}", "event", "end", "state", "epsilon", "cause", why, "epsilon",
                            client->epsilon.epsilon));
    client->over = client->spent = true;
    aq_split_seen_end(client->seen, "epsilon", why);
    return AQ_OK;
}

static enum aq_status ready(struct client *client)
{
    const char *const writes[] = {client->run, client->visits ? aq_split_visits_folder(client->visits) : NULL, NULL};
    client->full[0] = 0; /* of a turn before this one */
    AQ_TRY(aq_split_daemon_begin(&client->daemon, client->config->daemon, client->job.job, writes, client->begin));
    json_t *line = json_pack("{s:s}", "op", "ready");
    add_epsilon(client, line);
    if (client->told) json_object_set_new(line, "told", json_integer((json_int_t)client->told));
    return aq_control_send(client->server, line);
}

static enum aq_status on_turn(struct client *client, const struct aq_message *message)
{
    const struct aq_message_turn *turn = &message->turn;
    const uint64_t round = turn->round, of = turn->of, begin = turn->begin, mark = turn->mark;
    no_turn(client);
    client->until = turn->until;
    client->told = turn->told;
    /* With global sampling rounds may have had other numbers of steps, so own ones have no end. */
    const struct aq_job *job = client->job.job;
    const uint64_t most =
        aq_job_global(job) ? begin + job->split.epochs * client->job.plan->steps_per_epoch : client->job.plan->steps;
    if (client->until == 0 || client->until > most || mark > client->until || begin > mark)
        return aq_fail(AQ_PROTO, AREA, "the server offers a turn of steps that the job does not have");
    const bool adopt = turn->adopt;
    client->gate.begin = adopt ? client->begin : NULL;
    aq_split_seen_turn(client->seen, round, of, mark, client->until);
    if (mark == client->until) return AQ_OK; /* all is trained: it will ask for the ends */
    AQ_TRY(turn_fits(client, round, mark));
    if (client->spent) return AQ_OK;
    say(client, "round %" PRIu64 " of %" PRIu64 ": trains steps %" PRIu64 " to %" PRIu64, round, of, mark + 1,
        client->until);
    event(client, json_pack("{s:s, s:I, s:I, s:I, s:I}", "event", "turn", "round", (json_int_t)round, "rounds",
                            (json_int_t)of, "begin", (json_int_t)mark, "until", (json_int_t)client->until));
    client->awaited = adopt ? client->gate.ends : 0;
    return adopt ? AQ_OK : ready(client);
}

static enum aq_status on_ends(struct client *client, const struct aq_message *message)
{
    char path[AQ_RUN_PATH_BYTES], name[48];
    const uint64_t offset = message->weights.offset, of = message->weights.of;
    uint64_t bytes;
    if (client->awaited == 0) return aq_fail(AQ_PROTO, AREA, "the server sends weights that are not expected");
    const uint64_t most = aq_split_part_bytes_max(client->job.plan, aq_split_rank(client->gate.ends - client->awaited));
    if (of == 0 || of > most || offset != client->in_at || (offset > 0 && of != client->in_of) || offset >= of)
        return aq_fail(AQ_PROTO, AREA,
                       "the server sends byte %" PRIu64 " of %" PRIu64 " of weights where byte %" PRIu64 " is due: by "
                       "the plan they are at most %" PRIu64,
                       offset, of, client->in_at, most);
    snprintf(name, sizeof name, "stage-%u.safetensors", aq_split_rank(client->gate.ends - client->awaited));
    AQ_TRY(aq_run_path(client->begin, name, path));
    if (!client->in.buffer) AQ_TRY(aq_split_in_open(&client->in));
    AQ_TRY(aq_split_in_piece(&client->in, path, offset, message->weights.data, &bytes));
    if (bytes > of - offset)
        return aq_fail(AQ_PROTO, AREA, "the server sends more of a file of weights than its %" PRIu64 " bytes", of);
    client->in_at = offset + bytes;
    client->in_of = of;
    if (client->in_at < of) return AQ_OK;
    client->in_at = 0;
    AQ_TRY(aq_split_in_done(&client->in, path));
    return --client->awaited > 0 ? AQ_OK : ready(client);
}

/* Can a file be made in that folder? A disk that turned read-only takes none. */
static enum aq_status probe_folder(const char *folder)
{
    static const char name[] = "probe.new";
    int fd;
    AQ_TRY(aq_file_open(folder, name, AQ_FILE_ANEW, &fd));
    close(fd);
    return aq_file_remove(folder, name);
}

/* Each try with a disk that is full, or takes nothing, fails alike, and few tries are a turn: it ends while the server
 * still waits for it, which hears this turn's epsilon all the same. */
static enum aq_status check_disk(struct client *client)
{
    struct aq_error_hold hold;
    aq_error_hold(&hold);
    enum aq_status status = client->visits ? aq_split_visits_now(client->visits, &client->epsilon) : AQ_OK;
    if (client->full[0])
        status = AQ_NOSPC;
    else if (status != AQ_NOSPC)
        status = probe_folder(client->run);
    if (status == AQ_OK && client->visits) status = probe_folder(aq_split_visits_folder(client->visits));
    aq_error_release(&hold);
    if (status == AQ_OK) return AQ_OK;
    say_leave(client, "its disk is full, or cannot be written");
    return aq_fail(own_disk(client, status), AREA, "%s", client->full[0] ? client->full : hold.text);
}

/* The turn is over: well, and the ends are asked for, or not. */
static enum aq_status on_over(struct client *client, const struct aq_message *message)
{
    const struct aq_message_over *over = &message->over;
    char text[AQ_SPLIT_TEXT_BYTES];
    const uint64_t until = client->until;
    aq_split_daemon_end(&client->daemon);
    if (!over->done) AQ_TRY(check_disk(client));
    AQ_TRY(tell_epsilon(client));
    aq_split_seen_waits(client->seen, over->done ? "sends what it trained" : "waits for its turn");
    if (!over->done) {
        say(client, "the turn is over: %s",
            aq_printable_text(over->text ? over->text : "no reason is given", text, sizeof text));
        event(client, json_pack("{s:s, s:s}", "event", "missed", "cause", text));
        no_turn(client);
        return AQ_OK;
    }
    if (until == 0 || over->step != until) return aq_fail(AQ_PROTO, AREA, "the server closes a turn that is not open");
    client->outs = 0;
    client->sends = true;
    return AQ_OK;
}

/* The hosts that its stages may connect to, by its own manifest. A loopback link.host (the default) allows none. */
static void gate_hosts(struct aq_split_gate *gate, const struct aq_job *job)
{
    struct aq_endpoint host;
    const char *why;
    const bool outside = aq_endpoint_parse_host(job->link.host, &host, &why) == AQ_OK && !aq_endpoint_loopback(&host);
    gate->hosts[0] = job->split.server;
    gate->hosts[1] = job->pipeline.stages[AQ_SPLIT_SERVERS].address;
    gate->hosts[2] = outside ? job->link.host : NULL;
}

static enum aq_status job_of(const struct aq_split_client_config *config, const struct aq_split_share *share,
                             struct aq_split_job *out)
{
    const struct aq_split_asked asked = {.manifest = config->manifest,
                                         .sets = config->sets,
                                         .set_count = config->set_count,
                                         .client = config->id,
                                         .data = config->data,
                                         .heldout = config->heldout,
                                         .share = share};
    return aq_split_job_open(&asked, out);
}

enum aq_status aq_split_samples(const struct aq_split_client_config *config, const char *path)
{
    struct aq_split_job made;
    AQ_TRY(job_of(config, NULL, &made));
    const enum aq_status status = aq_split_samples_write(made.job, path);
    aq_split_job_close(&made);
    return status;
}

/* Its job, and what of it the gate lets pass. */
static enum aq_status job_open(struct client *client, const struct aq_split_share *share)
{
    struct aq_split_job made;
    char *manifest = NULL, *lengths = NULL;
    AQ_TRY(job_of(client->config, share, &made));
    enum aq_status status = aq_plan_manifest(made.plan, &manifest);
    if (status == AQ_OK) status = aq_plan_lengths(made.plan, &lengths);
    if (status != AQ_OK) {
        aq_free(manifest);
        aq_split_job_close(&made);
        return status;
    }
    aq_split_job_close(&client->job);
    aq_free(client->manifest);
    aq_free(client->lengths);
    if (!share) client->join_hash = aq_plan_hash(made.plan);
    client->job = made;
    client->manifest = manifest;
    client->lengths = lengths;
    client->gate.lengths = lengths;
    gate_hosts(&client->gate, made.job);
    client->gate.manifest = manifest;
    client->gate.plan_hash = aq_plan_hash(made.plan);
    return AQ_OK;
}

/* Global sampling: what all clients together have, which is planned with from now on. */
static enum aq_status on_together(struct client *client, const struct aq_message *message)
{
    const struct aq_message_together *together = &message->together;
    const struct aq_job_facts *facts = &client->job.plan->facts;
    char text[AQ_SPLIT_TEXT_BYTES];
    const uint64_t samples = together->samples, first = together->first;
    if (!aq_job_global(client->job.job) || client->daemon.control || client->until)
        return aq_fail(AQ_PROTO, AREA, "the server sends counts of all clients when none are expected");
    const uint64_t others = client->job.job->split.samples_max * (AQ_JOB_TURNS_MAX - 1);
    if (samples > UINT32_MAX || samples > facts->train_samples + others || first >= samples ||
        facts->train_samples > samples - first)
        return aq_fail(AQ_PROTO, AREA,
                       "the server counts %" PRIu64 " samples of all clients, %" PRIu64
                       " of them before this one's %" PRIu64 ": that is zero, or more than can be put in order",
                       samples, first, facts->train_samples);
    const struct aq_split_share share = {
        .all = samples, .first = first, .began_all = together->began_samples, .began_first = together->began_first};
    if (facts->all_samples == samples && facts->first_sample == first && facts->began_samples == share.began_all &&
        facts->began_first == share.began_first)
        return AQ_OK;
    AQ_TRY(job_open(client, &share));
    const char *why = aq_printable_text(together->text ? together->text : "", text, sizeof text);
    say(client, "batches are drawn over %" PRIu64 " samples of all clients, %" PRIu64 " of them here%s%s", samples,
        client->job.plan->facts.train_samples, why[0] ? ": " : "", why);
    return AQ_OK;
}

/* All rounds are over. An older server does not send whether anything was trained. */
static enum aq_status on_end(struct client *client, const struct aq_message *message)
{
    char text[AQ_SPLIT_TEXT_BYTES];
    const bool trained = message->all_over.trained || !AQ_MESSAGE_HAS(message, all_over, trained);
    const uint64_t turns = AQ_MESSAGE_HAS(message, all_over, turns) ? message->all_over.turns : 1;
    aq_printable_text(message->all_over.text ? message->all_over.text : "", text, sizeof text);
    client->over = true;
    if (!trained)
        return aq_fail(AQ_ABORTED, AREA,
                       "all rounds are over, and nothing was trained: no client ended a turn. %s missed its last turn: "
                       "%s",
                       client->config->id, text[0] ? text : "no reason is known");
    if (turns == 0 && text[0])
        say(client, "all rounds are over; nothing of %s was trained, it missed its last turn: %s", client->config->id,
            text);
    else
        say(client, "all rounds are over");
    event(client, json_pack("{s:s, s:s, s:I}", "event", "end", "state", "done", "turns", (json_int_t)turns));
    aq_split_seen_end(client->seen, "done", NULL);
    return AQ_OK;
}

/* The daemon has ended. Both ends print how; its own output is in this client's output. */
static enum aq_status daemon_gone(struct client *client)
{
    char why[AQ_SPLIT_TEXT_BYTES];
    int how = 0;
    for (int i = 0; i < 500 && client->daemon.pid > 0; i++) {
        if (waitpid(client->daemon.pid, &how, WNOHANG) == client->daemon.pid) client->daemon.pid = 0;
        if (client->daemon.pid > 0) pause_ms(2);
    }
    const char *id = client->config->id;
    if (client->daemon.pid > 0)
        snprintf(why, sizeof why, "the daemon of %s closed its connection", id);
    else if (WIFSIGNALED(how))
        snprintf(why, sizeof why, "the daemon of %s was killed by signal %d", id, WTERMSIG(how));
    else
        snprintf(why, sizeof why, "the daemon of %s has ended with code %d; the output there has the cause", id,
                 WEXITSTATUS(how));
    say_leave(client, why);
    return aq_fail(AQ_CLOSED, AREA, "%s", why);
}

static enum aq_status on_closed(struct client *client, const struct aq_message *message)
{
    (void)message;
    no_turn(client);
    aq_split_seen_turned(client->seen);
    return AQ_OK;
}

static enum aq_status on_refused(struct client *client, const struct aq_message *message)
{
    char text[AQ_SPLIT_TEXT_BYTES];
    const char *why = message->turned_away.text ? message->turned_away.text : "no reason is given";
    (void)client;
    return aq_fail(AQ_REFUSED, AREA, "the server ends it: %s", aq_printable_text(why, text, sizeof text));
}

static enum aq_status (*const handlers[AQ_MESSAGES])(struct client *, const struct aq_message *) = {
    [AQ_MESSAGE_together] = on_together,   [AQ_MESSAGE_turn] = on_turn,     [AQ_MESSAGE_weights] = on_ends,
    [AQ_MESSAGE_over] = on_over,           [AQ_MESSAGE_closed] = on_closed, [AQ_MESSAGE_all_over] = on_end,
    [AQ_MESSAGE_turned_away] = on_refused,
};

static enum aq_status from_server(struct client *client, json_t *line)
{
    const char *event = aq_control_text_or(line, "event", NULL);
    char text[AQ_SPLIT_TEXT_BYTES];
    struct aq_message message;
    struct aq_message_wrong wrong;
    if (!event) {
        if (!client->daemon.control) return AQ_OK; /* it has ended, and the server did not know yet */
        AQ_TRY(aq_split_pass(&client->gate, line));
        const enum aq_status status = aq_control_send(client->daemon.control, json_incref(line));
        return status == AQ_OK || status == AQ_TIMEOUT ? status : daemon_gone(client); /* not the server is gone */
    }
    const enum aq_message_id id = aq_message_find(line, AQ_END_SERVER, AQ_END_CLIENT);
    if (id == AQ_MESSAGES || !handlers[id])
        return aq_fail(AQ_PROTO, AREA, "the server sends '%.32s', which is unknown",
                       aq_printable_text(event, text, sizeof text));
    if (!aq_message_read(id, line, NULL, &message, &wrong)) return aq_fail(AQ_PROTO, AREA, "the server %s", wrong.text);
    return handlers[id](client, &message);
}

/* The file of an end that it has trained. Its own statistics stay here: what is sent is a copy without them. */
static enum aq_status end_path(const struct client *client, uint32_t rank, char path[AQ_RUN_PATH_BYTES])
{
    char name[24], from[AQ_RUN_PATH_BYTES];
    const struct aq_plan *plan = client->job.plan;
    if (client->job.job->split.statistics != AQ_SPLIT_LOCAL ||
        plan->stages[rank].size.buffers == plan->stages[rank].size.copied)
        return aq_checkpoint_path(client->checkpoint, client->until, rank, path);
    snprintf(name, sizeof name, "%" PRIu64, client->until);
    AQ_TRY(aq_run_path(client->checkpoint, name, from));
    AQ_TRY(aq_split_part_without_statistics(plan, rank, from, client->begin));
    return aq_checkpoint_path(client->begin, 0, rank, path);
}

/* The labels of its samples, before all else. */
static enum aq_status send_labels(struct client *client)
{
    char path[AQ_RUN_PATH_BYTES], name[32];
    while (client->labels_due > 0 && aq_control_waiting(client->server) < AQ_SPLIT_PIECE_BYTES) {
        json_t *line;
        bool last;
        const uint32_t which = AQ_SPLIT_FILES - client->labels_due;
        if (client->out.fd == -1) {
            AQ_TRY(aq_split_labels_write(client->job.plan, which, client->begin));
            snprintf(name, sizeof name, "labels-%s", aq_split_labels_name(which));
            AQ_TRY(aq_run_path(client->begin, name, path));
            AQ_TRY(aq_split_out_open(&client->out, path, "labels", which));
        }
        AQ_TRY(aq_split_out_line(&client->out, "op", &line, &last));
        if (last) aq_split_out_close(&client->out);
        if (last) client->labels_due--;
        AQ_TRY(aq_control_send(client->server, line));
    }
    return AQ_OK;
}

static enum aq_status send_ends(struct client *client)
{
    char path[AQ_RUN_PATH_BYTES];
    while (client->sends && aq_control_waiting(client->server) < AQ_SPLIT_PIECE_BYTES) {
        json_t *line;
        bool last;
        if (client->out.fd == -1) {
            AQ_TRY(end_path(client, aq_split_rank(client->outs), path));
            AQ_TRY(aq_split_out_open(&client->out, path, "ends", aq_split_rank(client->outs++)));
        }
        AQ_TRY(aq_split_out_line(&client->out, "op", &line, &last));
        add_epsilon(client, line);
        if (last) aq_split_out_close(&client->out);
        if (last && client->outs == client->gate.ends) client->sends = false;
        AQ_TRY(aq_control_send(client->server, line));
    }
    return AQ_OK;
}

/* ---- joining ---- */

static enum aq_status say_join(struct client *client)
{
    const struct aq_job_facts *facts = &client->job.plan->facts;
    json_t *line =
        json_pack("{s:s, s:i, s:s, s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "op", "join", "protocol",
                  AQ_SPLIT_PROTOCOL, "version", AQ_VERSION, "id", client->config->id, "plan_hash",
                  aq_control_hex(client->join_hash), "instance", aq_control_hex(client->instance), "train_samples",
                  (json_int_t)facts->train_samples, "heldout_samples", (json_int_t)facts->heldout_samples, "vocabulary",
                  (json_int_t)facts->vocabulary, "labels", (json_int_t)facts->labels, "places",
                  (json_int_t)facts->places, "train_digest", aq_control_hex(facts->train_digest), "heldout_digest",
                  aq_control_hex(facts->heldout_digest), "weights_digest", aq_control_hex(facts->weights_digest));
    if (client->lengths) {
        json_object_set_new(line, "lengths_digest", aq_control_hex(facts->lengths_digest));
        json_object_set_new(line, "lengths_mean", json_integer((json_int_t)facts->lengths_mean));
        json_object_set_new(line, "parts", json_integer((json_int_t)facts->parts));
    }
    if (facts->ends[0]) json_object_set_new(line, "end", json_integer(facts->ends[0]));
    if (facts->ends[1]) json_object_set_new(line, "end_other", json_integer(facts->ends[1]));
    return aq_control_send(client->server, line);
}

/* Which keys differ: from the manifest that the server planned for this client. Tells the server, too. */
static void say_differences(struct client *client, const char *manifest)
{
    struct aq_job *job;
    struct aq_plan *plan = NULL;
    struct aq_text text = {0};
    if (aq_job_parse(manifest, strlen(manifest), "the server's manifest", client->run, NULL, 0, &job) != AQ_OK) return;
    if (aq_plan_open(job, &plan) == AQ_OK && aq_plan_differences(plan, client->job.plan, false, &text) == AQ_OK &&
        text.used > 0)
        say(client, "the server has another plan (there: the server): %s", aq_text_of(&text));
    aq_text_deinit(&text);
    aq_plan_close(plan);
    aq_job_close(job);
}

static enum aq_status answer(struct client *client)
{
    json_t *line;
    char text[AQ_SPLIT_TEXT_BYTES];
    AQ_TRY(aq_control_receive(client->server, aq_clock_after(CONNECT_S * second_ns), &line));
    enum aq_status status = AQ_OK;
    if (aq_control_is(line, "event", "joined")) {
        const bool labels = client->job.job->split.labels == AQ_SPLIT_LABELS_SERVER;
        const char *waits = aq_control_text_or(line, "waits", NULL);
        say(client, "%s has joined, at %s%s%s%s%s", client->config->id, client->job.job->split.server,
            labels ? "; it sends the labels of its samples there (split.labels: server)" : "",
            client->lengths ? "; it sends the lengths of its samples there" : "", waits ? "; it " : "",
            waits ? aq_printable_text(waits, text, sizeof text) : "");
        if (client->lengths)
            status =
                aq_control_send(client->server, json_pack("{s:s, s:s}", "op", "lengths", "lengths", client->lengths));
        client->labels_due = labels ? AQ_SPLIT_FILES : 0;
        event(client, json_pack("{s:s, s:s, s:s}", "event", "joined", "client", client->config->id, "server",
                                client->job.job->split.server));
        if (status == AQ_OK) aq_split_seen_waits(client->seen, waits ? text : "waits for its turn");
    } else {
        const char *manifest = aq_control_text_or(line, "manifest", NULL);
        if (manifest) say_differences(client, manifest);
        status = aq_fail(AQ_REFUSED, AREA, "the server refuses %s: it %s", client->config->id,
                         aq_printable_text(aq_control_text_or(line, "text", "gives no reason"), text, sizeof text));
    }
    json_decref(line);
    return status;
}

static enum aq_status join(struct client *client)
{
    int fd;
    struct aq_tls_session *session;
    const struct aq_tls_name server = {.role = AQ_TLS_LAUNCHER};
    const char *address = client->job.job->split.server;
    AQ_TRY(aq_control_connect(address, aq_clock_after(CONNECT_S * second_ns), &fd));
    enum aq_status status = aq_control_open(fd, &client->server);
    if (status != AQ_OK) {
        close(fd);
        return status;
    }
    AQ_TRY(aq_tls_session_open(client->tls, fd, false, &server, address, &session));
    aq_control_secure(client->server, session);
    aq_control_queue(client->server, 8 << 20);
    AQ_TRY(say_join(client));
    return answer(client);
}

static void leave(struct client *client)
{
    no_turn(client);
    aq_control_close(client->server);
    client->server = NULL;
}

/* ---- the loop ---- */

static void on_signals(struct client *client)
{
    struct signalfd_siginfo info;
    while (read(client->config->signals, &info, sizeof info) == (ssize_t)sizeof info)
        client->stopping = true;
}

static short wants(const struct aq_control *control)
{
    return (short)(aq_control_pending(control) ? POLLIN | POLLOUT : POLLIN);
}

static void note_failure(struct client *client, const json_t *line)
{
    if (strcmp(aq_control_text_or(line, "event", ""), "failed") != 0) return;
    if (strcmp(aq_control_text_or(line, "status", ""), aq_status_text(AQ_NOSPC)) != 0) return;
    aq_printable_text(aq_control_text_or(line, "text", "no space"), client->full, sizeof client->full);
}

static enum aq_status pump_daemon(struct client *client)
{
    json_t *line;
    if (!client->daemon.control) return AQ_OK;
    (void)aq_control_push(client->daemon.control);
    for (int i = 0; i < LINES; i++) {
        const enum aq_status status = aq_control_receive(client->daemon.control, 0, &line);
        if (status == AQ_AGAIN) return AQ_OK;
        if (status != AQ_OK) return daemon_gone(client);
        note_failure(client, line);
        aq_split_seen_line(client->seen, line);
        AQ_TRY(aq_control_send(client->server, line));
    }
    return AQ_OK;
}

static enum aq_status pump_server(struct client *client)
{
    json_t *line;
    for (int i = 0; i < LINES && !client->over; i++) {
        const enum aq_status got = aq_control_receive(client->server, 0, &line);
        if (got == AQ_AGAIN) return AQ_OK;
        AQ_TRY(got);
        const enum aq_status status = from_server(client, line);
        json_decref(line);
        AQ_TRY(status);
    }
    return AQ_OK;
}

/* While the connection stands. */
static enum aq_status stay(struct client *client)
{
    while (!client->over) {
        struct pollfd fds[3] = {{.fd = client->config->signals, .events = POLLIN},
                                {.fd = aq_control_fd(client->server), .events = wants(client->server)}};
        nfds_t count = 2;
        if (client->daemon.control)
            fds[count++] =
                (struct pollfd){.fd = aq_control_fd(client->daemon.control), .events = wants(client->daemon.control)};
        if (poll(fds, count, TICK_MS) < 0 && errno != EINTR) return aq_fail_errno(AREA, "poll");
        on_signals(client);
        if (client->stopping) {
            say_leave(client, "it was stopped by its user");
            return AQ_OK;
        }
        AQ_TRY(aq_control_check(client->server));
        AQ_TRY(pump_server(client));
        AQ_TRY(pump_daemon(client));
        aq_split_seen_tick(client->seen);
        AQ_TRY(send_labels(client));
        AQ_TRY(send_ends(client));
    }
    return AQ_OK;
}

/* From the dial to the connection's end. An error is held: another try may cure it. */
static enum aq_status follow_once(struct client *client, bool *absent, char why[AQ_ERROR_BYTES])
{
    struct aq_error_hold hold;
    aq_error_hold(&hold);
    enum aq_status status = join(client);
    *absent = status == AQ_REFUSED && !client->server; /* nobody listens there */
    const bool joined = status == AQ_OK;
    if (joined) status = stay(client);
    aq_error_release(&hold);
    snprintf(why, AQ_ERROR_BYTES, "%s", hold.text[0] ? hold.text : aq_status_text(status));
    if (joined && passes(status)) say(client, "the connection to the server is lost (%s): connecting again", why);
    if (joined) client->joined_ns = aq_clock_ns();
    return status;
}

static enum aq_status follow(struct client *client)
{
    client->joined_ns = aq_clock_ns();
    aq_split_seen_waits(client->seen, "waits for the server");
    uint32_t wait_ms = 100;
    bool told = false; /* that the server does not answer */
    while (!client->over && !client->stopping) {
        char why[AQ_ERROR_BYTES];
        bool absent;
        const uint64_t before_ns = client->joined_ns;
        const enum aq_status status = follow_once(client, &absent, why);
        if (client->joined_ns != before_ns) wait_ms = 100;
        leave(client);
        on_signals(client);
        if (status == AQ_OK) continue;
        aq_split_seen_waits(client->seen, "waits for the server, which is away");
        if ((!passes(status) && !absent) || aq_clock_ns() > client->joined_ns + client->config->patience_ns)
            return aq_fail(status, AREA, "%s%s", why,
                           client->bad_disk || status == AQ_NOSPC
                               ? "; make room, and start this client again: the server waits split.wait"
                               : "");
        if (absent && !told)
            say(client, "waits for the split-server at %s, up to %.0f s (--patience)", client->job.job->split.server,
                (double)client->config->patience_ns * 1e-9);
        told = absent;
        pause_ms(wait_ms);
        wait_ms = wait_ms * 2 < PAUSE_MS_MAX ? wait_ms * 2 : PAUSE_MS_MAX;
    }
    client->end = client->spent ? AQ_SPLIT_SPENT : client->over ? AQ_SPLIT_DONE : AQ_SPLIT_STOPPED;
    return AQ_OK;
}

/* ---- open and close ---- */

/* The key of the server's cache of this client's messages: made once, and kept only here. */
static enum aq_status key_open(struct client *client)
{
    const struct aq_job *job = client->job.job;
    char path[AQ_RUN_PATH_BYTES];
    bool made;
    if (!aq_job_sealed(job)) return AQ_OK;
    AQ_TRY(aq_run_path(job->output.path, "seal.key", path));
    AQ_TRY(aq_split_key(path, job->security.keys, client->config->id, &made, client->seal));
    if (made) say(client, "created seal.key in output.path; keep it: the server's cache cannot be read without it");
    return AQ_OK;
}

/* A number of this folder, made once: the server uses it to detect the same client on a second machine. */
static enum aq_status instance_open(struct client *client)
{
    char path[AQ_RUN_PATH_BYTES], text[40], *known;
    size_t count;
    AQ_TRY(aq_run_path(client->job.job->output.path, "instance", path));
    const enum aq_status status = aq_file_load(NULL, path, INSTANCE_BYTES, &known, &count);
    if (status == AQ_OK) {
        const bool good = count == INSTANCE_BYTES && known[16] == '\n' && (known[16] = 0, aq_is_hex(known, 16));
        if (good) client->instance = strtoull(known, NULL, 16);
        aq_free(known);
        return good ? AQ_OK : aq_fail(AQ_CORRUPT, AREA, "%s is damaged: remove it", path);
    }
    if (status != AQ_NOTFOUND) return status;
    if (getrandom(&client->instance, sizeof client->instance, 0) != (ssize_t)sizeof client->instance)
        return aq_fail_errno(AREA, "getrandom");
    client->instance |= 1; /* 0 is none */
    const int bytes = snprintf(text, sizeof text, "%016" PRIx64 "\n", client->instance);
    return aq_file_replace(NULL, path, 0600, text, (size_t)bytes);
}

static enum aq_status open_all(struct client *client)
{
    const struct aq_split_client_config *config = client->config;
    AQ_TRY(job_open(client, NULL));
    const struct aq_job *job = client->job.job;
    AQ_TRY(aq_tls_open_site(job->security.keys, config->id, &client->tls));
    AQ_TRY(aq_run_make_folder(job->output.path));
    AQ_TRY(aq_run_lock(job->output.path, &client->lock));
    AQ_TRY(aq_split_folder_check(job->output.path, AQ_SPLIT_OF_CLIENT, job->name, config->id));
    AQ_TRY(key_open(client));
    AQ_TRY(instance_open(client));
    AQ_TRY(aq_split_seen_open(job, config->id, &client->seen));
    AQ_TRY(aq_run_path(job->output.path, "run", client->run));
    AQ_TRY(aq_run_make_folder(client->run));
    AQ_TRY(aq_run_path(client->run, "checkpoint", client->checkpoint));
    AQ_TRY(aq_run_path(client->run, "cache", client->cache));
    AQ_TRY(aq_run_path(job->output.path, "begin", client->begin));
    AQ_TRY(aq_run_make_folder(client->begin));
    AQ_TRY(aq_split_visits_open(client->job.plan, &client->visits));
    client->gate.ledger = client->visits ? aq_split_visits_folder(client->visits) : NULL;
    client->gate.run = client->run; /* the rest is job_open's */
    client->gate.checkpoint = client->checkpoint;
    client->gate.cache = client->cache;
    client->gate.seal = client->seal[0] ? client->seal : NULL;
    client->gate.ends = client->job.plan->stage_count - 1;
    return AQ_OK;
}

/* For `aqpipe status`. */
static void failed(struct client *client, enum aq_status status)
{
    char why[AQ_SPLIT_TEXT_BYTES];
    if (!client->seen) return;
    aq_printable_text(aq_error_text()[0] ? aq_error_text() : aq_status_text(status), why, sizeof why);
    aq_split_seen_end(client->seen, "failed", why);
}

enum aq_status aq_split_follow(const struct aq_split_client_config *config, enum aq_split_end *end)
{
    struct client *client;
    AQ_TRY(AQ_NEW(1, &client));
    client->config = config;
    client->lock = client->in.fd = client->out.fd = -1;
    client->end = AQ_SPLIT_FAILED;
    enum aq_status status = open_all(client);
    if (status == AQ_OK && !aq_confine_able())
        say(client, "this kernel has no Landlock: the daemon and its workers can reach all files of this user");
    if (status == AQ_OK) status = tell_epsilon(client);
    if (status == AQ_OK) status = follow(client);
    *end = client->end;
    if (status == AQ_OK && client->end == AQ_SPLIT_STOPPED) aq_split_seen_end(client->seen, "stopped", NULL);
    if (status != AQ_OK) failed(client, status);
    leave(client);
    aq_split_seen_close(client->seen);
    aq_split_visits_close(client->visits);
    aq_tls_close(client->tls);
    aq_free(client->manifest);
    aq_free(client->lengths);
    aq_split_job_close(&client->job);
    if (client->lock != -1) close(client->lock);
    explicit_bzero(client->seal, sizeof client->seal);
    aq_free(client);
    return status;
}
