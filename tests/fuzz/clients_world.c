/* clients_world.c -- see the header. */
#include "clients_world.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "fuzz.h"
#include "split_labels.h"
#include "split_lengths.h"

enum { PID_FIRST = 1 << 24, FD_FIRST = 1 << 20, FD_LISTENER = FD_FIRST - 1, FD_OTHER = FD_FIRST - 3 };

struct world world;
const char certificates[SLOTS] = {'a', 'b', 'c', 'c', 'd', 's', 0};
const uint64_t plan_hash = 0x0123456789abcdefULL;
const char root[] = "/srv/own/run";

/* A connection of a certificate, or the channel of a launcher: the server's end. */
struct aq_control {
    int slot; /* -1: a launcher's */
    struct aq_tls_name peer;
    bool says; /* a launcher's: it has a line */
};

static struct aq_control *opened; /* the channel whose launcher starts next */

int world_index(char name)
{
    return name >= 'a' && name < 'a' + NAMES ? name - 'a' : 0;
}

static void slot_clear(struct slot *slot)
{
    for (uint32_t i = 0; i < slot->count; i++)
        json_decref(slot->queue[i]);
    slot->count = 0;
}

void slot_open(int k)
{
    struct slot *slot = &world.slots[k];
    if (slot->open || slot->control) return;
    slot_clear(slot);
    *slot = (struct slot){.open = true, .waits = true};
}

void slot_say(int k, json_t *line)
{
    struct slot *slot = &world.slots[k];
    if (slot->open && slot->count < QUEUE && json_is_object(line))
        slot->queue[slot->count++] = line;
    else
        json_decref(line);
}

void world_over(void)
{
    for (int k = 0; k < SLOTS; k++) {
        AQ_ASSERT(!world.slots[k].control);
        slot_clear(&world.slots[k]);
        world.slots[k] = (struct slot){0};
    }
    for (uint32_t i = 0; i < world.child_count; i++)
        AQ_ASSERT(!world.children[i].lives);
    for (int i = 0; i < NAMES; i++)
        AQ_ASSERT(!world.launches[i]);
}

void world_begin(void)
{
    for (int k = 0; k < SLOTS; k++)
        slot_clear(&world.slots[k]);
    json_decref(world.state);
    world = (struct world){0};
}

/* ---- connections ---- */

enum aq_status __wrap_aq_control_open(int fd, struct aq_control **out);
enum aq_status __wrap_aq_control_open_stranger(int fd, struct aq_control **out);
void __wrap_aq_control_close(struct aq_control *control);
void __wrap_aq_control_secure(struct aq_control *control, struct aq_tls_session *session);
enum aq_status __wrap_aq_control_check(struct aq_control *control);
int __wrap_aq_control_fd(const struct aq_control *control);
void __wrap_aq_control_limit(struct aq_control *control, size_t bytes);
void __wrap_aq_control_queue(struct aq_control *control, size_t bytes);
size_t __wrap_aq_control_waiting(const struct aq_control *control);
bool __wrap_aq_control_certified(const struct aq_control *control);
const struct aq_tls_name *__wrap_aq_control_peer(const struct aq_control *control);
enum aq_status __wrap_aq_control_send(struct aq_control *control, json_t *message);
enum aq_status __wrap_aq_control_push(struct aq_control *control);
enum aq_status __wrap_aq_control_flush(struct aq_control *control, uint64_t deadline_ns);
bool __wrap_aq_control_pending(const struct aq_control *control);
enum aq_status __wrap_aq_control_receive(struct aq_control *control, uint64_t deadline_ns, json_t **out);
enum aq_status __wrap_aq_control_listen(const char *address, bool far, int *fd, uint16_t *port);
enum aq_status __wrap_aq_control_keep_alive(int fd);
enum aq_status __wrap_aq_tls_open(const char *folder, enum aq_tls_role role, uint32_t stage, struct aq_tls **out);
void __wrap_aq_tls_close(struct aq_tls *tls);
enum aq_status __wrap_aq_tls_session_open(struct aq_tls *tls, int fd, bool accepts, const struct aq_tls_name *peer,
                                          const char *who, struct aq_tls_session **out);

