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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "confine.h"
#include "control.h"
#include "control_socket.h"
#include "message.h"
#include "net/endpoint.h"
#include "net/tls.h"
#include "run_folder.h"
#include "runtime_text.h"
#include "split_gate.h"
#include "split_job.h"
#include "split_key.h"
#include "split_labels.h"
#include "split_part.h"
#include "split_piece.h"
#include "split_session.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;
static const char *const AREA = "split";
enum {
    CONNECT_S = 15,
    TICK_MS = 100,
    PAUSE_MS_MAX = 5000,
    DAEMON_END_S = 10,
    LINES = 256,
    FOLDERS_MAX = 24,
    WORDS_MAX = 8 + 2 * FOLDERS_MAX,
    INSTANCE_BYTES = 17
};

struct client {
    const struct aq_split_client_config *config;
    struct aq_split_job job;
    char *manifest, *lengths; /* lengths: of its samples, as text; NULL: all alike */
    uint64_t join_hash;       /* of the plan of only this client, with which it joins */
    struct aq_tls *tls;
    int lock;
    struct aq_control *server; /* NULL: not connected */
    struct aq_control *daemon; /* NULL: none runs     */
    pid_t pid;
    char run[AQ_RUN_PATH_BYTES], checkpoint[AQ_RUN_PATH_BYTES], cache[AQ_RUN_PATH_BYTES], begin[AQ_RUN_PATH_BYTES];
    struct aq_split_gate gate;
    char seal[AQ_SPLIT_KEY_TEXT_BYTES]; /* the key of the server's cache, with split.seal */
    uint64_t until;                     /* of the turn under way; 0: none                */
    uint64_t told;                      /* its number, which goes back to the server; 0: it has none */
    uint32_t awaited;                   /* files that are on their way here              */
    struct aq_split_in in;
    uint64_t in_at, in_of; /* of the file on its way here: bytes that have come, and all */
    struct aq_split_out out;
    uint32_t outs;
    bool sends;
    uint64_t instance;   /* a random number of output.path: two machines with one bundle have two */
    uint32_t labels_due; /* files of labels that the server still needs */
    uint64_t joined_ns;  /* when it was last connected to the server, or started to look for it */
    bool stopping, over;
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

/* ---- its daemon ---- */

static void daemon_end(struct client *client)
{
    aq_control_close(client->daemon); /* it ends with its connection, after it has reaped its workers */
    client->daemon = NULL;
    const uint64_t deadline = aq_clock_after(DAEMON_END_S * second_ns);
    while (client->pid > 0) {
        const pid_t got = waitpid(client->pid, NULL, WNOHANG);
        if (got != 0) break;
        if (aq_clock_ns() > deadline) {
            kill(client->pid, SIGKILL);
            while (waitpid(client->pid, NULL, 0) == -1 && errno == EINTR)
                continue;
            break;
        }
        pause_ms(2);
    }
    client->pid = 0;
}

#define WORD(text) ((char *)(uintptr_t)(text))

/* The words of its command line, and the folders of files in them. */
struct words {
    char *of[WORDS_MAX];
    char folders[FOLDERS_MAX][AQ_RUN_PATH_BYTES];
    int count, folder_count;
};

/* Data may be read in the folder of that file, or in that folder. */
static void allow(struct words *words, const char *path)
{
    struct stat about;
    if (!path || words->folder_count == FOLDERS_MAX) return;
    char *folder = words->folders[words->folder_count];
    if (snprintf(folder, AQ_RUN_PATH_BYTES, "%s", path) >= AQ_RUN_PATH_BYTES) return;
    char *slash = strrchr(folder, '/');
    if ((stat(folder, &about) != 0 || !S_ISDIR(about.st_mode)) && slash && slash > folder) *slash = 0;
    for (int i = 0; i < words->folder_count; i++)
        if (strcmp(words->folders[i], folder) == 0) return;
    words->folder_count++;
    words->of[words->count++] = WORD("--allow-data");
    words->of[words->count++] = folder;
}

/* The paths that the daemon and its workers may read and write; where the kernel cannot confine them the daemon still
 * refuses jobs that name others. */
static void words_fill(const struct client *client, struct words *words)
{
    const struct aq_job *job = client->job.job;
    const char *const begins[] = {"aqpiped", "--fd", "3", "--allow-run", client->run};
    const char *const others[] = {client->begin,  job->security.keys, job->model.weights, job->data.tokenizer_path,
                                  job->data.chat, job->data.cache};
    words->count = words->folder_count = 0;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        words->of[words->count++] = WORD(begins[i]);
    if (!aq_confine_able()) words->of[words->count++] = WORD("--without-landlock");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        allow(words, others[i]);
    for (uint32_t i = 0; i < job->data.train_count; i++)
        allow(words, job->data.train[i]);
    for (uint32_t i = 0; i < job->data.heldout_count; i++)
        allow(words, job->data.heldout[i]);
    words->of[words->count] = NULL;
}

static enum aq_status daemon_begin(struct client *client)
{
    int channel[2];
    static struct words words;
    words_fill(client, &words);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) != 0)
        return aq_fail_errno(AREA, "cannot open a channel to the daemon");
    enum aq_status status = aq_control_open(channel[0], &client->daemon);
    if (status != AQ_OK) {
        close(channel[0]);
    } else {
        aq_control_queue(client->daemon, AQ_CONTROL_LINE_BYTES_MAX + (1 << 20));
        const struct aq_child child = {.program = client->config->daemon,
                                       .arguments = (const char *const *)words.of,
                                       .fds = {{AQ_CHILD_NULL, 0}, {channel[1], AQ_CONTROL_FD}},
                                       .fd_count = 2};
        status = aq_child_start(&child, client->config->daemon, &client->pid);
    }
    close(channel[1]);
    return status;
}

