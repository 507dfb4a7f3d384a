/*
 * split_turn.c -- turns: the offer, the launcher of a turn, and its close.
 *
 * split_round.c decides whose turn it is. If a turn's client disconnects, the server waits for split.wait, and the turn
 * resumes from the newest checkpoint that both have; else it is missed, and the weights from before it stay. A client
 * affects only its own turn: its lines and files are checked first (split_session.c, launcher_bounds.c,
 * split_weights.c), and take effect in one step (state_commit).
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "split_labels.h"
#include "split_lengths.h"
#include "split_part.h"
#include "split_private.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;
static const char *const AREA = "split";
enum { LAST_BYTES = 16 << 10, HALT_S = 12, PUMP_LINES = 256, GUEST_FD = 10 };

/* ---- the end of a turn, one way or another ---- */

void turn_halt(struct site *site)
{
    aq_control_close(site->launch);
    site->launch = NULL;
    if (site->pid == 0) return;
    kill(site->pid, SIGTERM);
    const uint64_t again_ns = aq_clock_after(second_ns), deadline_ns = aq_clock_after(HALT_S * second_ns);
    bool twice = false;
    while (site->pid && aq_clock_ns() < deadline_ns) {
        const struct timespec moment = {.tv_nsec = 5 * 1000 * 1000};
        if (waitpid(site->pid, NULL, WNOHANG) != 0) site->pid = 0;
        if (site->pid && !twice && aq_clock_ns() >= again_ns) twice = kill(site->pid, SIGTERM) == 0;
        if (site->pid) nanosleep(&moment, NULL);
    }
    if (site->pid) {
        kill(site->pid, SIGKILL);
        while (waitpid(site->pid, NULL, 0) == -1 && errno == EINTR)
            continue;
    }
    site->pid = 0;
}

/* When a client has to have given the answer that it owes. */
static uint64_t answer_due(const struct server *server)
{
    const uint64_t silence_ns = server->job->control.silence_ns_max;
    return aq_clock_after(silence_ns ? silence_ns : SPLIT_ANSWER_S * second_ns);
}

/* Its turn has failed, or was left: a few times from one checkpoint, and it is missed (turn_due). */
static void count_try(struct site *site)
{
    if (site->mark > site->tried_mark) site->tries = 0;
    site->tried_mark = site->mark;
    site->tries++;
}

static void no_files(struct site *site)
{
    aq_split_out_close(&site->out);
    aq_split_in_close(&site->in);
    site->sends = false;
}

void turn_away(struct server *server, struct site *site, const char *why)
{
    char text[AQ_SPLIT_TEXT_BYTES];
    if (!site->control) return;
    ahead_ends(server, site);
    server_say(server, "%s (%s) has left: %s", site->name, site->peer, aq_printable_text(why, text, sizeof text));
    aq_control_close(site->control);
    site->control = NULL;
    no_files(site);
    turn_halt(site);
    site->mark = state_mark(server, site);
    if ((site->offered || site->owed) && !site->failed) count_try(site);
    site->failed = false;
    if (site->until || site->owed) snprintf(site->why, sizeof site->why, "%s", text);
    site->offered = site->owed = false;
    site->deadline_ns = AQ_NEVER;
}

/* The reason why a client closed its connection: it may have sent one before it closed. */
static const char *last_word(struct site *site, const char *otherwise)
{
    json_t *line;
    for (int i = 0; i < PUMP_LINES && aq_control_receive(site->control, 0, &line) == AQ_OK; i++) {
        enum aq_split_act act;
        const bool heard = aq_split_hear(&site->session, line, &act) == AQ_OK;
        json_decref(line);
        if (!heard) break;
        if (act == AQ_SPLIT_LEAVE) return site->session.why;
    }
    return otherwise;
}

bool turn_tell(struct server *server, struct site *site, json_t *line)
{
    if (!site->control) {
        json_decref(line);
        return false;
    }
    const enum aq_status status = aq_control_send(site->control, line);
    if (status == AQ_TIMEOUT)
        turn_away(server, site, "it reads nothing");
    else if (status != AQ_OK)
        turn_away(server, site, last_word(site, aq_status_text(status)));
    return status == AQ_OK;
}