static struct aq_control *control_new(int slot)
{
    struct aq_control *control = calloc(1, sizeof *control);
    if (!control) abort();
    *control = (struct aq_control){.slot = slot};
    if (slot < 0) return control;
    control->peer.role = certificates[slot] == 's' ? AQ_TLS_STAGE : AQ_TLS_SITE;
    control->peer.host[0] = certificates[slot];
    return control;
}

/* The channel of a turn's launcher. aq_child_start, which comes next, says whose. */
enum aq_status __wrap_aq_control_open(int fd, struct aq_control **out)
{
    AQ_ASSERT(fd == FD_OTHER);
    *out = opened = control_new(-1);
    return AQ_OK;
}

enum aq_status __wrap_aq_control_open_stranger(int fd, struct aq_control **out)
{
    struct slot *slot = &world.slots[fd - FD_FIRST];
    *out = slot->control = control_new(fd - FD_FIRST);
    return AQ_OK;
}

void __wrap_aq_control_close(struct aq_control *control)
{
    if (!control) return;
    if (control->slot >= 0) {
        struct slot *slot = &world.slots[control->slot];
        slot->control = NULL;
        slot->open = slot->waits = false;
    } else {
        for (int i = 0; i < NAMES; i++)
            if (world.launches[i] == control) world.launches[i] = NULL;
    }
    free(control);
}

void __wrap_aq_control_secure(struct aq_control *control, struct aq_tls_session *session)
{
    (void)control, (void)session;
}

enum aq_status __wrap_aq_control_check(struct aq_control *control)
{
    (void)control;
    return AQ_OK;
}

int __wrap_aq_control_fd(const struct aq_control *control)
{
    return control->slot >= 0 ? FD_FIRST + control->slot : FD_OTHER;
}

void __wrap_aq_control_limit(struct aq_control *control, size_t bytes)
{
    (void)control, (void)bytes;
}

void __wrap_aq_control_queue(struct aq_control *control, size_t bytes)
{
    (void)control, (void)bytes;
}

size_t __wrap_aq_control_waiting(const struct aq_control *control)
{
    return control->slot >= 0 && world.slots[control->slot].deaf ? SPLIT_QUEUE_BYTES / 2 : 0;
}

bool __wrap_aq_control_certified(const struct aq_control *control)
{
    return control->peer.host[0] != 0;
}

const struct aq_tls_name *__wrap_aq_control_peer(const struct aq_control *control)
{
    return control->peer.host[0] ? &control->peer : NULL;
}

enum aq_status __wrap_aq_control_send(struct aq_control *control, json_t *message)
{
    enum aq_status status = AQ_OK;
    AQ_ASSERT(json_is_object(message));
    if (control->slot >= 0) {
        const struct slot *slot = &world.slots[control->slot];
        if (!slot->open) status = AQ_CLOSED;
        if (slot->open && slot->deaf) status = AQ_TIMEOUT;
        if (status == AQ_OK && !world.dead) world_hears(control->slot, message);
    }
    json_decref(message);
    return status;
}

enum aq_status __wrap_aq_control_push(struct aq_control *control)
{
    (void)control;
    return AQ_OK;
}

enum aq_status __wrap_aq_control_flush(struct aq_control *control, uint64_t deadline_ns)
{
    (void)control, (void)deadline_ns;
    return AQ_OK;
}

bool __wrap_aq_control_pending(const struct aq_control *control)
{
    (void)control;
    return false;
}

enum aq_status __wrap_aq_control_receive(struct aq_control *control, uint64_t deadline_ns, json_t **out)
{
    (void)deadline_ns;
    if (control->slot < 0) {
        if (!control->says) return AQ_AGAIN;
        control->says = false;
        *out = json_pack("{s:s, s:b, s:s}", "op", "open", "launcher", 1, "text", "a line of the launcher");
        return AQ_OK;
    }
    struct slot *slot = &world.slots[control->slot];
    if (certificates[control->slot] == 0) return slot->open ? AQ_AGAIN : AQ_CLOSED; /* its handshake never ends */
    if (slot->count == 0) return slot->open ? AQ_AGAIN : AQ_CLOSED;
    *out = slot->queue[0];
    memmove(slot->queue, slot->queue + 1, --slot->count * sizeof *slot->queue);
    return AQ_OK;
}

