/*
 * puppet_worker.c -- a worker that trains nothing: it speaks docs/CONTROL.md section 4 and misbehaves when told to.
 *
 * Its manifest is lines of `steps N`, `mark N` (a checkpoint every N steps), `ms N` (of a step), `pipeline N` (stages
 * of a replica; without it all ranks are one pipeline), `poll N` (ms between looks at rank 0), and `ACTION RANK STEP`:
 *
 *     exit    end with code 7
 *     quit    end with 0 without `done`
 *     abort   die by SIGABRT after a last line
 *     fail    say `failed` (corrupt), end with 1
 *     echo    say `failed` (closed), end with 1
 *     hang    stop reading and reporting, but live: its heartbeat goes on
 *     behind  begin this step only when rank 0 has begun its last one
 *     garble  write bytes that are no JSON
 *     mute    never become ready (step 0)
 *     chatter write 9 MiB to standard error
 *     twice   report a step twice
 *     drop    close the channel and live on
 *     say     send the rest of the line, a JSON object
 *     flood   send it again and again
 *
 * Ranks keep together through a page that they share in the run folder: rank 0 leads, and a stop travels there.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "control.h"
#include "heartbeat.h"
#include "stages/weights.h"

struct page {
    _Atomic uint64_t led;  /* steps that rank 0 has begun; release by rank 0, acquire by the others */
    _Atomic uint64_t last; /* the step after which all stop; 0: none. Written before led            */
};

static struct aq_control *control;
static struct page *page;
static const char *manifest;
static uint32_t rank, ranks, stages; /* stages: of a replica */

static void wait_ms(long ms)
{
    const struct timespec moment = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&moment, NULL);
}

static uint64_t number(const char *key, uint64_t otherwise)
{
    const char *at = strstr(manifest, key);
    return at ? strtoull(at + strlen(key), NULL, 10) : otherwise;
}

/* Is `ACTION rank step` in the manifest? */
static bool told(const char *action, uint64_t step)
{
    char line[64];
    snprintf(line, sizeof line, "%s %u %llu\n", action, rank, (unsigned long long)step);
    return strstr(manifest, line) != NULL;
}

static void say(json_t *message)
{
    if (aq_control_send(control, message) != AQ_OK ||
        aq_control_flush(control, aq_clock_after(20000000000ULL)) != AQ_OK)
        exit(9);
}

static json_t *hear(const char *op)
{
    json_t *message;
    for (;;) {
        if (aq_control_receive(control, aq_clock_after(60000000000ULL), &message) != AQ_OK) exit(9);
        if (aq_control_is(message, "op", op)) return message;
        json_decref(message);
    }
}

static void failed(enum aq_status status, const char *text)
{
    say(json_pack("{s:s, s:s, s:s}", "event", "failed", "status", aq_status_text(status), "text", text));
    exit(1);
}

/* `say RANK STEP LINE`, as often as it stands there; `flood RANK STEP LINE`: without end. */
static void say_told(const char *action, uint64_t step, uint64_t times)
{
    char head[64];
    snprintf(head, sizeof head, "%s %u %llu ", action, rank, (unsigned long long)step);
    for (const char *at = manifest; (at = strstr(at, head)) != NULL;) {
        at += strlen(head);
        for (uint64_t i = 0; i < times; i++)
            say(json_loadb(at, strcspn(at, "\n"), 0, NULL));
    }
}

static void misbehave(uint64_t step)
{
    say_told("say", step, 1);
    say_told("flood", step, UINT64_MAX);
    static char noise[1024];
    if (told("exit", step)) exit(7);
    if (told("quit", step)) exit(0);
    if (told("fail", step)) failed(AQ_CORRUPT, "the puppet was told to fail");
    if (told("echo", step)) failed(AQ_CLOSED, "the link to the next stage closed");
    if (told("abort", step)) {
        fputs("puppet: this is my last line\n\n", stderr);
        abort();
    }
    if (told("hang", step))
        for (;;)
            wait_ms(1000);
    if (told("garble", step) && write(AQ_CONTROL_FD, "no JSON\n", 8) != 8) exit(9);
    if (told("twice", step)) say(json_pack("{s:s, s:I}", "event", "step", "step", (json_int_t)step));
    if (told("drop", step)) {
        close(AQ_CONTROL_FD);
        for (;;)
            wait_ms(1000);
    }
    if (!told("chatter", step)) return;
    memset(noise, 'n', sizeof noise - 1);
    noise[sizeof noise - 1] = '\n';
    for (int i = 0; i < 9 * 1024; i++)
        fwrite(noise, 1, sizeof noise, stderr);
}

static void share(const char *run)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/page", run);
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd == -1 || ftruncate(fd, 4096) != 0) exit(9);
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) exit(9);
    close(fd);
    snprintf(path, sizeof path, "%s/pids", run);
    FILE *pids = fopen(path, "a");
    if (!pids) exit(9);
    fprintf(pids, "%d %d\n", (int)getpid(), (int)getppid());
    fclose(pids);
}