void server_fails(struct server *server, const char *why)
{
    if (why) server_say(server, "%s", why);
    if (!server->over) aq_printable_text(why ? why : aq_error_text(), server->cause, sizeof server->cause);
    server->over = true;
    server->end = AQ_SPLIT_FAILED;
}

/* The server must not continue from a state that cannot be written. */
void server_save(struct server *server)
{
    if (state_save(server) != AQ_OK) server_fails(server, NULL);
}

void turn_text(const char *why, char out[AQ_SPLIT_TEXT_BYTES])
{
    static const char *const instead = "(a file there)";
    size_t used = 0;
    if (strncmp(why, "plan: ", 6) == 0) why = "the server cannot plan this turn; its own log has the reason";
    while (*why) {
        const size_t word = strcspn(why, " "), blanks = strspn(why + word, " ");
        const bool path = memchr(why, '/', word) != NULL;
        const size_t bytes = path ? strlen(instead) : word;
        if (used + bytes + blanks >= AQ_SPLIT_TEXT_BYTES) break;
        memcpy(out + used, path ? instead : why, bytes);
        memcpy(out + used + bytes, why + word, blanks);
        used += bytes + blanks;
        why += word + blanks;
    }
    out[used] = 0;
}

/* It has joined, and still sends what the server must know of its samples. */
static bool sends_facts(const struct site *site)
{
    return site->session.state == AQ_SPLIT_LENGTHS || site->session.state == AQ_SPLIT_LABELS;
}

void turn_miss(struct server *server, struct site *site, const char *why)
{
    char text[AQ_SPLIT_TEXT_BYTES], clean[AQ_SPLIT_TEXT_BYTES];
    const bool sends = site->control && sends_facts(site); /* and continues with that */
    ahead_ends(server, site);
    server_say(server, "round %u: %s misses its turn: %s", server->round, site->name,
               aq_printable_text(why[0] ? why : "no reason is known", text, sizeof text));
    if (!sends) no_files(site);
    turn_halt(site);
    site->mark = state_mark(server, site);
    site->round = server->round;
    site->missed++;
    snprintf(site->missed_why, sizeof site->missed_why, "%s", text);
    turn_text(text, clean);
    site->begin = site->until = 0;
    site->tries = 0;
    site->failed = site->offered = site->owed = site->late = false;
    site->deadline_ns = sends ? answer_due(server) : AQ_NEVER;
    if (!sends && turn_tell(server, site, json_pack("{s:s, s:b, s:s}", "event", "over", "done", 0, "text", clean)))
        aq_split_session_go(&site->session, AQ_SPLIT_IDLE);
    server_save(server);
}

/* It fails while its client is there: again from the newest checkpoint. */
static void again(struct server *server, struct site *site, const char *why)
{
    char text[AQ_SPLIT_TEXT_BYTES], clean[AQ_SPLIT_TEXT_BYTES];
    ahead_ends(server, site);
    no_files(site);
    turn_halt(site);
    aq_printable_text(why, text, sizeof text);
    site->mark = state_mark(server, site);
    count_try(site);
    if (site->tries >= SPLIT_TRIES_MAX) {
        turn_miss(server, site, text);
        return;
    }
    server_say(server, "round %u: %s: %s; its turn continues from its checkpoint", server->round, site->name, text);
    site->failed = true;
    site->offered = false;
    site->deadline_ns = AQ_NEVER;
    turn_text(text, clean);
    if (turn_tell(server, site, json_pack("{s:s, s:b, s:s}", "event", "over", "done", 0, "text", clean)))
        aq_split_session_go(&site->session, AQ_SPLIT_IDLE);
}

/* ---- the offer ---- */

static enum aq_status write_manifest(struct server *server, const struct site *site)
{
    char path[AQ_RUN_PATH_BYTES], *manifest;
    AQ_TRY(state_path(server, path, "turns/%s.yaml", site->name));
    AQ_TRY(aq_plan_manifest(site->job.plan, &manifest));
    const enum aq_status status = aq_file_replace(NULL, path, 0600, manifest, strlen(manifest));
    aq_free(manifest);
    return status;
}

/* It is at its turn's beginning, which is with the round's weights and not with its own last ones. */
static bool adopts(const struct site *site)
{
    return site->mark == site->begin;
}

