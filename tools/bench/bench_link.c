/*
 * bench_link.c -- `aqpipe bench link`: what a TCP link over loopback does, both ends in this process.
 *
 * Cases: throughput without pacing and the cores that both ends together use for it, the round trip of an empty frame,
 * and the pace that is kept against the pace that is asked. The clock of a pace starts when the first body has come, so
 * that it sees the steady flow and not the connection's first burst. At 10 Mbit/s: how much longer than the wire a
 * small frame takes behind a large one, and when it is acknowledged while the other end sends large ones. Under TLS:
 * throughput, what sealing and opening together cost at 1 Gbit/s beyond the same flow in the clear, and throughput over
 * a relay (net/relay.h, a thread of this process) and its ratio to that without one. Packed: what is
 * left of bodies of 4-bit codes, of Gaussian rows and of rows with a heavy tail, what that costs the two ends together,
 * and the flow at 100 Mbit/s against the same without packing.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "aqsgd/codec.h"
#include "bench.h"
#include "net/link.h"
#include "net/relay.h"
#include "net/tls.h"
#include "owned_folder.h"

enum { WINDOW = 4, EDGE = 0 };
#define SECONDS(s) aq_clock_after((uint64_t)((s)*1e9))

struct ends {
    struct aq_eventcount *eventcount;
    struct aq_tls *const *tls; /* of both ends; NULL: in the clear */
    uint16_t relay;            /* the port of one at which they meet; 0: none */
    struct aq_net *net[2];
    struct aq_link *link[2]; /* 1 sends, 0 receives */
    struct aq_link_config config[2];
    char address[128];
    void *bodies;
    size_t bodies_bytes;
    enum aq_status connected;
};

static void connect_run(void *context)
{
    struct ends *ends = context;
    ends->connected = aq_link_connect(ends->net[1], ends->address, &ends->config[1], SECONDS(10), &ends->link[1]);
}

static enum aq_status meet(struct ends *ends)
{
    struct aq_listener *listener;
    struct aq_thread *thread;
    uint16_t port;
    const char *const filter = ends->tls ? "tls+" : "";
    snprintf(ends->address, sizeof ends->address, "%stcp://127.0.0.1:0", filter);
    if (ends->relay)
        snprintf(ends->address, sizeof ends->address, "%srelay://127.0.0.1:%u?room=%032d", filter, ends->relay, 1);
    AQ_TRY(aq_link_listen(ends->net[0], ends->address, &listener, &port));
    if (!ends->relay) snprintf(ends->address, sizeof ends->address, "%stcp://127.0.0.1:%u", filter, port);
    AQ_TRY(aq_thread_open("connect", connect_run, ends, &thread));
    const enum aq_status accepted = aq_link_accept(listener, &ends->config[0], SECONDS(10), &ends->link[0]);
    aq_thread_close(thread);
    aq_listener_close(listener);
    return accepted != AQ_OK ? accepted : ends->connected;
}

struct setting {
    struct aq_tls *const *tls;
    uint32_t body_bytes;
    double rate_mbps, seconds;
    enum aq_link_entropy entropy;
    uint16_t relay;
    bool heals;
    const uint8_t *bodies; /* WINDOW of them; NULL: zeros */
};

static enum aq_status open_ends(struct ends *ends, const struct setting *setting)
{
    const uint32_t body_bytes = setting->body_bytes;
    struct aq_tls *const *tls = setting->tls;
    *ends = (struct ends){.tls = tls, .relay = setting->relay, .bodies_bytes = (size_t)body_bytes * WINDOW};
    AQ_TRY(aq_eventcount_open(&ends->eventcount));
    AQ_TRY(aq_map(ends->bodies_bytes, &ends->bodies));
    if (setting->bodies) memcpy(ends->bodies, setting->bodies, ends->bodies_bytes);
    for (uint32_t i = 0; i < 2; i++) {
        const struct aq_net_config net = {.eventcount = ends->eventcount, .links_max = 2, .tls = tls ? tls[i] : NULL};
        AQ_TRY(aq_net_open(&net, &ends->net[i]));
        aq_link_config_default(&ends->config[i]);
        ends->config[i].rank = i;
        ends->config[i].peer_rank = 1 - i;
        ends->config[i].edge = EDGE;
        ends->config[i].body_bytes_max = body_bytes;
        ends->config[i].send_frames = WINDOW;
        ends->config[i].receive_slots = WINDOW;
        ends->config[i].rate_mbps = setting->rate_mbps;
        ends->config[i].entropy = setting->entropy;
        if (setting->heals) ends->config[i].outage_ns_max = UINT64_C(10000000000);
    }
    return meet(ends);
}

