/*
 * test_frame_stream.c -- what an earlier version said on a link, byte by byte, and that a link of this one takes it:
 * tests/golden/samples-VERSION/frames.bin, a connector's whole stream from HELLO to BYE.
 *
 *     test_frame_stream GOLDEN            read the stream of each version kept there
 *     test_frame_stream --make FILE       write this version's, of a link that sends what `frame_of` says
 *
 * Every kind of the runtime's is in it, empty bodies, packed ones and ones in parts.
 */
#include <glob.h>

#include "raw_peer.h"

#define FRAMES 22u /* each kind twice */

enum { BODY_BYTES_MAX = 12000, PART_BYTES_RATE = 1 /* Mbit/s: parts are short */, STREAM_BYTES_MAX = 1 << 18 };

static const char *golden;

static void configure(struct link_pair *pair)
{
    pair_config(pair);
    for (int i = 0; i < 2; i++) {
        pair->config[i].body_bytes_max = BODY_BYTES_MAX;
        pair->config[i].receive_slots = FRAMES;
        pair->config[i].send_frames = FRAMES;
        pair->config[i].entropy = AQ_LINK_ENTROPY_ZSTD;
        pair->config[i].rate_mbps = PART_BYTES_RATE;
        pair->config[i].streams = 1;
        pair->config[i].heartbeat_ns = 0;
    }
}

/* Frame n of the sample; its body goes to `body`. */
static struct aq_frame frame_of(uint32_t n, uint8_t *body)
{
    const uint32_t kinds = AQ_FRAME_SHARED - AQ_FRAME_FORWARD + 1;
    const uint32_t bytes = n == 0 ? BODY_BYTES_MAX : n == 1 ? 0 : pair_size(1, n, BODY_BYTES_MAX / 8);
    pair_fill(body, bytes, 1, n == 0 ? 3 : n); /* 3: a body that does not pack, so that it goes in parts */
    return (struct aq_frame){.kind = (uint16_t)(AQ_FRAME_FORWARD + n % kinds),
                             .flags = (uint16_t)(n * 257),
                             .micro_batch = n * 65537,
                             .step = n * 0x100000001ull,
                             .argument = ~(uint64_t)n,
                             .body_bytes = bytes,
                             .body = bytes > 0 ? body : NULL};
}

/* ---- making ---- */

struct tap { /* a listener that answers and keeps what it hears */
    int fd;
    uint8_t *bytes;
    size_t count;
    const struct link_pair *pair;
    bool packed, parts;
};

/* `count` more bytes of the stream. */
static const uint8_t *tap_take(struct tap *tap, int fd, size_t count)
{
    const uint8_t *at = tap->bytes + tap->count;
    assert_true(tap->count + count <= STREAM_BYTES_MAX);
    for (size_t got = 0; got < count;) {
        const ssize_t n = recv(fd, tap->bytes + tap->count + got, count - got, 0);
        assert_true(n > 0);
        got += (size_t)n;
    }
    tap->count += count;
    return at;
}

static uint16_t tap_frame(struct tap *tap, int fd)
{
    struct aq_header header;
    char text[AQ_TEXT_BYTES];
    assert_int_equal(aq_header_decode(tap_take(tap, fd, AQ_FRAME_HEADER_BYTES), &header, text), AQ_OK);
    const uint32_t gaps = aq_gap_count(header.body_bytes, header.part_bytes);
    tap_take(tap, fd, header.body_bytes + (size_t)gaps * AQ_FRAME_GAP_BYTES);
    tap->packed |= header.raw_bytes > 0;
    tap->parts |= header.part_bytes > 0;
    return header.kind;
}

static void tap_run(void *context)
{
    struct tap *tap = context;
    const int fd = accept(tap->fd, NULL, NULL);
    assert_int_not_equal(fd, -1);
    assert_int_equal(tap_frame(tap, fd), AQ_FRAME_HELLO);
    struct raw raw = raw_peer(tap->pair);
    uint8_t body[AQ_FRAME_HELLO_BYTES], out[AQ_FRAME_HEADER_BYTES + AQ_FRAME_HELLO_BYTES];
    raw.fd = fd;
    raw.hello.rank = 0; /* it listens: the other end of the pair */
    raw.hello.peer_rank = 1;
    raw.hello.features = AQ_FEATURE_PACK | AQ_FEATURE_PARTS;
    aq_hello_encode(&raw.hello, body);
    raw_bytes(&raw, out,
              raw_frame(&raw, (struct aq_header){.kind = AQ_FRAME_HELLO, .body_bytes = sizeof body}, body, out));
    while (tap_frame(tap, fd) != AQ_FRAME_BYE) {
    }
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_BYE}, NULL);
    while (recv(fd, out, sizeof out, 0) > 0) {
    }
    close(fd);
}