/* The next of the two files that the client starts with. */
static enum aq_status next_out(struct server *server, struct site *site)
{
    char path[AQ_RUN_PATH_BYTES];
    if (ahead_is(server, site) && server->ahead.source) {
        AQ_TRY(ahead_out(server, site, site->outs));
        site->outs++;
        return AQ_OK;
    }
    AQ_TRY(state_path(server, path, "weights/%d/stage-%u.safetensors", server->weights, aq_split_rank(site->outs)));
    return aq_split_out_open(&site->out, path, "ends", aq_split_rank(site->outs++));
}

static void bounds(struct site *site)
{
    for (uint32_t end = 0; end < site->session.ends; end++)
        site->session.bytes_max[end] = aq_split_part_bytes_max(site->job.plan, aq_split_rank(end));
}

static void close_turn(struct server *server, struct site *site)
{
    aq_split_session_go(&site->session, AQ_SPLIT_CLOSING);
    site->failed = false;
    site->deadline_ns = answer_due(server);
    turn_tell(server, site, json_pack("{s:s, s:b, s:I}", "event", "over", "done", 1, "step", (json_int_t)site->until));
}

static uint64_t until_of(const struct server *server, const struct site *site, uint64_t begin)
{
    if (server->job->split.mode == AQ_SPLIT_GLOBAL) return begin + round_steps(server);
    const uint64_t until = begin + server->job->split.epochs * site->job.plan->steps_per_epoch;
    return until < site->job.plan->steps ? until : site->job.plan->steps;
}

/* Its client is told. */
static bool tell_turn(struct server *server, struct site *site, uint64_t begin, uint64_t until, bool adopt)
{
    bounds(site);
    site->outs = 0;
    site->sends = adopt && site->mark < until;
    return turn_tell(server, site,
                     json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "event", "turn", "told",
                               (json_int_t)++site->session.told, "round", (json_int_t)server->round, "of",
                               (json_int_t)server->job->split.rounds, "begin", (json_int_t)begin, "until",
                               (json_int_t)until, "mark", (json_int_t)site->mark, "adopt", adopt));
}

void turn_offer_ahead(struct server *server, struct site *site)
{
    site->mark = state_mark(server, site);
    if (!tell_turn(server, site, site->mark, until_of(server, site, site->mark), true)) return;
    aq_split_session_go(&site->session, AQ_SPLIT_OFFERED);
    site->deadline_ns = answer_due(server);
}

static void begin(struct server *server, struct site *site);

static void offer(struct server *server, struct site *site)
{
    const struct aq_plan *plan = site->job.plan;
    bool ready;
    const bool told = ahead_due(server, site, &ready);
    site->mark = state_mark(server, site);
    if (site->until == 0) {
        site->begin = site->tried_mark = site->mark;
        site->until = until_of(server, site, site->begin);
        if (server->job->split.mode != AQ_SPLIT_GLOBAL && site->begin >= plan->steps) {
            site->round = server->round; /* it has trained all that it was to */
            site->begin = site->until = 0;
            return;
        }
        server_save(server);
    }
    site->offered = true;
    site->sum_ns = aq_clock_ns();
    if (write_manifest(server, site) != AQ_OK) {
        server_fails(server, NULL);
        return;
    }
    if (!told && !tell_turn(server, site, site->begin, site->until, adopts(site))) return;
    if (site->mark == site->until) { /* killed between its last step and its close */
        close_turn(server, site);
        return;
    }
    server_say(server, "round %u of %u: %s trains steps %" PRIu64 " to %" PRIu64, server->round,
               server->job->split.rounds, site->name, site->mark + 1, site->until);
    if (ready) begin(server, site);
    if (told) return;
    aq_split_session_go(&site->session, AQ_SPLIT_OFFERED);
    site->deadline_ns = answer_due(server);
}

/* ---- its launcher ---- */

struct turn_paths {
    char run[AQ_RUN_PATH_BYTES], manifest[AQ_RUN_PATH_BYTES], weights[AQ_RUN_PATH_BYTES], log[AQ_RUN_PATH_BYTES];
    char identity[AQ_RUN_PATH_BYTES], sums[AQ_RUN_PATH_BYTES], lengths[AQ_RUN_PATH_BYTES];
};