static void finish_run(void *context)
{
    struct ends *ends = context;
    (void)aq_link_finish(ends->link[1],
                         SECONDS(10)); /* a bench ends in good order where it can; figures are in already */
}

static void close_ends(struct ends *ends)
{
    struct aq_thread *thread = NULL;
    if (ends->link[0] && ends->link[1] && aq_thread_open("finish", finish_run, ends, &thread) == AQ_OK)
        (void)aq_link_finish(ends->link[0], SECONDS(10));
    aq_thread_close(thread);
    for (int i = 0; i < 2; i++)
        aq_link_close(ends->link[i]);
    for (int i = 0; i < 2; i++)
        aq_net_close(ends->net[i]);
    aq_unmap(ends->bodies, ends->bodies_bytes);
    aq_eventcount_close(ends->eventcount);
}

struct flow {
    uint64_t first_ns, last_ns, cpu_ns; /* of the first and the last body, and the CPU time between them */
    uint32_t received;                  /* the first not counted */
};

static enum aq_status flow_on(struct ends *ends, uint32_t body_bytes, double seconds, struct flow *out)
{
    uint32_t in_flight = 0;
    uint64_t n = 0, cpu_ns = 0, end_ns = AQ_NEVER;
    const uint64_t deadline_ns = SECONDS(seconds + 20);
    struct aq_link_event event;
    *out = (struct flow){0};
    for (;;) {
        const uint32_t seen = aq_eventcount_read(ends->eventcount);
        while (aq_link_poll(ends->link[0], &event) == AQ_OK) {
            if (event.kind == AQ_LINK_CLOSED) return event.status;
            if (event.kind != AQ_LINK_RECEIVED) continue;
            out->last_ns = aq_clock_ns();
            aq_link_release(ends->link[0], event.frame.body);
            if (out->first_ns == 0) {
                out->first_ns = out->last_ns;
                cpu_ns = aq_clock_cpu_ns();
                end_ns = aq_clock_after((uint64_t)(seconds * 1e9));
            } else
                out->received++;
        }
        while (aq_link_poll(ends->link[1], &event) == AQ_OK) {
            if (event.kind == AQ_LINK_CLOSED) return event.status;
            if (event.kind == AQ_LINK_SENT) in_flight--;
        }
        if (out->last_ns >= end_ns && out->received > 0) break;
        for (; in_flight < WINDOW; in_flight++, n++) {
            const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD,
                                           .step = n,
                                           .body_bytes = body_bytes,
                                           .body = (uint8_t *)ends->bodies + (n % WINDOW) * body_bytes};
            AQ_TRY(aq_link_send(ends->link[1], &frame, n));
        }
        AQ_TRY(aq_eventcount_wait(ends->eventcount, seen, deadline_ns));
    }
    out->cpu_ns = aq_clock_cpu_ns() - cpu_ns;
    return AQ_OK;
}

struct measured {
    double bytes_per_s, cores; /* of bodies as they were given */
    double packed;             /* what went out of a body's bytes */
    double packing_ns;         /* a byte, both ends together */
};

