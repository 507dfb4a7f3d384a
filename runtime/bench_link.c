/*
 * bench_link.c -- `aqpipe bench link`: what a TCP link over loopback does, both ends in this process.
 *
 * Cases: throughput without pacing and the cores that both ends together use for it, the round trip of an empty frame,
 * and the pace that is kept against the pace that is asked. The clock of a pace starts when the first body has come, so
 * that it sees the steady flow and not the connection's first burst. Under TLS: throughput, and what sealing and
 * opening together cost at 1 Gbit/s beyond the same flow in the clear.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "net/link.h"
#include "net/tls.h"
#include "run_folder.h"

enum { WINDOW = 4, EDGE = 0 };
#define SECONDS(s) aq_clock_after((uint64_t)((s)*1e9))

struct ends {
    struct aq_bell *bell;
    struct aq_tls *const *tls; /* of both ends; NULL: in the clear */
    struct aq_net *net[2];
    struct aq_link *link[2]; /* 1 sends, 0 receives */
    struct aq_link_config config[2];
    char address[64];
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
    AQ_TRY(aq_link_listen(ends->net[0], ends->address, &listener, &port));
    snprintf(ends->address, sizeof ends->address, "%stcp://127.0.0.1:%u", filter, port);
    AQ_TRY(aq_thread_open("connect", connect_run, ends, &thread));
    const enum aq_status accepted = aq_link_accept(listener, &ends->config[0], SECONDS(10), &ends->link[0]);
    aq_thread_close(thread);
    aq_listener_close(listener);
    return accepted != AQ_OK ? accepted : ends->connected;
}

static enum aq_status open_ends(struct ends *ends, struct aq_tls *const *tls, uint32_t body_bytes, double rate_mbps)
{
    *ends = (struct ends){.tls = tls, .bodies_bytes = (size_t)body_bytes * WINDOW};
    AQ_TRY(aq_bell_open(&ends->bell));
    AQ_TRY(aq_map(ends->bodies_bytes, &ends->bodies));
    for (uint32_t i = 0; i < 2; i++) {
        const struct aq_net_config net = {.bell = ends->bell, .links_max = 2, .tls = tls ? tls[i] : NULL};
        AQ_TRY(aq_net_open(&net, &ends->net[i]));
        aq_link_config_default(&ends->config[i]);
        ends->config[i].rank = i;
        ends->config[i].peer_rank = 1 - i;
        ends->config[i].edge = EDGE;
        ends->config[i].body_bytes_max = body_bytes;
        ends->config[i].send_frames = WINDOW;
        ends->config[i].receive_slots = WINDOW;
        ends->config[i].rate_mbps = rate_mbps;
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
    aq_bell_close(ends->bell);
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
        const uint32_t seen = aq_bell_count(ends->bell);
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
        AQ_TRY(aq_bell_wait(ends->bell, seen, deadline_ns));
    }
    out->cpu_ns = aq_clock_cpu_ns() - cpu_ns;
    return AQ_OK;
}

static enum aq_status bench_flow(struct aq_tls *const *tls, uint32_t body_bytes, double rate_mbps, double seconds,
                                 double *bytes_per_s, double *cores)
{
    struct ends ends;
    struct flow flow = {0};
    enum aq_status status = open_ends(&ends, tls, body_bytes, rate_mbps);
    if (status == AQ_OK) status = flow_on(&ends, body_bytes, seconds, &flow);
    close_ends(&ends);
    AQ_TRY(status);
    const double ns = (double)(flow.last_ns - flow.first_ns);
    *bytes_per_s = (double)body_bytes * flow.received / ns * 1e9;
    *cores = (double)flow.cpu_ns / ns;
    return AQ_OK;
}

/* The next frame that comes to that end. */
static enum aq_status await_frame(struct ends *ends, int side)
{
    struct aq_link_event event;
    const uint64_t deadline_ns = SECONDS(10);
    for (;;) {
        const uint32_t seen = aq_bell_count(ends->bell);
        while (aq_link_poll(ends->link[side], &event) == AQ_OK) {
            if (event.kind == AQ_LINK_CLOSED) return event.status;
            if (event.kind == AQ_LINK_RECEIVED) return AQ_OK;
        }
        AQ_TRY(aq_bell_wait(ends->bell, seen, deadline_ns));
    }
}

