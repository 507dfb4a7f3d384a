/*
 * fuzz_clients.c -- several clients of split learning at the real server (split_server.c, split_join.c, split_round.c,
 * split_turn.c, split_ahead.c, split_state.c), over connections in memory, on a virtual clock.
 *
 * An input: a byte of options, and then an act per line. Two clients, a and b, are honest. Others, c and d, have good
 * certificates and send any line at any moment. The server is killed, stopped and started again, and its disk fails.
 * When the input is over, the liars stay silent, and the server must end by itself.
 *
 * Whatever comes:
 *   - the honest clients are never refused, and hear the end of the job (global sampling: those with whom it began);
 *   - a connection speaks only for the name of its certificate, and a turn counts only after all files of its client;
 *   - no more turns run at once than the job allows;
 *   - no client hears a path of the server, or a control character;
 *   - the server loads each state that it wrote;
 *   - the server fails only because its disk does.
 *
 * Acts (k: a connection, 0 to 6; n: a digit; w: a client, a to d):
 *   +k connects   -k closes   kTEXT sends the line TEXT   zk reads nothing from now on   hw an honest client continues
 *   lw it loses its connection   mwn a checkpoint of w's turn, n steps further   xw the launcher of w's turn fails
 *   fw it sends a line   tn 10^n ms pass   w the next files are refused   dn the disk fails at the n-th write
 *   r the server is killed   en it is killed behind the n-th write of split.json   s it is stopped
 *
 * AQ_FUZZ_TELL=1 in the environment prints what the server prints.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "clients_world.h"
#include "fuzz.h"
#include "split_labels.h"
#include "virtual_clock.h"

enum {
    HONEST = 2, /* a and b, at the connections 0 and 1 */
    LINES_MAX = 64,
    RUNS_MAX = LINES_MAX + 2, /* of the server: each line may end one */
    POLLS_MAX = 4000          /* after the input: far more than all waits together */
};

static const uint64_t ms_ns = 1000 * 1000;
static const char path[] = "/srv/own";

struct client {
    bool joined, ready, sends, measured, labelled, ended;
    bool out; /* global sampling began without it */
    uint64_t told;
};

static struct client clients[HONEST];
static struct fuzz_piece rest;
static uint64_t now;
static uint32_t lines, polls;
static bool killed, liar_in; /* liar_in: c or d has joined */
static bool has_lengths;     /* the honest clients have samples of several lengths */
static bool path_said;       /* the input has a path of the server: its text comes back to whoever sent it */

int __wrap_poll(struct pollfd *fds, nfds_t count, int ms);
void __wrap_shown_tell(struct server *server);

static uint64_t clock_now(void *context)
{
    (void)context;
    return now += 1000;
}

/* ---- what a client hears ---- */

static void check_text(int k, const char *text)
{
    AQ_ASSERT(!strstr(text, path) || (k >= HONEST && path_said));
    for (; *text; text++)
        AQ_ASSERT((unsigned char)*text >= ' ' || *text == '\n');
}

static void check_line(int k, const json_t *line)
{
    static const char *const known[] = {"joined", "together", "turn", "ends", "over", "closed", "end", "refused"};
    const char *event = aq_control_text_or(line, "event", ""), *key;
    json_t *value;
    bool is_known = json_object_get(line, "launcher") != NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        is_known |= strcmp(event, known[i]) == 0;
    AQ_ASSERT(is_known);
    json_object_foreach((json_t *)(uintptr_t)line, key, value) if (json_is_string(value))
        check_text(k, json_string_value(value));
}

/* An honest client notes what it is told, and answers when it acts next. */
static void client_hears(struct client *client, const json_t *line)
{
    const char *event = aq_control_text_or(line, "event", "");
    if (strcmp(event, "refused") == 0) {
        const char *why = aq_control_text_or(line, "text", "");
        AQ_ASSERT(world.job.split.mode == AQ_SPLIT_GLOBAL && strstr(why, "was not there when the clients"));
        client->out = true;
    }
    client->joined |= strcmp(event, "joined") == 0;
    client->ended |= strcmp(event, "end") == 0;
    if (strcmp(event, "turn") == 0) {
        client->told = aq_control_u64_or(line, "told", 0);
        client->ready = client->sends = false;
    }
    if (strcmp(event, "over") == 0) {
        client->told = 0;
        client->sends = aq_control_bool_or(line, "done", false);
    }
    if (strcmp(event, "closed") == 0) client->sends = false;
}