static enum aq_status bench_flow(const struct setting *setting, struct measured *out)
{
    struct ends ends;
    struct flow flow = {0};
    struct aq_link_stats sent = {0}, received = {0};
    enum aq_status status = open_ends(&ends, setting);
    if (status == AQ_OK) status = flow_on(&ends, setting->body_bytes, setting->seconds, &flow);
    if (status == AQ_OK) {
        aq_link_stats(ends.link[1], &sent);
        aq_link_stats(ends.link[0], &received);
    }
    close_ends(&ends);
    AQ_TRY(status);
    const double ns = (double)(flow.last_ns - flow.first_ns);
    out->bytes_per_s = (double)setting->body_bytes * flow.received / ns * 1e9;
    out->cores = (double)flow.cpu_ns / ns;
    out->packed = (double)received.received_packed_bytes / (double)received.received_body_bytes;
    out->packing_ns = (double)sent.packing_ns / (double)sent.sent_body_bytes +
                      (double)received.packing_ns / (double)received.received_body_bytes;
    return AQ_OK;
}

/* Once more; what was faster, and its cores, is kept, and the least time for packing. */
static enum aq_status bench_flow_best(const struct setting *setting, struct measured *best)
{
    struct measured one = {0};
    const double packing_ns = best->packing_ns;
    const bool first = best->bytes_per_s <= 0;
    AQ_TRY(bench_flow(setting, &one));
    if (one.bytes_per_s > best->bytes_per_s) *best = one;
    best->packing_ns = first || one.packing_ns < packing_ns ? one.packing_ns : packing_ns;
    return AQ_OK;
}

/* The next event of that end; a body that comes is given back. */
static enum aq_status next_event(struct ends *ends, int side, struct aq_link_event *out)
{
    const uint64_t deadline_ns = SECONDS(10);
    for (;;) {
        const uint32_t seen = aq_eventcount_read(ends->eventcount);
        if (aq_link_poll(ends->link[side], out) == AQ_OK) break;
        AQ_TRY(aq_eventcount_wait(ends->eventcount, seen, deadline_ns));
    }
    if (out->kind == AQ_LINK_RECEIVED && out->frame.body) aq_link_release(ends->link[side], out->frame.body);
    return out->kind == AQ_LINK_CLOSED ? out->status : AQ_OK;
}

static enum aq_status ping_pong(struct ends *ends, uint32_t rounds, double *us)
{
    const struct aq_frame frame = {.kind = AQ_FRAME_CONTROL};
    struct aq_link_event event = {0};
    const uint64_t begin = aq_clock_ns();
    for (uint32_t i = 0; i < rounds; i++)
        for (int side = 0; side < 2; side++) {
            AQ_TRY(aq_link_send(ends->link[side], &frame, 0));
            for (event.kind = 0; event.kind != AQ_LINK_RECEIVED;)
                AQ_TRY(next_event(ends, 1 - side, &event));
        }
    *us = (double)(aq_clock_ns() - begin) * 1e-3 / rounds;
    return AQ_OK;
}

static enum aq_status bench_round_trip(uint32_t rounds, double *us)
{
    struct ends ends;
    const struct setting setting = {.body_bytes = 64};
    enum aq_status status = open_ends(&ends, &setting);
    if (status == AQ_OK) status = ping_pong(&ends, rounds, us);
    close_ends(&ends);
    return status;
}

/* ---- small frames among large ones ---- */

enum { PASS_RATE_MBPS = 10, PASS_BODY_BYTES = PASS_RATE_MBPS * 1000000 / 8 / 20, PASS_ROUNDS_MAX = 100 };

static enum aq_status send_large(struct ends *ends, uint64_t token)
{
    const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .body_bytes = PASS_BODY_BYTES, .body = ends->bodies};
    return aq_link_send(ends->link[1], &frame, token);
}

