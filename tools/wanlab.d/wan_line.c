/* wan_line.c -- see wan_line.h. A packet waits with the time of each of its segments; 0 is one that does not arrive. */
#include "wan_line.h"

#include <endian.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/uio.h>

static const double MS = 1e6; /* nanoseconds */
enum { TICK_PART = 80, TICK_NS_MIN = 50000, TICK_NS_MAX = 500000, JITTER_NS_MIN = 20000000, QUEUE_MS_MIN = 50 };

struct aq_wan_packet {
    struct aq_wan_packet *next;
    uint8_t *bytes; /* struct virtio_net_hdr and IP, behind the times */
    uint32_t count;
    uint32_t segments, at; /* at: the first that has not been dealt with                */
    uint32_t head_bytes;   /* of IP and TCP, which every segment has; 0: it is one segment */
    uint32_t body_bytes;   /* of a full segment                                          */
    uint64_t due_ns[];     /* of each segment; 0: it does not arrive                     */
};

void aq_wan_line_init(struct aq_wan_line *line, uint64_t seed, uint32_t index)
{
    *line = (struct aq_wan_line){.rules = {.queue_ms = -1}, .key = aq_rng_key(seed, AQ_RNG_TEST, index, 0)};
}

static void drop_first(struct aq_wan_line *line)
{
    struct aq_wan_packet *packet = line->first;
    line->first = packet->next;
    if (!line->first) line->last = NULL;
    aq_free(packet);
}

void aq_wan_line_deinit(struct aq_wan_line *line)
{
    while (line->first)
        drop_first(line);
}

/* ---- what a packet is ---- */

static const uint8_t *ip_of(const uint8_t *bytes)
{
    return bytes + sizeof(struct virtio_net_hdr);
}

bool aq_wan_target(const uint8_t *bytes, size_t count, uint32_t *address)
{
    struct iphdr ip;
    if (count < sizeof(struct virtio_net_hdr) + sizeof ip) return false;
    memcpy(&ip, ip_of(bytes), sizeof ip);
    if (ip.version != 4 || ip.ihl < 5) return false;
    *address = ntohl(ip.daddr);
    return true;
}

/* Fills what is known of the segments; AQ_PROTO. */
static enum aq_status parse(const uint8_t *bytes, size_t count, struct aq_wan_packet *out)
{
    struct virtio_net_hdr head;
    struct iphdr ip;
    struct tcphdr tcp;
    memcpy(&head, bytes, sizeof head);
    *out = (struct aq_wan_packet){.count = (uint32_t)count, .segments = 1};
    const size_t ip_bytes = count - sizeof head;
    const unsigned kind = head.gso_type & ~(unsigned)VIRTIO_NET_HDR_GSO_ECN;
    if (kind == VIRTIO_NET_HDR_GSO_NONE) return AQ_OK;
    memcpy(&ip, ip_of(bytes), sizeof ip);
    if (kind != VIRTIO_NET_HDR_GSO_TCPV4 || ip.protocol != IPPROTO_TCP || head.gso_size == 0) return AQ_PROTO;
    if (ip_bytes < ip.ihl * 4u + sizeof tcp) return AQ_PROTO;
    memcpy(&tcp, ip_of(bytes) + ip.ihl * 4u, sizeof tcp);
    const uint32_t head_bytes = ip.ihl * 4u + tcp.doff * 4u;
    if (tcp.doff < 5 || head_bytes >= ip_bytes) return AQ_PROTO;
    out->head_bytes = head_bytes;
    out->body_bytes = head.gso_size;
    out->segments = (uint32_t)((ip_bytes - head_bytes + head.gso_size - 1) / head.gso_size);
    return AQ_OK;
}

/* Bytes of IP of a segment as it travels, with its own headers. */
static uint32_t segment_bytes(const struct aq_wan_packet *packet, uint32_t at)
{
    const uint32_t ip_bytes = packet->count - (uint32_t)sizeof(struct virtio_net_hdr);
    if (packet->segments == 1) return ip_bytes;
    const uint32_t body = ip_bytes - packet->head_bytes, from = at * packet->body_bytes;
    return packet->head_bytes + (body - from < packet->body_bytes ? body - from : packet->body_bytes);
}

/* ---- what becomes of it ---- */