void world_hears(int k, const json_t *line)
{
    check_line(k, line);
    if (aq_control_is(line, "event", "turn"))
        world.untils[world_index(certificates[k])] = aq_control_u64_or(line, "until", 0);
    if (k < HONEST)
        client_hears(&clients[k], line);
    else
        liar_in |= aq_control_is(line, "event", "joined");
}

/* ---- the honest clients ---- */

static void client_joins(int k)
{
    char hash[17];
    const char id[2] = {certificates[k], 0};
    clients[k] = (struct client){0};
    slot_open(k);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)plan_hash);
    json_t *line = json_pack("{s:s, s:i, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:s, s:s, s:s}", "op", "join", "protocol",
                             AQ_SPLIT_PROTOCOL, "id", id, "plan_hash", hash, "instance",
                             k ? "000000000000000b" : "000000000000000a", "train_samples", SAMPLES, "heldout_samples",
                             1, "vocabulary", 10, "labels", 0, "train_digest", hash, "heldout_digest", hash,
                             "weights_digest", "0000000000000000");
    if (has_lengths) {
        json_object_set_new(line, "lengths_digest", json_string(hash));
        json_object_set_new(line, "lengths_mean", json_integer(3));
        json_object_set_new(line, "parts", json_integer(0));
    }
    slot_say(k, line);
}

/* A file, a character for each byte. */
static void client_sends(int k, const char *op, int rank, uint64_t bytes)
{
    char data[64];
    AQ_ASSERT(bytes < sizeof data);
    memset(data, 'A', bytes);
    data[bytes] = 0;
    slot_say(k, json_pack("{s:s, s:i, s:i, s:I, s:s}", "op", op, "rank", rank, "offset", 0, "of", (json_int_t)bytes,
                          "data", data));
}

static void client_acts(int k)
{
    struct client *client = &clients[k];
    const bool labels = world.job.split.labels == AQ_SPLIT_LABELS_SERVER;
    struct child *child = child_running(certificates[k]);
    if (client->out) return;
    if (!world.slots[k].open) {
        if (!world.slots[k].control) client_joins(k);
        return;
    }
    if (!client->joined) return;
    if (has_lengths && !client->measured) {
        slot_say(k, json_pack("{s:s, s:s}", "op", "lengths", "lengths", "012"));
        client->measured = true;
    } else if (labels && !client->labelled) {
        client_sends(k, "labels", 0, aq_split_labels_bytes(SAMPLES));
        client_sends(k, "labels", 1, aq_split_labels_bytes(1));
        client->labelled = true;
    } else if (client->told && !client->ready) {
        slot_say(k, json_pack("{s:s, s:I}", "op", "ready", "told", (json_int_t)client->told));
        client->ready = true;
    } else if (client->told && child) { /* all its steps are trained */
        world.marks[k] = world.untils[k];
        child->lives = false;
    } else if (client->sends) {
        client_sends(k, "ends", 0, FILE_BYTES);
        if (!labels) client_sends(k, "ends", 2, FILE_BYTES);
        client->sends = false;
    }
}

/* ---- acts ---- */

static void close_slot(int k)
{
    world.slots[k].open = world.slots[k].waits = false;
}

static void act_on_slot(int k, char what, const struct fuzz_piece *line)
{
    if (what == '+' && k >= HONEST) slot_open(k);
    if (what == '-' && k >= HONEST) close_slot(k);
    if (what == 'z' && k >= HONEST) world.slots[k].deaf = true;
    if (what == ' ' && k >= HONEST)
        slot_say(k, json_loadb((const char *)line->bytes + 1, line->count - 1, JSON_REJECT_DUPLICATES, NULL));
}