/* Sent right behind a large one; *over_ms is what it takes beyond the bytes of both at the rate. */
static enum aq_status time_behind(struct ends *ends, double *over_ms)
{
    enum { HEADER_BYTES = 128 };
    const struct aq_frame small = {.kind = AQ_FRAME_NORM};
    const double ideal_ms = (PASS_BODY_BYTES + 2 * HEADER_BYTES) * 8e-3 / PASS_RATE_MBPS;
    struct aq_link_event event = {0};
    const uint64_t begin = aq_clock_ns();
    AQ_TRY(send_large(ends, 0));
    AQ_TRY(aq_link_send(ends->link[1], &small, 1));
    while (event.kind != AQ_LINK_RECEIVED || event.frame.kind != AQ_FRAME_NORM)
        AQ_TRY(next_event(ends, 0, &event));
    *over_ms = (double)(aq_clock_ns() - begin) * 1e-6 - ideal_ms;
    for (uint32_t sent = 0; sent < 2; sent += event.kind == AQ_LINK_SENT)
        AQ_TRY(next_event(ends, 1, &event));
    return AQ_OK;
}

/* While end 1 sends large ones without a pause, end 0 sends a small one and waits until it is acknowledged. */
static enum aq_status time_against(struct ends *ends, double *ms)
{
    const struct aq_frame small = {.kind = AQ_FRAME_NORM};
    struct aq_link_event event = {0};
    const uint64_t begin = aq_clock_ns();
    AQ_TRY(aq_link_send(ends->link[0], &small, 0));
    while (event.kind != AQ_LINK_SENT) {
        const uint32_t seen = aq_eventcount_read(ends->eventcount);
        while (aq_link_poll(ends->link[1], &event) == AQ_OK)
            if (event.kind == AQ_LINK_SENT) AQ_TRY(send_large(ends, 0));
        event = (struct aq_link_event){0};
        const enum aq_status status = aq_link_poll(ends->link[0], &event);
        if (status == AQ_AGAIN) AQ_TRY(aq_eventcount_wait(ends->eventcount, seen, SECONDS(10)));
        if (event.kind == AQ_LINK_RECEIVED && event.frame.body) aq_link_release(ends->link[0], event.frame.body);
        if (event.kind == AQ_LINK_CLOSED) return event.status;
    }
    *ms = (double)(aq_clock_ns() - begin) * 1e-6;
    return AQ_OK;
}

static void emit_spread(const struct aq_bench_options *options, const char *what, double *ms, int rounds)
{
    char name[96];
    const double middle = aq_bench_middle(ms, (size_t)rounds);
    snprintf(name, sizeof name, "link %dmbit %s p50", PASS_RATE_MBPS, what);
    aq_bench_emit(options, name, middle, "ms");
    snprintf(name, sizeof name, "link %dmbit %s p99", PASS_RATE_MBPS, what);
    aq_bench_emit(options, name, ms[(rounds * 99 - 1) / 100], "ms");
}

static enum aq_status bench_passing(const struct aq_bench_options *options)
{
    const int rounds = options->quick ? 10 : PASS_ROUNDS_MAX;
    const struct setting setting = {.body_bytes = PASS_BODY_BYTES, .rate_mbps = PASS_RATE_MBPS, .heals = true};
    double behind[PASS_ROUNDS_MAX], against[PASS_ROUNDS_MAX];
    struct ends ends;
    enum aq_status status = open_ends(&ends, &setting);
    for (int i = 0; i < rounds && status == AQ_OK; i++)
        status = time_behind(&ends, &behind[i]);
    for (uint64_t i = 0; i < 2 && status == AQ_OK; i++)
        status = send_large(&ends, i);
    for (int i = 0; i < rounds && status == AQ_OK; i++)
        status = time_against(&ends, &against[i]);
    close_ends(&ends);
    AQ_TRY(status);
    emit_spread(options, "small behind large, beyond the wire", behind, rounds);
    emit_spread(options, "small acknowledged against large", against, rounds);
    return AQ_OK;
}

/* ---- under TLS ---- */

static const char sealed_cases[] = "link tls loopback cpu 1 Gbit/s cpu, both ends paced 1000mbit measured/asked",
                  relay_cases[] = "link tls relay loopback cpu relay/direct";