/* The delay that jitter adds at this time. */
static double jitter_ns(const struct aq_wan_line *line, uint64_t now_ns)
{
    if (line->rules.jitter_ms <= 0) return 0;
    const double most = line->rules.jitter_ms * MS, step = fmax(4 * most, JITTER_NS_MIN);
    const double at = (double)now_ns / step, whole = floor(at);
    const struct aq_rng_key key = {.key = {line->key.key[0], line->key.key[1]},
                                   .counter = {line->key.counter[0] ^ UINT32_MAX, line->key.counter[1]}};
    const double from = aq_rng_uniform(&key, (uint64_t)whole), to = aq_rng_uniform(&key, (uint64_t)whole + 1);
    return most * (2 * (from + (to - from) * (at - whole)) - 1);
}

/* Arrival time of a packet of `bytes` bytes; 0: it is lost. */
static uint64_t travel(struct aq_wan_line *line, uint64_t now_ns, uint32_t bytes)
{
    const struct aq_wan_rules *rules = &line->rules;
    const double queue_ms = rules->queue_ms >= 0 ? rules->queue_ms : fmax(2 * rules->delay_ms, QUEUE_MS_MIN);
    const double wire_ns = rules->rate_mbps > 0 ? bytes * 8e3 / rules->rate_mbps : 0;
    const uint64_t start_ns = line->free_ns > now_ns ? line->free_ns : now_ns;
    if (rules->blackhole_bytes && bytes > rules->blackhole_bytes) {
        line->counts.blackholed++;
        return 0;
    }
    if (start_ns > now_ns && (double)(start_ns - now_ns) + wire_ns > queue_ms * MS) {
        line->counts.full++;
        return 0;
    }
    line->free_ns = start_ns + (uint64_t)wire_ns;
    if (rules->loss > 0 && aq_rng_uniform(&line->key, line->drawn++) < rules->loss) {
        line->counts.lost++;
        return 0;
    }
    const double way_ns = fmax(0, rules->delay_ms * MS + jitter_ns(line, line->free_ns));
    const uint64_t due_ns = line->free_ns + (uint64_t)way_ns;
    line->due_last_ns = due_ns > line->due_last_ns ? due_ns : line->due_last_ns;
    return line->due_last_ns;
}

enum aq_status aq_wan_line_offer(struct aq_wan_line *line, uint64_t now_ns, const uint8_t *bytes, size_t count)
{
    struct aq_wan_packet seen, *packet;
    uint32_t address;
    if (!aq_wan_target(bytes, count, &address)) return AQ_PROTO;
    AQ_TRY(parse(bytes, count, &seen));
    const size_t times = seen.segments * sizeof seen.due_ns[0];
    AQ_TRY(aq_alloc(sizeof seen + times + count, (void **)&packet));
    *packet = seen;
    packet->bytes = (uint8_t *)packet + sizeof seen + times;
    memcpy(packet->bytes, bytes, count);
    bool any = false;
    for (uint32_t i = 0; i < packet->segments; i++) {
        packet->due_ns[i] = travel(line, now_ns, segment_bytes(packet, i));
        any = any || packet->due_ns[i] > 0;
    }
    if (!any) {
        aq_free(packet);
        return AQ_OK;
    }
    if (line->last)
        line->last->next = packet;
    else
        line->first = packet;
    line->last = packet;
    return AQ_OK;
}

/* ---- what arrives ---- */

/* A segment may leave early by this much, with one that is due. */
static uint64_t tick_ns(const struct aq_wan_line *line)
{
    const double tick = line->rules.delay_ms * MS / TICK_PART;
    return (uint64_t)fmin(fmax(tick, TICK_NS_MIN), TICK_NS_MAX);
}

/* The first segment that arrives, at or behind packet->at; packet->segments: none. */
static uint32_t arriving(const struct aq_wan_packet *packet)
{
    uint32_t at = packet->at;
    while (at < packet->segments && packet->due_ns[at] == 0)
        at++;
    return at;
}

uint64_t aq_wan_line_wake_ns(const struct aq_wan_line *line)
{
    if (!line->first) return AQ_NEVER;
    const uint32_t at = arriving(line->first);
    return at < line->first->segments ? line->first->due_ns[at] : 0;
}

static uint32_t sum_words(const uint8_t *bytes, uint32_t count)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i + 1 < count; i += 2)
        sum += (uint32_t)bytes[i] << 8 | bytes[i + 1];
    return sum;
}