static enum aq_status paths_of(const struct server *server, const struct site *site, struct turn_paths *paths)
{
    AQ_TRY(state_path(server, paths->run, "clients/%s", site->name));
    AQ_TRY(state_path(server, paths->identity, "clients/%s/run.json", site->name));
    AQ_TRY(state_path(server, paths->manifest, "turns/%s.yaml", site->name));
    AQ_TRY(round_middle(server, paths->weights));
    AQ_TRY(sums_path(server, paths->sums));
    AQ_TRY(state_path(server, paths->lengths, "lengths/%s.txt", site->name));
    return state_path(server, paths->log, "logs/%s.log", site->name);
}

#define WORD(text) ((char *)(uintptr_t)(text))

static enum aq_status spawn(struct server *server, struct site *site, const struct turn_paths *paths)
{
    char until[24], guest[8], shift[24], updates[24];
    char *arguments[30];
    int count = 0, channel[2], log;
    snprintf(until, sizeof until, "%" PRIu64, site->until);
    snprintf(guest, sizeof guest, "%d", GUEST_FD);
    const char *const words[] = {"aqpipe", "split-turn", paths->manifest, "--run",      paths->run, "--guest",
                                 guest,    "--until",    until,           "--restarts", "0",        "--no-progress"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        arguments[count++] = WORD(words[i]);
    if (access(paths->identity, F_OK) == 0) arguments[count++] = WORD("--resume");
    if (adopts(site)) {
        arguments[count++] = WORD("--adopt");
        arguments[count++] = WORD(paths->weights);
    }
    if (site->job.plan->facts.lengths_digest) {
        arguments[count++] = WORD("--lengths");
        arguments[count++] = WORD(paths->lengths);
    }
    if (server->sums) {
        snprintf(shift, sizeof shift, "%" PRId64, (int64_t)turn_shift(server, site));
        snprintf(updates, sizeof updates, "%" PRId64, (int64_t)(server->steps_before - site->begin));
        const char *const more[] = {"--sums", paths->sums, "--shift", shift, "--updates", updates};
        for (size_t i = 0; i < sizeof more / sizeof *more; i++)
            arguments[count++] = WORD(more[i]);
    }
    arguments[count] = NULL;
    AQ_TRY(aq_file_open(NULL, paths->log, AQ_FILE_APPEND, &log));
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) != 0) {
        close(log);
        return aq_fail_errno(AREA, "cannot open a channel for a turn");
    }
    enum aq_status status = aq_control_open(channel[0], &site->launch);
    if (status == AQ_OK) {
        aq_control_queue(site->launch, SPLIT_QUEUE_BYTES);
        const struct aq_child child = {.program = server->config->program,
                                       .arguments = (const char *const *)arguments,
                                       .fds = {{AQ_CHILD_NULL, 0}, {log, 1}, {log, 2}, {channel[1], GUEST_FD}},
                                       .fd_count = 4,
                                       .session = true, /* Ctrl-C is the server's to hand on */
                                       .dies_by = SIGTERM};
        status = aq_child_start(&child, "the launcher of a turn", &site->pid);
    } else {
        close(channel[0]);
    }
    close(channel[1]);
    close(log);
    return status;
}

static void begin(struct server *server, struct site *site)
{
    static struct turn_paths paths;
    enum aq_status status = paths_of(server, site, &paths);
    if (status == AQ_OK) status = spawn(server, site, &paths);
    if (status != AQ_OK) {
        again(server, site, aq_error_text());
        return;
    }
    aq_split_session_go(&site->session, AQ_SPLIT_TRAINING);
    site->failed = false;
    site->sum_ns = aq_clock_ns();
    site->summing = false;
    site->deadline_ns = AQ_NEVER; /* the launcher watches it (control.silence_max, control.stall_max) */
}