enum aq_status __wrap_aq_control_listen(const char *address, bool far, int *fd, uint16_t *port)
{
    (void)address, (void)far;
    *fd = FD_LISTENER;
    *port = 1;
    return AQ_OK;
}

enum aq_status __wrap_aq_control_keep_alive(int fd)
{
    (void)fd;
    return AQ_OK;
}

enum aq_status __wrap_aq_tls_open(const char *folder, enum aq_tls_role role, uint32_t stage, struct aq_tls **out)
{
    (void)folder, (void)role, (void)stage;
    *out = NULL;
    return AQ_OK;
}

void __wrap_aq_tls_close(struct aq_tls *tls)
{
    (void)tls;
}

enum aq_status __wrap_aq_tls_session_open(struct aq_tls *tls, int fd, bool accepts, const struct aq_tls_name *peer,
                                          const char *who, struct aq_tls_session **out)
{
    (void)tls, (void)fd, (void)accepts, (void)who;
    AQ_ASSERT(peer->role == AQ_TLS_SITE);
    *out = NULL;
    return AQ_OK;
}

/* ---- the system ---- */

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);
int __wrap_close(int fd);
int __real_close(int fd);
ssize_t __wrap_read(int fd, void *bytes, size_t count);
ssize_t __real_read(int fd, void *bytes, size_t count);
int __wrap_kill(pid_t pid, int number);
pid_t __wrap_waitpid(pid_t pid, int *how, int options);
int __wrap_socketpair(int family, int type, int protocol, int out[2]);
enum aq_status __wrap_aq_child_start(const struct aq_child *child, const char *what, pid_t *pid);

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
    (void)flags;
    AQ_ASSERT(fd == FD_LISTENER);
    for (int k = 0; k < SLOTS; k++) {
        if (!world.slots[k].waits) continue;
        struct sockaddr_in from = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(1000 + k))};
        from.sin_addr.s_addr = htonl(0x7f000001u + (uint32_t)k / 2);
        memcpy(address, &from, sizeof from);
        *bytes = sizeof from;
        world.slots[k].waits = false;
        return FD_FIRST + k;
    }
    errno = EAGAIN;
    return -1;
}

int __wrap_close(int fd)
{
    return fd >= FD_OTHER ? 0 : __real_close(fd);
}

ssize_t __wrap_read(int fd, void *bytes, size_t count)
{
    if (fd != FD_SIGNALS) return __real_read(fd, bytes, count);
    AQ_ASSERT(count == sizeof(struct signalfd_siginfo));
    if (!world.stop_asked) return 0;
    world.stop_asked = false;
    memset(bytes, 0, count);
    return (ssize_t)count;
}

struct child *child_of(pid_t pid)
{
    AQ_ASSERT(pid >= PID_FIRST && (uint32_t)(pid - PID_FIRST) < world.child_count);
    return &world.children[pid - PID_FIRST];
}

int __wrap_kill(pid_t pid, int number)
{
    (void)number;
    child_of(pid)->lives = false;
    return 0;
}

pid_t __wrap_waitpid(pid_t pid, int *how, int options)
{
    struct child *child = child_of(pid);
    AQ_ASSERT(options == WNOHANG);
    if (child->lives) return 0;
    if (how) *how = 0;
    child->of = 0;
    return pid;
}

int __wrap_socketpair(int family, int type, int protocol, int out[2])
{
    (void)family, (void)type, (void)protocol;
    out[0] = out[1] = FD_OTHER;
    return 0;
}

struct child *child_running(char name)
{
    for (uint32_t i = 0; i < world.child_count; i++)
        if (world.children[i].of == name && world.children[i].lives) return &world.children[i];
    return NULL;
}

void launch_says(char name)
{
    struct aq_control *launch = world.launches[world_index(name)];
    if (launch) launch->says = true;
}

char control_name(const struct aq_control *control)
{
    return control->peer.host[0];
}

/* The name in ".../clients/NAME". */
static char name_in(const char *path)
{
    const char *at = strstr(path, "/clients/");
    AQ_ASSERT(at && at[9] >= 'a' && at[9] < 'a' + NAMES && (at[10] == 0 || at[10] == '/'));
    return at[9];
}