static uint16_t folded(uint32_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

/*
 * The headers of the segments from..end of a run, as the sender's kernel would have made them: lengths, number and sum
 * of IP; sequence number of TCP, FIN and PSH only at the last, CWR only at the first, and the sum over addresses and
 * length, with which the checksum is completed (VIRTIO_NET_HDR_F_NEEDS_CSUM).
 */
static void write_heads(const struct aq_wan_packet *packet, uint32_t from, uint32_t end, uint32_t body,
                        struct virtio_net_hdr *head, uint8_t *ip_and_tcp)
{
    struct iphdr ip;
    struct tcphdr tcp;
    memcpy(head, packet->bytes, sizeof *head);
    memcpy(ip_and_tcp, ip_of(packet->bytes), packet->head_bytes);
    memcpy(&ip, ip_and_tcp, sizeof ip);
    const uint32_t ip_bytes = ip.ihl * 4u;
    memcpy(&tcp, ip_and_tcp + ip_bytes, sizeof tcp);
    ip.tot_len = htons((uint16_t)(packet->head_bytes + body));
    ip.id = htons((uint16_t)(ntohs(ip.id) + from));
    ip.check = 0;
    memcpy(ip_and_tcp, &ip, sizeof ip);
    ip.check = htons((uint16_t)~folded(sum_words(ip_and_tcp, ip_bytes)));
    memcpy(ip_and_tcp, &ip, sizeof ip);
    tcp.seq = htonl(ntohl(tcp.seq) + from * packet->body_bytes);
    if (end < packet->segments) tcp.fin = tcp.psh = 0;
    uint8_t *flags = (uint8_t *)&tcp + 13;
    if (from > 0) *flags &= 0x7f; /* CWR */
    tcp.check = htons(folded(sum_words(ip_and_tcp + 12, 8) + IPPROTO_TCP + packet->head_bytes - ip_bytes + body));
    memcpy(ip_and_tcp + ip_bytes, &tcp, sizeof tcp);
    head->flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    head->csum_start = (uint16_t)ip_bytes;
    head->csum_offset = offsetof(struct tcphdr, check);
    head->hdr_len = (uint16_t)packet->head_bytes;
    if (end - from == 1) {
        head->gso_type = VIRTIO_NET_HDR_GSO_NONE;
        head->gso_size = 0;
    }
}

static enum aq_status write_run(const struct aq_wan_packet *packet, uint32_t from, uint32_t end, int fd)
{
    enum { HEADS_BYTES_MAX = 120 };
    struct virtio_net_hdr head;
    uint8_t ip_and_tcp[HEADS_BYTES_MAX];
    struct iovec parts[3] = {{packet->bytes, packet->count}, {NULL, 0}, {NULL, 0}};
    if (from > 0 || end < packet->segments) {
        const uint32_t all = packet->count - (uint32_t)sizeof head - packet->head_bytes;
        const uint32_t first = from * packet->body_bytes, last = end * packet->body_bytes;
        const uint32_t body = (last < all ? last : all) - first;
        write_heads(packet, from, end, body, &head, ip_and_tcp);
        parts[0] = (struct iovec){&head, sizeof head};
        parts[1] = (struct iovec){ip_and_tcp, packet->head_bytes};
        parts[2] = (struct iovec){packet->bytes + sizeof head + packet->head_bytes + first, body};
    }
    if (writev(fd, parts, 3) >= 0) return AQ_OK;
    return errno == EIO ? AQ_OK : aq_fail_errno("wanlab", "the device does not take a packet"); /* EIO: it is down */
}

enum aq_status aq_wan_line_deliver(struct aq_wan_line *line, uint64_t now_ns, int fd)
{
    const uint64_t until_ns = now_ns + tick_ns(line);
    struct aq_wan_packet *packet;
    while ((packet = line->first) != NULL) {
        const uint32_t from = arriving(packet);
        uint32_t end = from;
        while (end < packet->segments && packet->due_ns[end] != 0 && packet->due_ns[end] <= until_ns) {
            line->counts.packets++;
            line->counts.bytes += segment_bytes(packet, end++);
        }
        if (end > from) {
            const uint64_t due_ns = packet->due_ns[from];
            if (now_ns > due_ns + line->counts.late_ns_max) line->counts.late_ns_max = now_ns - due_ns;
            AQ_TRY(write_run(packet, from, end, fd));
        }
        packet->at = end;
        if (arriving(packet) == packet->segments)
            drop_first(line);
        else if (end == from || packet->due_ns[arriving(packet)] > until_ns)
            return AQ_OK;
    }
    return AQ_OK;
}