static enum aq_status make_identities(const char *folder, struct aq_tls *tls[2])
{
    const int64_t now = (int64_t)time(NULL);
    AQ_TRY(aq_tls_make_authority(folder, "bench", now - 3600, now + 3600));
    for (uint32_t i = 0; i < 2; i++) {
        AQ_TRY(aq_tls_make(folder, AQ_TLS_STAGE, i, now - 3600, now + 3600));
        AQ_TRY(aq_tls_open(folder, AQ_TLS_STAGE, i, &tls[i]));
    }
    return AQ_OK;
}

/* The flow at 1 Gbit/s in the clear and under TLS, turn about; the least of each counts. */
static enum aq_status bench_sealed(const struct aq_bench_options *options, struct aq_tls *const *tls)
{
    enum { RATE_MBPS = 1000, BODY_BYTES = 1 << 20 };
    const double seconds = options->quick ? 0.5 : 2;
    struct measured best = {0};
    double plain = 0, sealed = 0, pace = 0;
    for (int i = 0; i < (options->quick ? 1 : 3); i++) {
        struct measured measured = {0};
        struct setting setting = {.tls = tls, .body_bytes = BODY_BYTES, .seconds = seconds / 2};
        AQ_TRY(bench_flow_best(&setting, &best));
        setting = (struct setting){.body_bytes = BODY_BYTES, .rate_mbps = RATE_MBPS, .seconds = seconds};
        AQ_TRY(bench_flow(&setting, &measured));
        if (i == 0 || measured.cores < plain) plain = measured.cores;
        setting.tls = tls;
        AQ_TRY(bench_flow(&setting, &measured));
        if (i == 0 || measured.cores < sealed) sealed = measured.cores;
        pace = measured.bytes_per_s * 8e-6 / RATE_MBPS;
    }
    aq_bench_emit(options, "link tls loopback", best.bytes_per_s * 1e-9, "GB/s");
    aq_bench_emit(options, "link tls loopback cpu", best.cores, "cores");
    aq_bench_emit(options, "link 1 Gbit/s cpu, both ends", plain, "cores");
    aq_bench_emit(options, "link tls 1 Gbit/s cpu, both ends", sealed, "cores");
    aq_bench_emit(options, "link tls paced 1000mbit measured/asked", pace, "ratio");
    return AQ_OK;
}

/* ---- over a relay ---- */

struct relay {
    struct aq_relay *relay;
    struct aq_thread *thread;
    int stop;
    uint16_t port;
};

static void relay_run(void *context)
{
    const struct relay *relay = context;
    (void)aq_link_relay_run(relay->relay, relay->stop); /* an end that it fails has the reason */
}

static enum aq_status relay_open(struct relay *relay)
{
    const struct aq_relay_config config = {.listen = "127.0.0.1:0", .connections = AQ_RELAY_CONNECTIONS_MAX};
    relay->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (relay->stop < 0) return aq_fail_errno("bench", "cannot make an eventfd");
    AQ_TRY(aq_link_relay_open(&config, &relay->relay, &relay->port));
    return aq_thread_open("relay", relay_run, relay, &relay->thread);
}

static enum aq_status relay_close(struct relay *relay)
{
    if (relay->thread && eventfd_write(relay->stop, 1) != 0) return aq_fail_errno("bench", "cannot stop the relay");
    aq_thread_close(relay->thread);
    aq_link_relay_close(relay->relay);
    if (relay->stop >= 0) close(relay->stop);
    return AQ_OK;
}