enum aq_status __wrap_aq_child_start(const struct aq_child *child, const char *what, pid_t *pid)
{
    (void)what;
    AQ_ASSERT(strcmp(child->arguments[3], "--run") == 0);
    const char name = name_in(child->arguments[4]);
    AQ_ASSERT(!child_running(name));
    if (world.child_count == CHILDREN) {
        *pid = 0;
        return aq_fail(AQ_IO, "fuzz", "cannot start %s", root);
    }
    world.children[world.child_count] = (struct child){.of = name, .lives = true};
    *pid = PID_FIRST + (pid_t)world.child_count++;
    world.launches[world_index(name)] = opened;
    return AQ_OK;
}

/* ---- plans ---- */

enum aq_status __wrap_aq_split_job_open(const struct aq_split_asked *asked, struct aq_split_job *out);
void __wrap_aq_split_job_close(struct aq_split_job *job);
void __wrap_aq_job_close(struct aq_job *job);
enum aq_status __wrap_aq_job_load(const char *path, const char *const *sets, uint32_t count, struct aq_job **out);
enum aq_status __wrap_aq_plan_open(const struct aq_job *job, struct aq_plan **out);
uint64_t __wrap_aq_plan_hash(const struct aq_plan *plan);
enum aq_status __wrap_aq_plan_manifest(const struct aq_plan *plan, char **text);
uint64_t __wrap_aq_split_part_bytes_max(const struct aq_plan *plan, uint32_t rank);

static enum aq_status plan_new(const struct aq_job_facts *facts, uint64_t all, struct aq_plan **out)
{
    static const struct aq_plan_stage stages[3];
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct aq_plan), &memory));
    struct aq_plan *plan = memory;
    *plan = (struct aq_plan){.job = &world.job, .facts = *facts, .stage_count = 3, .stages = stages};
    plan->model.vocabulary = facts->vocabulary;
    plan->model.labels = facts->labels;
    plan->steps_per_epoch = ((all ? all : facts->train_samples) + BATCH - 1) / BATCH;
    plan->steps = plan->steps_per_epoch * ROUNDS;
    *out = plan;
    return AQ_OK;
}

enum aq_status __wrap_aq_split_job_open(const struct aq_split_asked *asked, struct aq_split_job *out)
{
    static const struct aq_job_stage middles[3] = {{.device = "cpu"}, {.device = "cpu"}, {.device = "cpu"}};
    world.job.data.kind = "tsv"; /* whose samples may have lengths */
    world.job.pipeline.stages = middles;
    *out = (struct aq_split_job){.job = &world.job};
    if (!asked->client) return AQ_OK;
    AQ_ASSERT(name_in(asked->run) == asked->client[0]);
    if (asked->facts->train_samples % 97 == 96)
        return aq_fail(AQ_INVAL, "fuzz", "%s needs more memory than this machine has", root);
    return plan_new(asked->facts, asked->share ? asked->share->all : 0, &out->plan);
}

void __wrap_aq_split_job_close(struct aq_split_job *job)
{
    aq_free(job->plan);
    *job = (struct aq_split_job){0};
}

void __wrap_aq_job_close(struct aq_job *job)
{
    AQ_ASSERT(!job || job == &world.job);
}

enum aq_status __wrap_aq_job_load(const char *path, const char *const *sets, uint32_t count, struct aq_job **out)
{
    (void)path, (void)sets, (void)count;
    *out = &world.job;
    return AQ_OK;
}

enum aq_status __wrap_aq_plan_open(const struct aq_job *job, struct aq_plan **out)
{
    const struct aq_job_facts facts = {.vocabulary = 10, .train_samples = SAMPLES};
    AQ_ASSERT(job == &world.job);
    return plan_new(&facts, 0, out);
}

uint64_t __wrap_aq_plan_hash(const struct aq_plan *plan)
{
    (void)plan;
    return plan_hash;
}

enum aq_status __wrap_aq_plan_manifest(const struct aq_plan *plan, char **text)
{
    static const char manifest[] = "data:\n  train: \"/srv/own/data.txt\"\noutput: {path: \"/srv/own/run\"}\n";
    void *memory;
    (void)plan;
    AQ_TRY(aq_alloc(sizeof manifest, &memory));
    memcpy(memory, manifest, sizeof manifest);
    *text = memory;
    return AQ_OK;
}