static void checkpoint(const char *folder, uint64_t step)
{
    char path[4096];
    static const char *const metadata[] = {"format", "aqpipe checkpoint 1", "plan_hash", "0000000000001234", NULL};
    snprintf(path, sizeof path, "%s/%llu", folder, (unsigned long long)step);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%llu/stage-%u.safetensors", folder, (unsigned long long)step, rank);
    if (aq_weights_write(path, NULL, 0, metadata) != AQ_OK) exit(9);
    say(json_pack("{s:s, s:I}", "event", "mark", "step", (json_int_t)step));
    json_decref(hear("marked"));
}

/* Rank 0 begins a step when it likes; the others when it has. */
static void keep_together(uint64_t step)
{
    if (rank > 0) {
        const uint64_t awaited = told("behind", step) ? number("steps ", 5) : step;
        while (atomic_load_explicit(&page->led, memory_order_acquire) < awaited)
            wait_ms((long)number("poll ", 1));
        return;
    }
    json_t *message;
    while (aq_control_receive(control, 0, &message) == AQ_OK) {
        if (aq_control_is(message, "op", "stop")) atomic_store_explicit(&page->last, step, memory_order_relaxed);
        json_decref(message);
    }
    atomic_store_explicit(&page->led, step, memory_order_release);
}

static void train(const json_t *start)
{
    const uint64_t steps = number("steps ", 5), every = number("mark ", 0), ms = number("ms ", 2);
    const char *folder = aq_control_text_or(start, "checkpoint", "");
    bool stopped = false;
    for (uint64_t step = aq_control_u64_or(start, "resume", 0) + 1; step <= steps && !stopped; step++) {
        aq_heartbeat_step(step);
        keep_together(step);
        misbehave(step);
        wait_ms((long)ms);
        json_t *line = json_pack("{s:s, s:I, s:I, s:f, s:i, s:I, s:I, s:I}", "event", "step", "step", (json_int_t)step,
                                 "epoch", (json_int_t)((step - 1) / 4), "seconds", (double)ms * 1e-3, "samples", 8,
                                 "link_wait_ns", (json_int_t)(ms * 250000), "forward_bytes",
                                 (json_int_t)(rank % stages + 1 < stages ? 1000 + rank : 0), "backward_bytes",
                                 (json_int_t)(rank % stages > 0 ? 500 : 0));
        if (rank % stages + 1 == stages) json_object_set_new(line, "loss", json_real(4.0 / (double)step));
        say(line);
        stopped = atomic_load_explicit(&page->last, memory_order_relaxed) == step && step < steps;
        if ((every && step % every == 0) || stopped || step == steps) checkpoint(folder, step);
    }
    say(json_pack("{s:s, s:s}", "event", "trace", "text", "{\"name\":\"span\",\"ph\":\"X\"},\n"));
    say(json_pack("{s:s, s:b, s:i, s:i}", "event", "done", "stopped", stopped, "cache_bytes", 100, "memory_bytes",
                  4096));
}

static void listen_for(uint32_t peer)
{
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%u", 1000 + rank);
    say(json_pack("{s:s, s:s, s:i}", "event", "listening", "address", address, "peer", (int)peer));
}

/* As workers do: the later stage listens for the one before it, the lower replica for the higher ones. */
static bool join(void)
{
    uint32_t awaited = rank % stages + 1 < stages;
    if (rank % stages > 0) listen_for(rank - 1);
    for (uint32_t peer = rank % stages; peer < ranks; peer += stages) {
        if (peer > rank) listen_for(peer);
        awaited += peer < rank;
    }
    for (; awaited > 0; awaited--) {
        json_t *message = hear("connect");
        const uint64_t from = aq_control_u64_or(message, "from", ranks);
        json_decref(message);
        if (from != rank + 1 && (from >= rank || from % stages != rank % stages)) return false;
    }
    return true;
}

int main(void)
{
    aq_log_init(-1);
    if (aq_control_open(AQ_CONTROL_FD, &control) != AQ_OK || aq_heartbeat_open() != AQ_OK) return 9;
    json_t *start = hear("start");
    manifest = aq_control_text_or(start, "manifest", "");
    rank = (uint32_t)aq_control_u64_or(start, "rank", 0);
    ranks = (uint32_t)aq_control_u64_or(start, "stages", 1);
    stages = (uint32_t)number("pipeline ", ranks);
    share(aq_control_text_or(start, "run", ""));
    fprintf(stderr, "puppet %u is here\n", rank);
    if (!join()) return 9;
    if (told("mute", 0))
        for (;;)
            wait_ms(1000);
    say(json_pack("{s:s}", "event", "ready"));
    json_decref(hear("go"));
    aq_heartbeat_phase(AQ_PHASE_COMPUTE);
    train(start);
    json_decref(start);
    aq_heartbeat_close();
    aq_control_close(control);
    return 0;
}