/* By turns without and with it; the best of each counts. */
static enum aq_status bench_relayed(const struct aq_bench_options *options, struct aq_tls *const *tls)
{
    struct relay relay = {.stop = -1};
    struct measured direct = {0}, relayed = {0};
    enum aq_status status = relay_open(&relay);
    for (int i = 0; i < (options->quick ? 1 : 3) && status == AQ_OK; i++) {
        struct setting setting = {.tls = tls, .body_bytes = 1 << 20, .seconds = options->quick ? 0.25 : 1};
        status = bench_flow_best(&setting, &direct);
        setting.relay = relay.port;
        if (status == AQ_OK) status = bench_flow_best(&setting, &relayed);
    }
    const enum aq_status closed = relay_close(&relay);
    AQ_TRY(status);
    AQ_TRY(closed);
    aq_bench_emit(options, "link tls relay loopback", relayed.bytes_per_s * 1e-9, "GB/s");
    aq_bench_emit(options, "link tls relay loopback cpu", relayed.cores, "cores");
    aq_bench_emit(options, "link tls relay/direct", relayed.bytes_per_s / direct.bytes_per_s, "ratio");
    return AQ_OK;
}

static enum aq_status bench_tls(const struct aq_bench_options *options)
{
    char folder[] = "/tmp/aqpipe-bench-XXXXXX";
    struct aq_tls *tls[2] = {NULL, NULL};
    AQ_TRY(aq_owned_scratch_make(folder));
    enum aq_status status = make_identities(folder, tls);
    if (status == AQ_OK && aq_bench_wanted(options, sealed_cases)) status = bench_sealed(options, tls);
    if (status == AQ_OK && aq_bench_wanted(options, relay_cases)) status = bench_relayed(options, tls);
    aq_tls_close(tls[0]);
    aq_tls_close(tls[1]);
    const enum aq_status removed = aq_owned_scratch_remove(folder, NULL);
    return status == AQ_OK ? removed : status;
}

/* ---- packed ---- */

enum { CODE_ROWS = 512, CODE_COLUMNS = 768, CODE_VALUES = CODE_ROWS * CODE_COLUMNS, CODE_BITS = 4 };

/* WINDOW bodies of 4-bit codes, as an edge sends them: a scale a row. heavy: rows of Student's t, 3 degrees. */
static enum aq_status make_codes(struct aq_codec *codec, float *values, bool heavy, uint8_t *bodies)
{
    const uint32_t bytes = (uint32_t)aq_codec_body_bytes(codec, false);
    for (uint32_t w = 0; w < WINDOW; w++) {
        const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 2, w);
        struct aq_codec_result result;
        for (uint32_t i = 0; i < CODE_VALUES; i++) {
            const float x = aq_rng_normal(&key, 4 * i), a = aq_rng_normal(&key, 4 * i + 1),
                        b = aq_rng_normal(&key, 4 * i + 2), c = aq_rng_normal(&key, 4 * i + 3);
            values[i] = heavy ? x / sqrtf((a * a + b * b + c * c) / 3) : x;
        }
        AQ_TRY(aq_codec_encode(codec, values, NULL, NULL, bodies + (size_t)w * bytes, aq_codec_bound(codec), NULL, NULL,
                               &result, NULL));
        AQ_ASSERT(result.body_bytes == bytes);
    }
    return AQ_OK;
}

/* By turns without and with packing; the best of each counts. */
static enum aq_status flow_packed(const struct aq_bench_options *options, struct setting *setting, const char *rows)
{
    struct measured plain = {0}, packed = {0};
    char name[64];
    for (int i = 0; i < (options->quick ? 1 : 3); i++) {
        setting->entropy = AQ_LINK_ENTROPY_OFF;
        AQ_TRY(bench_flow_best(setting, &plain));
        setting->entropy = AQ_LINK_ENTROPY_AUTO;
        AQ_TRY(bench_flow_best(setting, &packed));
    }
    snprintf(name, sizeof name, "link packed q4 %s bytes left", rows);
    aq_bench_emit(options, name, packed.packed, "ratio");
    snprintf(name, sizeof name, "link packed q4 %s cpu, both ends", rows);
    aq_bench_emit(options, name, packed.packing_ns, "ns/B");
    snprintf(name, sizeof name, "link packed q4 %s 100mbit packed/plain", rows);
    aq_bench_emit(options, name, packed.bytes_per_s / plain.bytes_per_s, "ratio");
    return AQ_OK;
}