uint64_t __wrap_aq_split_part_bytes_max(const struct aq_plan *plan, uint32_t rank)
{
    (void)plan;
    AQ_ASSERT(rank == 0 || rank == 2);
    return BYTES_MAX;
}

/* ---- the disk ---- */

enum aq_status __wrap_aq_owned_claim_run(const char *path, int make, void *owner, bool *checkpointed);
enum aq_status __wrap_aq_run_lock(const char *folder, int *fd);
enum aq_status __wrap_aq_run_make_folder(const char *path);
enum aq_status __wrap_aq_run_mark_read(const char *checkpoint, struct aq_run_mark *out);
enum aq_status __wrap_aq_json_replace(const char *path, json_t *json, size_t flags);
enum aq_status __wrap_aq_file_load(const char *folder, const char *name, size_t most, char **bytes, size_t *count);
enum aq_status __wrap_aq_file_replace(const char *folder, const char *name, mode_t mode, const void *bytes,
                                      size_t count);
enum aq_status __wrap_aq_file_open(const char *folder, const char *name, int how, int *fd);
enum aq_status __wrap_aq_file_remove(const char *folder, const char *name);
enum aq_status __wrap_aq_split_copy(const char *from, const char *to);
enum aq_status __wrap_aq_split_out_open(struct aq_split_out *out, const char *path, const char *word, uint32_t rank);
enum aq_status __wrap_aq_split_out_line(struct aq_split_out *out, const char *key, json_t **line, bool *last);
enum aq_status __wrap_aq_split_in_open(struct aq_split_in *in);
enum aq_status __wrap_aq_split_in_piece(struct aq_split_in *in, const char *path, uint64_t offset, const char *data,
                                        uint64_t *bytes);
enum aq_status __wrap_aq_split_in_done(struct aq_split_in *in, const char *path);
void __wrap_aq_split_in_close(struct aq_split_in *in);
enum aq_status __wrap_aq_split_labels_take(const struct aq_plan *plan, const char *folder, char *why);
enum aq_status __wrap_aq_split_lengths_take(const struct aq_plan *plan, const char *text, const char *folder,
                                            const char *name, bool began, char *why);
enum aq_status __wrap_turn_check(const struct server *server, const struct site *site, const char *ends,
                                 const char *middle, char *why);
enum aq_status __wrap_weights_begin(const struct server *server, const struct aq_plan *plan);
enum aq_status __wrap_weights_average(const struct server *server, const struct aq_plan *plan, uint32_t rank, int to);

/* A write. The disk fails once, at the moment that the input says. */
static enum aq_status disk(void)
{
    if (world.dead) return AQ_OK;
    if (world.disk_fails == 0 || --world.disk_fails > 0) return AQ_OK;
    world.disk_failed = true;
    return aq_fail(AQ_NOSPC, "fuzz", "no room in %s", root);
}

enum aq_status __wrap_aq_owned_claim_run(const char *path, int make, void *owner, bool *checkpointed)
{
    (void)make, (void)owner, (void)checkpointed;
    AQ_ASSERT(strcmp(path, root) == 0);
    return AQ_OK;
}

enum aq_status __wrap_aq_run_lock(const char *folder, int *fd)
{
    (void)folder;
    *fd = FD_OTHER;
    return AQ_OK;
}

enum aq_status __wrap_aq_run_make_folder(const char *path)
{
    AQ_ASSERT(strncmp(path, root, sizeof root - 1) == 0 && !strstr(path, ".."));
    return AQ_OK;
}

enum aq_status __wrap_aq_run_mark_read(const char *checkpoint, struct aq_run_mark *out)
{
    *out = (struct aq_run_mark){.step = world.marks[world_index(name_in(checkpoint))]};
    return out->step ? AQ_OK : AQ_NOTFOUND;
}

enum aq_status __wrap_aq_json_replace(const char *path, json_t *json, size_t flags)
{
    (void)path, (void)flags;
    const enum aq_status status = disk();
    AQ_ASSERT(json_is_object(json));
    if (status != AQ_OK || world.dead) {
        json_decref(json);
        return status;
    }
    json_decref(world.state);
    world.state = json;
    world.dead = world.dies > 0 && --world.dies == 0;
    return AQ_OK;
}