/* The last line that the launcher wrote: why it ended. */
static void last_line(const struct server *server, const struct site *site, char out[AQ_SPLIT_TEXT_BYTES])
{
    char path[AQ_RUN_PATH_BYTES], tail[AQ_SPLIT_TEXT_BYTES];
    int fd;
    snprintf(out, AQ_SPLIT_TEXT_BYTES, "its launcher ended without a result");
    if (state_path(server, path, "logs/%s.log", site->name) != AQ_OK ||
        aq_file_open(NULL, path, AQ_FILE_READ, &fd) != AQ_OK)
        return;
    const off_t end = lseek(fd, 0, SEEK_END), from = end > LAST_BYTES ? end - LAST_BYTES : 0;
    static char text[LAST_BYTES + 1];
    const ssize_t got = lseek(fd, from, SEEK_SET) == from ? aq_read_all(fd, text, LAST_BYTES) : -1;
    close(fd);
    text[got > 0 ? got : 0] = 0;
    for (char *line = text; *line;) {
        char *stop = strchr(line, '\n');
        if (stop) *stop = 0;
        const bool cause = *line && !strstr(line, "continue with: aqpipe resume") && strncmp(line, "aqpipe: ", 8) == 0;
        if (cause) snprintf(tail, sizeof tail, "%s", line + 8);
        if (cause) aq_printable_text(tail, out, AQ_SPLIT_TEXT_BYTES);
        line = stop ? stop + 1 : line + strlen(line);
    }
}

/* The launcher of its turn has ended. how: as waitpid has it. */
static void ended(struct server *server, struct site *site, int how)
{
    char why[AQ_SPLIT_TEXT_BYTES];
    aq_control_close(site->launch);
    site->launch = NULL;
    site->mark = state_mark(server, site);
    if (site->mark == site->until) {
        close_turn(server, site);
        return;
    }
    if (server->stopping) return;
    if (WIFSIGNALED(how)) /* its last line is of what it did before */
        snprintf(why, sizeof why, "its launcher was killed by signal %d", WTERMSIG(how));
    else
        last_line(server, site, why);
    again(server, site, why);
}

/* ---- what comes ---- */

/* Both files of its ends are here: all three stages are looked at, and then they are the newest. */
static void taken(struct server *server, struct site *site)
{
    char ends[AQ_RUN_PATH_BYTES], middle[AQ_RUN_PATH_BYTES], why[AQ_SPLIT_TEXT_BYTES];
    no_files(site); /* nor their buffer: one of each client that ever had a turn would be much */
    enum aq_status status = round_ends(server, site, ends);
    if (status == AQ_OK) status = state_path(server, middle, "clients/%s/checkpoint/%" PRIu64, site->name, site->until);
    if (status != AQ_OK) {
        server_fails(server, NULL);
        return;
    }
    status = turn_check(server, site, ends, middle, why);
    if (status == AQ_NOMEM) {
        server_fails(server, why);
        return;
    }
    if (status != AQ_OK) {
        turn_miss(server, site, why);
        return;
    }
    if (state_commit(server, site) != AQ_OK) {
        server_fails(server, NULL);
        return;
    }
    ahead_committed(server, site);
    server_say(server, "round %u: %s has trained up to step %" PRIu64, server->round, site->name, site->mark);
    site->tries = 0;
    site->offered = site->late = false;
    site->deadline_ns = AQ_NEVER;
    turn_tell(server, site, json_pack("{s:s}", "event", "closed"));
}

/* A part of a file of its ends. AQ_PROTO: it is invalid; others: our own disk. */
static enum aq_status piece(struct server *server, struct site *site, bool *whole)
{
    char path[AQ_RUN_PATH_BYTES];
    const struct aq_split_piece *piece = &site->session.piece;
    const uint32_t end = piece->end, before = site->session.end;
    uint64_t bytes = 0;
    char folder[AQ_RUN_PATH_BYTES], name[32];
    snprintf(name, sizeof name, "stage-%u.safetensors", aq_split_rank(end));
    AQ_TRY(round_ends(server, site, folder));
    AQ_TRY(aq_run_path(folder, name, path));
    if (!site->in.buffer) AQ_TRY(aq_split_in_open(&site->in));
    AQ_TRY(aq_split_in_piece(&site->in, path, piece->offset, piece->data, &bytes));
    AQ_TRY(aq_split_took(&site->session, bytes, whole));
    site->deadline_ns = answer_due(server);
    return *whole || site->session.end != before ? aq_split_in_done(&site->in, path) : AQ_OK;
}