static void make_stream(void **state)
{
    struct link_pair pair = {0};
    struct tap tap = {.pair = &pair, .bytes = malloc(STREAM_BYTES_MAX), .fd = socket(AF_INET, SOCK_STREAM, 0)};
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof here;
    struct aq_thread *thread;
    static uint8_t bodies[FRAMES][BODY_BYTES_MAX];
    (void)state;
    configure(&pair);
    pair_nets(&pair);
    assert_int_equal(bind(tap.fd, (struct sockaddr *)&here, sizeof here), 0);
    assert_int_equal(listen(tap.fd, 1), 0);
    assert_int_equal(getsockname(tap.fd, (struct sockaddr *)&here, &size), 0);
    snprintf(pair.address, sizeof pair.address, "tcp://127.0.0.1:%u", ntohs(here.sin_port));
    assert_int_equal(aq_thread_open("tap", tap_run, &tap, &thread), AQ_OK);
    pair_connect_run(&pair);
    assert_int_equal(pair.connected, AQ_OK);
    for (uint32_t n = 0; n < FRAMES; n++) {
        const struct aq_frame frame = frame_of(n, bodies[n]);
        assert_int_equal(aq_link_send(pair.link[1], &frame, n), AQ_OK);
    }
    assert_int_equal(aq_link_finish(pair.link[1], PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
    aq_link_close(pair.link[1]);
    aq_thread_close(thread);
    pair_close(&pair);
    close(tap.fd);
    assert_true(tap.packed && tap.parts);
    FILE *file = fopen(golden, "wxb"); /* what is there stays */
    assert_non_null(file);
    assert_int_equal(fwrite(tap.bytes, 1, tap.count, file), tap.count);
    assert_int_equal(fclose(file), 0);
    free(tap.bytes);
}

/* ---- reading ---- */

/* The link must hand out the sample's frames, each as it was said, and then end in good order. */
static void read_stream(const char *path)
{
    static uint8_t stream[STREAM_BYTES_MAX], body[BODY_BYTES_MAX];
    struct link_pair pair = {0};
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t count = fread(stream, 1, sizeof stream, file);
    fclose(file);
    configure(&pair);
    pair_nets(&pair);
    pair_listen(&pair, "tcp", "");
    const struct raw raw = {.fd = raw_socket(pair.address, 1)};
    raw_bytes(&raw, stream, count); /* TCP keeps it until the link reads */
    assert_int_equal(aq_link_accept(pair.listener, &pair.config[0], PAIR_SECONDS(PAIR_PATIENCE), &pair.link[0]), AQ_OK);
    for (uint32_t n = 0; n < FRAMES; n++) {
        const struct aq_link_event event = pair_event(&pair, 0, PAIR_PATIENCE);
        const struct aq_frame wanted = frame_of(n, body);
        assert_int_equal(event.kind, AQ_LINK_RECEIVED);
        assert_int_equal(event.frame.kind, wanted.kind);
        assert_int_equal(event.frame.flags, wanted.flags);
        assert_int_equal(event.frame.micro_batch, wanted.micro_batch);
        assert_int_equal(event.frame.step, wanted.step);
        assert_true(event.frame.argument == wanted.argument);
        assert_int_equal(event.frame.body_bytes, wanted.body_bytes);
        if (!wanted.body) continue;
        assert_memory_equal(event.frame.body, wanted.body, wanted.body_bytes);
        aq_link_release(pair.link[0], event.frame.body);
    }
    const struct aq_link_event event = pair_event(&pair, 0, PAIR_PATIENCE);
    assert_int_equal(event.kind, AQ_LINK_CLOSED);
    assert_int_equal(event.status, AQ_CLOSED);
    close(raw.fd);
    aq_link_close(pair.link[0]);
    aq_listener_close(pair.listener);
    pair_close(&pair);
}

static void test_stream_of_each_version_is_read(void **state)
{
    char pattern[1024];
    glob_t found;
    (void)state;
    snprintf(pattern, sizeof pattern, "%s/samples-*/frames.bin", golden);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++)
        read_stream(found.gl_pathv[i]);
    globfree(&found);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest makes[] = {cmocka_unit_test(make_stream)};
    const struct CMUnitTest reads[] = {cmocka_unit_test(test_stream_of_each_version_is_read)};
    if (argc == 3 && strcmp(argv[1], "--make") == 0) {
        golden = argv[2];
        return cmocka_run_group_tests(makes, NULL, NULL);
    }
    if (argc != 2) return 2;
    golden = argv[1];
    return cmocka_run_group_tests(reads, NULL, NULL);
}