static enum aq_status bench_packed(const struct aq_bench_options *options, bool heavy)
{
    struct aq_codec_config config;
    struct aq_codec *codec;
    void *memory = NULL;
    aq_codec_config_default(&config, AQ_CODEC_DIRECTQ, CODE_BITS);
    config.prescale_log2 = 0; /* values are near 1 */
    AQ_TRY(aq_codec_open(NULL, &config, CODE_ROWS, CODE_COLUMNS, &codec));
    const size_t values_bytes = CODE_VALUES * sizeof(float);
    const size_t bytes = values_bytes + WINDOW * aq_codec_bound(codec);
    struct setting setting = {.body_bytes = (uint32_t)aq_codec_body_bytes(codec, false),
                              .rate_mbps = 100,
                              .seconds = options->quick ? 0.5 : 2};
    enum aq_status status = aq_map(bytes, &memory);
    if (status == AQ_OK) {
        uint8_t *bodies = (uint8_t *)memory + values_bytes;
        setting.bodies = bodies;
        status = make_codes(codec, memory, heavy, bodies);
    }
    if (status == AQ_OK) status = flow_packed(options, &setting, heavy ? "heavy" : "gaussian");
    aq_unmap(memory, bytes);
    aq_codec_close(codec);
    return status;
}

static enum aq_status bench_open(const struct aq_bench_options *options)
{
    struct measured best = {0};
    double least_us = 0;
    for (int i = 0; i < (options->quick ? 1 : 3); i++) {
        double us = 0;
        const struct setting setting = {.body_bytes = 1 << 20, .seconds = options->quick ? 0.25 : 1};
        AQ_TRY(bench_flow_best(&setting, &best));
        AQ_TRY(bench_round_trip(options->quick ? 1000 : 5000, &us));
        if (i == 0 || us < least_us) least_us = us;
    }
    aq_bench_emit(options, "link tcp loopback", best.bytes_per_s * 1e-9, "GB/s");
    aq_bench_emit(options, "link tcp loopback cpu", best.cores, "cores");
    aq_bench_emit(options, "link round trip", least_us, "us");
    return AQ_OK;
}

/* A body takes a twentieth of a second: 62 kB at 10 Mbit/s, 2.5 MB at 400. */
static enum aq_status bench_paced(const struct aq_bench_options *options, double rate)
{
    const struct setting setting = {
        .body_bytes = (uint32_t)(rate * 1e6 / 8 / 20), .rate_mbps = rate, .seconds = options->quick ? 0.5 : 2};
    struct measured measured = {0};
    char name[64];
    snprintf(name, sizeof name, "link paced %gmbit measured/asked", rate);
    if (!aq_bench_wanted(options, name)) return AQ_OK;
    AQ_TRY(bench_flow(&setting, &measured));
    aq_bench_emit(options, name, measured.bytes_per_s * 8e-6 / rate, "ratio");
    return AQ_OK;
}

enum aq_status aq_bench_link(const struct aq_bench_options *options)
{
    static const double RATES_MBPS[] = {10, 100, 400};
    if (aq_bench_wanted(options, "link tcp loopback cpu round trip")) AQ_TRY(bench_open(options));
    for (size_t i = 0; i < sizeof RATES_MBPS / sizeof *RATES_MBPS; i++)
        AQ_TRY(bench_paced(options, RATES_MBPS[i]));
    if (aq_bench_wanted(options, "link 10mbit small behind large, beyond the wire acknowledged against p50 p99"))
        AQ_TRY(bench_passing(options));
    for (int heavy = 0; heavy < 2; heavy++)
        if (aq_bench_wanted(options, heavy ? "link packed q4 heavy bytes left cpu, both ends 100mbit packed/plain"
                                           : "link packed q4 gaussian bytes left cpu, both ends 100mbit packed/plain"))
            AQ_TRY(bench_packed(options, heavy));
    if (!aq_bench_wanted(options, sealed_cases) && !aq_bench_wanted(options, relay_cases)) return AQ_OK;
    return bench_tls(options);
}