/* A part of its labels; with the last one they are looked at. */
static enum aq_status labels_piece(struct server *server, struct site *site, char why[AQ_SPLIT_TEXT_BYTES])
{
    char folder[AQ_RUN_PATH_BYTES], path[AQ_RUN_PATH_BYTES], name[32];
    const struct aq_split_piece *piece = &site->session.piece;
    const uint32_t before = site->session.end;
    uint64_t bytes = 0;
    bool whole = false;
    snprintf(name, sizeof name, "%s.sent", aq_split_labels_name(piece->end));
    AQ_TRY(state_path(server, folder, "labels/%s", site->name));
    AQ_TRY(aq_run_path(folder, name, path));
    if (!site->in.buffer) AQ_TRY(aq_split_in_open(&site->in));
    AQ_TRY(aq_split_in_piece(&site->in, path, piece->offset, piece->data, &bytes));
    AQ_TRY(aq_split_took(&site->session, bytes, &whole));
    site->deadline_ns = answer_due(server);
    if (whole || site->session.end != before) AQ_TRY(aq_split_in_done(&site->in, path));
    if (!whole) return AQ_OK;
    site->deadline_ns = AQ_NEVER;
    aq_split_in_close(&site->in);
    const enum aq_status status = aq_split_labels_take(site->job.plan, folder, why);
    if (status == AQ_OK) server_say(server, "%s has sent the labels of its samples", site->name);
    site->owed = site->owed && status != AQ_OK;
    return status == AQ_MISMATCH || status == AQ_CORRUPT ? AQ_PROTO : status;
}

/* It has sent all that comes before this: what is due now. */
static void greet_next(struct server *server, struct site *site, bool lengths)
{
    const bool labels = server->job->split.labels == AQ_SPLIT_LABELS_SERVER;
    aq_split_session_go(&site->session, lengths ? AQ_SPLIT_LENGTHS : labels ? AQ_SPLIT_LABELS : AQ_SPLIT_IDLE);
    site->deadline_ns = lengths || labels ? answer_due(server) : AQ_NEVER;
    site->owed = site->owed && (lengths || labels);
}

void turn_greet(struct server *server, struct site *site)
{
    const struct aq_job_facts *facts = &site->join.facts;
    site->session.bytes_max[0] = aq_split_labels_bytes(facts->train_samples);
    site->session.bytes_max[1] = aq_split_labels_bytes(facts->heldout_samples);
    greet_next(server, site, facts->lengths_digest != 0);
}

/* Refuses its line: sends it the reason, and disconnects it. */
void turn_refuse(struct server *server, struct site *site, const char *text)
{
    (void)aq_control_send(site->control, json_pack("{s:s, s:s}", "event", "refused", "text", text));
    (void)aq_control_flush(site->control, aq_clock_after(second_ns));
    turn_away(server, site, text);
}

static void on_labels(struct server *server, struct site *site)
{
    char why[AQ_SPLIT_TEXT_BYTES] = "";
    struct aq_error_hold hold;
    aq_error_hold(&hold);
    const enum aq_status status = labels_piece(server, site, why);
    aq_error_release(&hold);
    const char *text = why[0] ? why : site->session.why[0] ? site->session.why : hold.text;
    if (status == AQ_PROTO)
        turn_refuse(server, site, text);
    else if (status != AQ_OK)
        server_fails(server, text);
}

static void on_lengths(struct server *server, struct site *site)
{
    char folder[AQ_RUN_PATH_BYTES], why[AQ_SPLIT_TEXT_BYTES] = "";
    const bool began = site->turns > 0 || site->until > 0;
    enum aq_status status = state_path(server, folder, "lengths");
    if (status == AQ_OK)
        status = aq_split_lengths_take(site->job.plan, site->session.piece.data, folder, site->name, began, why);
    if (status == AQ_MISMATCH) {
        turn_refuse(server, site, why);
        if (!site->lengths_agreed) aq_split_job_close(&site->job); /* of what it said of its data nothing stays */
    } else if (status != AQ_OK) {
        server_fails(server, NULL);
    } else {
        site->lengths_agreed = true;
        server_say(server, "%s has sent the lengths of its samples, of %u tokens on average", site->name,
                   site->join.facts.lengths_mean);
        greet_next(server, site, false);
    }
}