enum aq_status __wrap_aq_file_load(const char *folder, const char *name, size_t most, char **bytes, size_t *count)
{
    (void)folder, (void)name;
    void *memory;
    if (!world.state) return AQ_NOTFOUND;
    char *text = json_dumps(world.state, 0);
    AQ_ASSERT(text && strlen(text) <= most);
    AQ_TRY(aq_alloc(strlen(text) + 1, &memory));
    *count = strlen(text);
    memcpy(memory, text, *count + 1);
    free(text);
    *bytes = memory;
    return AQ_OK;
}

enum aq_status __wrap_aq_file_replace(const char *folder, const char *name, mode_t mode, const void *bytes,
                                      size_t count)
{
    (void)folder, (void)name, (void)mode, (void)bytes, (void)count;
    return disk();
}

/* The log of a turn's launcher. */
enum aq_status __wrap_aq_file_open(const char *folder, const char *name, int how, int *fd)
{
    (void)folder, (void)name, (void)how;
    *fd = FD_OTHER;
    return how == AQ_FILE_APPEND ? AQ_OK : AQ_NOTFOUND;
}

enum aq_status __wrap_aq_file_remove(const char *folder, const char *name)
{
    (void)folder, (void)name;
    return AQ_OK;
}

enum aq_status __wrap_aq_split_copy(const char *from, const char *to)
{
    AQ_ASSERT(!strstr(from, "..") && !strstr(to, ".."));
    return disk();
}

enum aq_status __wrap_aq_split_out_open(struct aq_split_out *out, const char *path, const char *word, uint32_t rank)
{
    AQ_ASSERT(strncmp(path, root, sizeof root - 1) == 0);
    *out = (struct aq_split_out){.fd = FD_OTHER, .rank = rank, .of = FILE_BYTES, .word = word};
    return AQ_OK;
}

enum aq_status __wrap_aq_split_out_line(struct aq_split_out *out, const char *key, json_t **line, bool *last)
{
    const uint64_t left = out->of - out->at, take = left < AQ_SPLIT_PIECE_BYTES ? left : AQ_SPLIT_PIECE_BYTES;
    AQ_ASSERT(out->at < out->of);
    *line = json_pack("{s:s, s:I, s:I, s:I, s:s}", key, out->word, "rank", (json_int_t)out->rank, "offset",
                      (json_int_t)out->at, "of", (json_int_t)out->of, "data", "AAAA");
    out->at += take;
    *last = out->at == out->of;
    return AQ_OK;
}

enum aq_status __wrap_aq_split_in_open(struct aq_split_in *in)
{
    static char buffer[8];
    *in = (struct aq_split_in){.fd = -1, .buffer = buffer};
    return AQ_OK;
}

/* A character of the text stands for a byte, and "M" for a whole piece. */
enum aq_status __wrap_aq_split_in_piece(struct aq_split_in *in, const char *path, uint64_t offset, const char *data,
                                        uint64_t *bytes)
{
    AQ_ASSERT(in->buffer && strncmp(path, root, sizeof root - 1) == 0);
    if (!data[0] || strlen(data) > AQ_SPLIT_PIECE_BYTES) return aq_fail(AQ_PROTO, "fuzz", "no base64");
    if (offset == 0) in->fd = FD_OTHER;
    if (in->fd == -1) return aq_fail(AQ_PROTO, "fuzz", "a piece came before the first one");
    *bytes = strcmp(data, "M") == 0 ? AQ_SPLIT_PIECE_BYTES : strlen(data);
    return disk();
}

enum aq_status __wrap_aq_split_in_done(struct aq_split_in *in, const char *path)
{
    (void)path;
    in->fd = -1;
    return disk();
}

void __wrap_aq_split_in_close(struct aq_split_in *in)
{
    in->fd = -1;
    in->buffer = NULL;
}

enum aq_status __wrap_aq_split_labels_take(const struct aq_plan *plan, const char *folder, char *why)
{
    const char name = folder[strlen(folder) - 1];
    (void)plan;
    if (!world.refuse_files || name < 'c') return AQ_OK; /* labels of a and b are right */
    world.refuse_files = false;
    snprintf(why, AQ_SPLIT_TEXT_BYTES, "has other labels than before");
    return AQ_MISMATCH;
}