static enum aq_status ping_pong(struct ends *ends, uint32_t rounds, double *us)
{
    const struct aq_frame frame = {.kind = AQ_FRAME_CONTROL};
    const uint64_t begin = aq_clock_ns();
    for (uint32_t i = 0; i < rounds; i++)
        for (int side = 0; side < 2; side++) {
            AQ_TRY(aq_link_send(ends->link[side], &frame, 0));
            AQ_TRY(await_frame(ends, 1 - side));
        }
    *us = (double)(aq_clock_ns() - begin) * 1e-3 / rounds;
    return AQ_OK;
}

static enum aq_status bench_round_trip(uint32_t rounds, double *us)
{
    struct ends ends;
    enum aq_status status = open_ends(&ends, NULL, 64, 0);
    if (status == AQ_OK) status = ping_pong(&ends, rounds, us);
    close_ends(&ends);
    return status;
}

/* ---- under TLS ---- */

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
    double best = 0, cores_of_best = 0, plain = 0, sealed = 0, pace = 0;
    for (int i = 0; i < (options->quick ? 1 : 3); i++) {
        double bytes_per_s = 0, cores = 0;
        AQ_TRY(bench_flow(tls, BODY_BYTES, 0, seconds / 2, &bytes_per_s, &cores));
        if (bytes_per_s > best) {
            best = bytes_per_s;
            cores_of_best = cores;
        }
        AQ_TRY(bench_flow(NULL, BODY_BYTES, RATE_MBPS, seconds, &bytes_per_s, &cores));
        if (i == 0 || cores < plain) plain = cores;
        AQ_TRY(bench_flow(tls, BODY_BYTES, RATE_MBPS, seconds, &bytes_per_s, &cores));
        if (i == 0 || cores < sealed) sealed = cores;
        pace = bytes_per_s * 8e-6 / RATE_MBPS;
    }
    aq_bench_emit(options, "link tls loopback", best * 1e-9, "GB/s");
    aq_bench_emit(options, "link tls loopback cpu", cores_of_best, "cores");
    aq_bench_emit(options, "link 1 Gbit/s cpu, both ends", plain, "cores");
    aq_bench_emit(options, "link tls 1 Gbit/s cpu, both ends", sealed, "cores");
    aq_bench_emit(options, "link tls paced 1000mbit measured/asked", pace, "ratio");
    return AQ_OK;
}

static enum aq_status bench_tls(const struct aq_bench_options *options)
{
    char folder[] = "/tmp/aqpipe-bench-XXXXXX";
    struct aq_tls *tls[2] = {NULL, NULL};
    if (!mkdtemp(folder)) return aq_fail_errno("bench", "no folder %s", folder);
    enum aq_status status = make_identities(folder, tls);
    if (status == AQ_OK) status = bench_sealed(options, tls);
    aq_tls_close(tls[0]);
    aq_tls_close(tls[1]);
    const enum aq_status removed = aq_run_remove(folder);
    return status == AQ_OK ? removed : status;
}

enum aq_status aq_bench_link(const struct aq_bench_options *options)
{
    static const double RATES_MBPS[] = {10, 100, 400};
    const double seconds = options->quick ? 0.5 : 2;
    const int repeats = options->quick ? 1 : 3;
    double best = 0, cores_of_best = 0, least_us = 0;
    for (int i = 0; i < repeats; i++) {
        double bytes_per_s = 0, cores = 0, us = 0;
        AQ_TRY(bench_flow(NULL, 1 << 20, 0, seconds / 2, &bytes_per_s, &cores));
        AQ_TRY(bench_round_trip(options->quick ? 1000 : 5000, &us));
        if (bytes_per_s > best) {
            best = bytes_per_s;
            cores_of_best = cores;
        }
        if (i == 0 || us < least_us) least_us = us;
    }
    aq_bench_emit(options, "link tcp loopback", best * 1e-9, "GB/s");
    aq_bench_emit(options, "link tcp loopback cpu", cores_of_best, "cores");
    aq_bench_emit(options, "link round trip", least_us, "us");
    for (size_t i = 0; i < sizeof RATES_MBPS / sizeof *RATES_MBPS; i++) {
        const double rate = RATES_MBPS[i];
        /* A body takes a twentieth of a second: 62 kB at 10 Mbit/s, 2.5 MB at 400. */
        const uint32_t body_bytes = (uint32_t)(rate * 1e6 / 8 / 20);
        double bytes_per_s = 0, cores = 0;
        char name[64];
        AQ_TRY(bench_flow(NULL, body_bytes, rate, seconds, &bytes_per_s, &cores));
        snprintf(name, sizeof name, "link paced %gmbit measured/asked", rate);
        aq_bench_emit(options, name, bytes_per_s * 8e-6 / rate, "ratio");
    }
    return bench_tls(options);
}