void turn_line(struct server *server, struct site *site, const json_t *line)
{
    enum aq_split_act act;
    if (aq_split_hear(&site->session, line, &act) != AQ_OK) {
        char text[AQ_SPLIT_WHY_BYTES + 32];
        snprintf(text, sizeof text, "it breaks the protocol: it %s", site->session.why);
        (void)aq_control_send(site->control, json_pack("{s:s, s:s}", "event", "refused", "text", text));
        turn_away(server, site, text);
        return;
    }
    if (isfinite(site->session.epsilon)) {
        site->epsilon = site->session.epsilon;
        site->delta = site->session.delta;
    }
    if (act == AQ_SPLIT_LEAVE) {
        turn_away(server, site, site->session.why);
    } else if (act == AQ_SPLIT_READY) {
        if (!ahead_ready(server, site)) begin(server, site);
    } else if (act == AQ_SPLIT_FORWARD && site->launch) {
        if (aq_control_send(site->launch, json_incref((json_t *)(uintptr_t)line)) == AQ_TIMEOUT)
            again(server, site, "it sends more than its launcher can read");
    } else if (act == AQ_SPLIT_LENGTH) {
        on_lengths(server, site);
    } else if (act == AQ_SPLIT_LABEL) {
        on_labels(server, site);
    } else if (act == AQ_SPLIT_PIECE) {
        struct aq_error_hold hold;
        bool whole = false;
        aq_error_hold(&hold);
        const enum aq_status status = piece(server, site, &whole);
        aq_error_release(&hold);
        if (status == AQ_PROTO)
            turn_away(server, site, site->session.why[0] ? site->session.why : hold.text);
        else if (status != AQ_OK)
            server_fails(server, hold.text);
        else if (whole)
            taken(server, site);
    }
}

static void pump_files(struct server *server, struct site *site)
{
    while (site->sends && site->control && aq_control_waiting(site->control) < AQ_SPLIT_PIECE_BYTES) {
        json_t *line;
        bool last = false;
        enum aq_status status = site->out.fd == -1 ? next_out(server, site) : AQ_OK;
        if (status == AQ_AGAIN || (status == AQ_OK && ahead_waits(server, site))) {
            if (aq_control_waiting(site->control) == 0) site->deadline_ns = AQ_NEVER; /* it owes nothing */
            return;
        }
        if (status == AQ_OK) status = aq_split_out_line(&site->out, "event", &line, &last);
        if (status != AQ_OK) { /* our own file */
            site->sends = false;
            server_fails(server, NULL);
            return;
        }
        if (last) aq_split_out_close(&site->out);
        if (last && site->outs == site->session.ends) site->sends = false;
        site->deadline_ns = answer_due(server);
        if (!turn_tell(server, site, line)) return;
    }
}

void turn_pump(struct server *server, struct site *site)
{
    int how = 0;
    json_t *line;
    pump_files(server, site);
    if (site->launch) (void)aq_control_push(site->launch);
    for (int i = 0; i < PUMP_LINES && site->launch && site->control; i++) {
        const enum aq_status status = aq_control_receive(site->launch, 0, &line);
        if (status == AQ_AGAIN) break;
        if (status != AQ_OK) {
            aq_control_close(site->launch); /* its end is seen below */
            site->launch = NULL;
            break;
        }
        turn_tell(server, site, line);
    }
    if (site->pid && waitpid(site->pid, &how, WNOHANG) == site->pid) {
        site->pid = 0;
        server->wipe_ns = 0; /* of caches that no turn has, it may be one too many */
        ended(server, site, how);
    }
}

/* ---- what is due ---- */

void turn_due(struct server *server, struct site *site)
{
    const uint64_t now = aq_clock_ns();
    if (site->tries >= SPLIT_TRIES_MAX) { /* it comes, and goes */
        turn_miss(server, site, site->why);
        return;
    }
    if (!site->control) { /* it is waited for, once a round */
        if (site->deadline_ns == AQ_NEVER) {
            site->deadline_ns = aq_clock_after(server->job->split.wait_ns);
            site->lates += !site->late;
            site->late = true;
            server_say(server, "round %u: waits for %s", server->round, site->name);
        }
        if (now > site->deadline_ns) turn_miss(server, site, site->why[0] ? site->why : "it is away");
        return;
    }
    site->owed = sends_facts(site);
    if (!site->offered && !site->owed) {
        offer(server, site);
        return;
    }
    if (now > site->deadline_ns) turn_away(server, site, "it has not answered for too long");
}