enum aq_status __wrap_aq_split_lengths_take(const struct aq_plan *plan, const char *text, const char *folder,
                                            const char *name, bool began, char *why)
{
    (void)began;
    AQ_ASSERT(plan->facts.lengths_digest && text && strncmp(folder, root, sizeof root - 1) == 0 && strlen(name) == 1);
    if (!world.refuse_files || name[0] < 'c') return disk();
    world.refuse_files = false;
    snprintf(why, AQ_SPLIT_TEXT_BYTES, "its lengths are refused");
    return AQ_MISMATCH;
}

enum aq_status __wrap_turn_check(const struct server *server, const struct site *site, const char *ends,
                                 const char *middle, char *why)
{
    (void)server, (void)ends, (void)middle;
    AQ_ASSERT(world.marks[world_index(site->name[0])] == site->until);
    if (world.dead) return AQ_CORRUPT;
    if (!world.refuse_files) {
        world.files[world_index(site->name[0])]++;
        return AQ_OK;
    }
    world.refuse_files = false;
    snprintf(why, AQ_SPLIT_TEXT_BYTES, "the weights of its turn are refused: stage-0.safetensors");
    return AQ_CORRUPT;
}

enum aq_status __wrap_weights_begin(const struct server *server, const struct aq_plan *plan)
{
    (void)server, (void)plan;
    return disk();
}

enum aq_status __wrap_weights_average(const struct server *server, const struct aq_plan *plan, uint32_t rank, int to)
{
    AQ_ASSERT(plan && rank < 3 && to == (server->weights == 0 ? 1 : 0));
    return disk();
}

/* ---- what is left out ---- */

enum aq_status __wrap_sums_open(struct server *server);
void __wrap_sums_close(struct server *server);
void __wrap_sums_serve(struct server *server);
void __wrap_sums_forget(struct server *server);
uint32_t __wrap_sums_polls(struct server *server, struct pollfd *fds);
enum aq_status __wrap_sums_path(const struct server *server, char *out);
enum aq_status __wrap_caches_wipe(struct server *server, bool all);
enum aq_status __wrap_shown_open(struct server *server);
void __wrap_shown_end(struct server *server, enum aq_status status);
void __wrap_shown_close(struct server *server);
enum aq_status __wrap_report_leave(const struct server *server);
enum aq_status __wrap_model_leave(const struct server *server);
void __wrap_aq_progress_say(struct aq_progress *progress, const char *format, ...);

enum aq_status __wrap_sums_open(struct server *server)
{
    (void)server;
    return AQ_OK;
}

void __wrap_sums_close(struct server *server)
{
    (void)server;
}

void __wrap_sums_serve(struct server *server)
{
    (void)server;
}

void __wrap_sums_forget(struct server *server)
{
    (void)server;
}

uint32_t __wrap_sums_polls(struct server *server, struct pollfd *fds)
{
    (void)server, (void)fds;
    return 0;
}

enum aq_status __wrap_sums_path(const struct server *server, char *out)
{
    (void)server;
    out[0] = 0;
    return AQ_OK;
}

enum aq_status __wrap_caches_wipe(struct server *server, bool all)
{
    (void)server, (void)all;
    return AQ_OK;
}

enum aq_status __wrap_shown_open(struct server *server)
{
    (void)server;
    return AQ_OK;
}

void __wrap_shown_end(struct server *server, enum aq_status status)
{
    (void)server, (void)status;
}

void __wrap_shown_close(struct server *server)
{
    (void)server;
}

enum aq_status __wrap_report_leave(const struct server *server)
{
    (void)server;
    return AQ_OK;
}

enum aq_status __wrap_model_leave(const struct server *server)
{
    (void)server;
    return AQ_OK;
}

void __wrap_aq_progress_say(struct aq_progress *progress, const char *format, ...)
{
    char text[2048];
    va_list arguments;
    (void)progress;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (getenv("AQ_FUZZ_TELL")) fprintf(stderr, "%s\n", text);
    for (const char *at = text; *at; at++)
        AQ_ASSERT((unsigned char)*at >= ' ');
}