/* ---- the server's lines ---- */

static void no_turn(struct client *client)
{
    daemon_end(client);
    aq_split_in_close(&client->in);
    aq_split_out_close(&client->out);
    client->awaited = client->outs = 0;
    client->in_at = 0;
    client->sends = false;
    client->until = 0;
}

static enum aq_status ready(struct client *client)
{
    AQ_TRY(daemon_begin(client));
    json_t *line = json_pack("{s:s}", "op", "ready");
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
    if (mark == client->until) return AQ_OK; /* all is trained: it will ask for the ends */
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

/* The turn is over: well, and the ends are asked for, or not. */
static enum aq_status on_over(struct client *client, const struct aq_message *message)
{
    const struct aq_message_over *over = &message->over;
    char text[AQ_SPLIT_TEXT_BYTES];
    const uint64_t until = client->until;
    daemon_end(client);
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

/* Its job, and what of it the gate lets pass. */
static enum aq_status job_open(struct client *client, const struct aq_split_share *share)
{
    const struct aq_split_client_config *config = client->config;
    const struct aq_split_asked asked = {.manifest = config->manifest,
                                         .sets = config->sets,
                                         .set_count = config->set_count,
                                         .client = config->id,
                                         .data = config->data,
                                         .heldout = config->heldout,
                                         .share = share};
    struct aq_split_job made;
    char *manifest = NULL, *lengths = NULL;
    AQ_TRY(aq_split_job_open(&asked, &made));
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
    if (!aq_job_global(client->job.job) || client->daemon || client->until)
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
    return AQ_OK;
}

/* The server hears why, before the connection ends. */
static void say_leave(struct client *client, const char *why)
{
    (void)aq_control_send(client->server, json_pack("{s:s, s:s}", "op", "leave", "text", why));
    (void)aq_control_flush(client->server, aq_clock_after(second_ns));
}

/* The daemon has ended. Both ends print how; its own output is in this client's output. */
static enum aq_status daemon_gone(struct client *client)
{
    char why[AQ_SPLIT_TEXT_BYTES];
    int how = 0;
    for (int i = 0; i < 500 && client->pid > 0; i++) {
        if (waitpid(client->pid, &how, WNOHANG) == client->pid) client->pid = 0;
        if (client->pid > 0) pause_ms(2);
    }
    const char *id = client->config->id;
    if (client->pid > 0)
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
        if (!client->daemon) return AQ_OK; /* it has ended, and the server did not know yet */
        AQ_TRY(aq_split_pass(&client->gate, line));
        const enum aq_status status = aq_control_send(client->daemon, json_incref(line));
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

static enum aq_status pump_daemon(struct client *client)
{
    json_t *line;
    if (!client->daemon) return AQ_OK;
    (void)aq_control_push(client->daemon);
    for (int i = 0; i < LINES; i++) {
        const enum aq_status status = aq_control_receive(client->daemon, 0, &line);
        if (status == AQ_AGAIN) return AQ_OK;
        if (status != AQ_OK) return daemon_gone(client);
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
        if (client->daemon)
            fds[count++] = (struct pollfd){.fd = aq_control_fd(client->daemon), .events = wants(client->daemon)};
        if (poll(fds, count, TICK_MS) < 0 && errno != EINTR) return aq_fail_errno(AREA, "poll");
        on_signals(client);
        if (client->stopping) {
            say_leave(client, "it was stopped by its user");
            return AQ_OK;
        }
        AQ_TRY(aq_control_check(client->server));
        AQ_TRY(pump_server(client));
        AQ_TRY(pump_daemon(client));
        AQ_TRY(send_labels(client));
        AQ_TRY(send_ends(client));
    }
    return AQ_OK;
}

/* Failures that another try may cure: the server is away, or restarts. */
static bool passes(enum aq_status status)
{
    return status == AQ_CLOSED || status == AQ_TIMEOUT || status == AQ_IO;
}

/* From the dial to the connection's end. An error is held: another try may cure it. */
static enum aq_status follow_once(struct client *client, bool *absent, char why[AQ_SPLIT_TEXT_BYTES])
{
    struct aq_error_hold hold;
    aq_error_hold(&hold);
    enum aq_status status = join(client);
    *absent = status == AQ_REFUSED && !client->server; /* nobody listens there */
    const bool joined = status == AQ_OK;
    if (joined) status = stay(client);
    aq_error_release(&hold);
    snprintf(why, AQ_SPLIT_TEXT_BYTES, "%.300s", hold.text[0] ? hold.text : aq_status_text(status));
    if (joined && passes(status)) say(client, "the connection to the server is lost (%s): connecting again", why);
    if (joined) client->joined_ns = aq_clock_ns();
    return status;
}

static enum aq_status follow(struct client *client)
{
    client->joined_ns = aq_clock_ns();
    uint32_t wait_ms = 100;
    bool told = false; /* that the server does not answer */
    while (!client->over && !client->stopping) {
        char why[AQ_SPLIT_TEXT_BYTES];
        bool absent;
        const uint64_t before_ns = client->joined_ns;
        const enum aq_status status = follow_once(client, &absent, why);
        if (client->joined_ns != before_ns) wait_ms = 100;
        leave(client);
        on_signals(client);
        if (status == AQ_OK) continue;
        if ((!passes(status) && !absent) || aq_clock_ns() > client->joined_ns + client->config->patience_ns)
            return aq_fail(status, AREA, "%s", why);
        if (absent && !told)
            say(client, "waits for the split-server at %s, up to %.0f s (--patience)", client->job.job->split.server,
                (double)client->config->patience_ns * 1e-9);
        told = absent;
        pause_ms(wait_ms);
        wait_ms = wait_ms * 2 < PAUSE_MS_MAX ? wait_ms * 2 : PAUSE_MS_MAX;
    }
    client->end = client->over ? AQ_SPLIT_DONE : AQ_SPLIT_STOPPED;
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
    AQ_TRY(key_open(client));
    AQ_TRY(instance_open(client));
    AQ_TRY(aq_run_path(job->output.path, "run", client->run));
    AQ_TRY(aq_run_make_folder(client->run));
    AQ_TRY(aq_run_path(client->run, "checkpoint", client->checkpoint));
    AQ_TRY(aq_run_path(client->run, "cache", client->cache));
    AQ_TRY(aq_run_path(job->output.path, "begin", client->begin));
    AQ_TRY(aq_run_make_folder(client->begin));
    client->gate.run = client->run; /* the rest is job_open's */
    client->gate.checkpoint = client->checkpoint;
    client->gate.cache = client->cache;
    client->gate.seal = client->seal[0] ? client->seal : NULL;
    client->gate.ends = client->job.plan->stage_count - 1;
    return AQ_OK;
}

enum aq_status aq_split_follow(const struct aq_split_client_config *config, enum aq_split_end *end)
{
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct client), &memory));
    struct client *client = memory;
    client->config = config;
    client->lock = client->in.fd = client->out.fd = -1;
    client->end = AQ_SPLIT_FAILED;
    enum aq_status status = open_all(client);
    if (status == AQ_OK && !aq_confine_able())
        say(client, "this kernel has no Landlock: the daemon and its workers can reach all files of this user");
    if (status == AQ_OK) status = follow(client);
    *end = client->end;
    leave(client);
    aq_tls_close(client->tls);
    aq_free(client->manifest);
    aq_free(client->lengths);
    aq_split_job_close(&client->job);
    if (client->lock != -1) close(client->lock);
    explicit_bzero(client->seal, sizeof client->seal);
    aq_free(client);
    return status;
}