static void act_on_client(char name, char what, uint8_t number)
{
    const int i = world_index(name);
    struct child *child = child_running(name);
    if (what == 'h' && i < HONEST) client_acts(i);
    if (what == 'l' && i < HONEST) close_slot(i);
    if (what == 'f') launch_says(name);
    if (what == 'x' && child) child->lives = false;
    if (what == 'm' && child) {
        const uint64_t mark = world.marks[i] + number;
        world.marks[i] = mark < world.untils[i] ? mark : world.untils[i];
    }
}

static void act(const struct fuzz_piece *line)
{
    static const uint64_t tens[] = {1, 10, 100, 1000, 10000, 100000};
    const char what = line->count > 0 ? (char)line->bytes[0] : 0, next = line->count > 1 ? (char)line->bytes[1] : 0;
    const uint8_t digit = next >= '0' && next <= '9' ? (uint8_t)(next - '0') : 0;
    if (what >= '0' && what < '0' + SLOTS) act_on_slot(what - '0', ' ', line);
    if (strchr("+-z", what) && digit < SLOTS) act_on_slot(digit, what, line);
    if (strchr("hlmxf", what)) act_on_client(next, what, line->count > 2 ? line->bytes[2] % 10 : 1);
    if (what == 't') now += tens[digit % 6] * ms_ns;
    if (what == 'w') world.refuse_files = true;
    if (what == 'd') world.disk_fails = digit;
    if (what == 'e') world.dies = digit;
    if (what == 's') world.stop_asked = true;
    if (what == 'r') killed = true;
}

/* A launcher ends a turn in which nothing moves (control.silence_max, control.stall_max). */
static void launchers_look(void)
{
    for (int i = HONEST; i < NAMES && polls % 40 == 39; i++) {
        struct child *child = child_running((char)('a' + i));
        if (child) child->lives = false;
    }
}

/* The server waits: the next act. Behind the input time passes, and the honest clients continue. */
int __wrap_poll(struct pollfd *fds, nfds_t count, int ms)
{
    (void)fds, (void)count, (void)ms;
    now += ms_ns;
    killed |= world.dead;
    if (killed) {
        errno = EBADF;
        return -1;
    }
    if (rest.count > 0 && lines++ < LINES_MAX) {
        const struct fuzz_piece line = fuzz_cut(&rest, '\n');
        act(&line);
    } else {
        world.refuse_files = false;
        world.disk_fails = 0;
        now += 8000 * ms_ns;
        for (int k = 0; k < HONEST; k++)
            client_acts(k);
        launchers_look();
        AQ_ASSERT(polls++ < POLLS_MAX); /* it ends */
    }
    return 0;
}

/* ---- what holds whenever the server has done all it can ---- */

static void check_site(const struct server *server, const struct site *site)
{
    const int i = world_index(site->name[0]);
    AQ_ASSERT(site->name[1] == 0 && site->name[0] >= 'a' && site->name[0] < 'a' + NAMES);
    AQ_ASSERT(!site->control || control_name(site->control) == site->name[0]);
    AQ_ASSERT(!site->control || site->session.name == site->name);
    AQ_ASSERT(!site->launch || site->launch == world.launches[i]);
    AQ_ASSERT(site->until == 0 || site->until >= site->begin);
    AQ_ASSERT(site->round <= server->round && site->samples <= SAMPLES_MAX);
    AQ_ASSERT(site->turns + site->missed + site->rested <= server->round);
    AQ_ASSERT(site->turns <= world.files[i] && site->tries <= SPLIT_TRIES_MAX);
    AQ_ASSERT(!site->pid || (child_of(site->pid)->of == site->name[0] && site->offered));
}

void __wrap_shown_tell(struct server *server)
{
    const bool global = server->job->split.mode == AQ_SPLIT_GLOBAL;
    uint32_t runs = 0, lives = 0;
    uint64_t all = 0;
    if (world.dead) return;
    if (server->over) {
        AQ_ASSERT(server->end != AQ_SPLIT_FAILED || world.disk_failed);
        return;
    }
    for (uint32_t i = 0; i < server->site_count; i++) {
        const struct site *site = &server->sites[i];
        check_site(server, site);
        runs += site->pid != 0;
        all += site->absent ? 0 : site->samples;
    }
    for (uint32_t i = 0; i < world.child_count; i++)
        lives += world.children[i].lives;
    AQ_ASSERT(lives <= runs && (global || runs <= server->job->split.parallel));
    AQ_ASSERT(server->all_samples == (global && server->weights != SPLIT_WEIGHTS_NONE ? all : 0));
    AQ_ASSERT(server->site_count <= NAMES && (!server->ahead.site || server->ahead.site != server->ahead.source));
}

/* ---- an input ---- */

static void job_begin(uint8_t options)
{
    struct aq_job *job = &world.job;
    const bool global = (options & 3) == AQ_SPLIT_GLOBAL, labels = (options & 4) && !global;
    *job = (struct aq_job){.name = "job", .output.path = root};
    job->train.batch = BATCH;
    job->pipeline.stage_count = labels ? 2 : 3;
    job->control.silence_ns_max = 20000 * ms_ns;
    job->control.stall_ns_max = 60000 * ms_ns;
    job->split = (struct aq_job_split){.clients = HONEST,
                                       .server = "127.0.0.1:1",
                                       .rounds = ROUNDS,
                                       .epochs = 1,
                                       .wait_ns = 30000 * ms_ns,
                                       .samples_max = SAMPLES_MAX,
                                       .share_max = 0.9f,
                                       .mode = (enum aq_split_mode)(options & 3),
                                       .labels = labels ? AQ_SPLIT_LABELS_SERVER : AQ_SPLIT_LABELS_CLIENT,
                                       .parallel = 1,
                                       .participation = 1};
    has_lengths = options & 64;
    if (!global && options & 8) job->split.participation = 0.5f;
    if (!global && options & 16) job->split.round_deadline_ns = 200000 * ms_ns;
    if ((options & 3) == AQ_SPLIT_FED1 && options & 32) job->split.parallel = 2;
}

/* False: the job is over. */
static bool serve(const struct aq_split_server_config *config)
{
    enum aq_split_end end;
    aq_error_clear();
    const enum aq_status status = aq_split_serve(config, &end);
    const bool again = killed || world.dead || world.disk_failed || (status == AQ_OK && end == AQ_SPLIT_STOPPED);
    world_over();
    const bool had_ended = status == AQ_INVAL && aq_control_bool_or(world.state, "ended", false);
    AQ_ASSERT(again || (status == AQ_OK && end == AQ_SPLIT_DONE) || status == AQ_ABORTED || had_ended);
    killed = world.dead = world.disk_failed = world.stop_asked = false;
    return again;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct aq_split_server_config config = {.manifest = "job.yaml", .program = "aqpipe", .signals = FD_SIGNALS};
    fuzz_quiet();
    rest = (struct fuzz_piece){data, size};
    world_begin();
    job_begin(fuzz_byte(&rest));
    memset(clients, 0, sizeof clients);
    now = 1000 * ms_ns;
    lines = polls = 0;
    liar_in = false;
    path_said = size > 0 && memmem(data, size, path, sizeof path - 1) != NULL;
    virtual_clock(clock_now, NULL);
    if (world.job.split.mode == AQ_SPLIT_GLOBAL) /* a client that comes later is refused, as it should */
        for (int k = 0; k < HONEST; k++)
            client_joins(k);
    bool again = serve(&config);
    for (int run = 1; again && run < RUNS_MAX; run++)
        again = serve(&config);
    AQ_ASSERT(!again);
    /* Who was there for long enough hears the end. */
    for (int k = 0; k < HONEST && polls > 10; k++)
        AQ_ASSERT(clients[k].ended || clients[k].out);
    fuzz_told(liar_in);
    virtual_clock(NULL, NULL);
    return 0;
}
