/*
 * pieces.c -- see pieces.h.
 *
 *     offset  bytes  head of a datagram, little endian
 *     0       1      kind: 1 piece, 2 parity, 3 window
 *     1       1      piece: 1 the end of the direction, else 0; parity: row; window: 0
 *     2       1      parity: pieces of the block (1 to 24); else 0
 *     3       1      1: this end takes AQ_PIECES_WINDOW pieces; 0: AQ_PIECES_WINDOW_FIRST, and no parity
 *     4       4      piece: its number; parity: that of the block's first piece; window: 0 (low 32 bits)
 *     8       4      pieces that the sender of this datagram has given to its reader (low 32 bits)
 *
 * A parity's body is a length of 2 bytes (with bit 15 for an end) and as many bytes as the longest piece of its block.
 */
#include "pieces.h"

#include <string.h>

enum {
    PIECE = 1,
    PARITY = 2,
    WINDOW = 3,
    END_BIT = 0x8000,
    LENGTH_BYTES = 2,
    ROW_BYTES = LENGTH_BYTES + AQ_PIECE_BYTES,
    WORDS = 4 /* of the window, while it is read once */
};

enum state {
    FREE = 0,
    WAITS = 1, /* cut, or lost: to be sent */
    FLIES = 2,
    THERE = 3
};

struct slot {
    uint16_t length; /* with END_BIT */
    uint8_t state;   /* enum state; of the reader: FREE or THERE */
    uint8_t body[AQ_PIECE_BYTES];
};

struct block { /* of the writer: being made */
    uint64_t first;
    uint32_t count, rows, longest;
    uint32_t due; /* rows that are still to be sent, from `rows - due` on; 0: none */
    uint8_t row[AQ_PIECES_ROWS][ROW_BYTES];
};

struct repair { /* of the reader: parity of a block that is not whole */
    uint64_t first;
    uint32_t count;
    uint8_t have; /* rows, by bits; 0: the place is free */
    uint16_t bytes[AQ_PIECES_ROWS];
    uint8_t row[AQ_PIECES_ROWS][ROW_BYTES];
};

struct whole { /* of a peer that has proved who it is */
    struct slot out[AQ_PIECES_WINDOW], in[AQ_PIECES_WINDOW];
    struct repair repairs[AQ_PIECES_REPAIRS];
};

struct aq_pieces {
    struct slot *out, *in; /* `window` each, of `first` or of `whole` */
    uint32_t window;
    bool peer_whole; /* the peer takes the whole window */
    struct whole *whole;
    struct slot first[2][AQ_PIECES_WINDOW_FIRST];
    uint64_t out_first;   /* the oldest that the peer's reader has not got */
    uint64_t out_next;    /* the next number                              */
    uint64_t out_due;     /* none before it is new and unsent             */
    uint32_t unacked;     /* pieces that may not be there yet              */
    uint64_t again_first; /* none before it is lost                       */
    uint32_t again_count; /* pieces that were lost and wait                */
    uint32_t rows;
    bool ended, end_due; /* no write comes; the end has no piece yet */
    struct block block;
    uint64_t in_next;   /* to be given to the reader */
    uint32_t in_offset; /* of its bytes              */
    uint64_t in_told;   /* in_next, as the peer was last told */
    uint64_t grown_at;  /* in_next, when the window grew */
    bool word_due, in_ended;
    uint32_t repair_at;
    uint64_t repaired, repeated;
    uint8_t exponent[512], logarithm[256];
};

static struct slot *slot_out(const struct aq_pieces *p, uint64_t number)
{
    return &p->out[number & (p->window - 1)];
}

static struct slot *slot_in(const struct aq_pieces *p, uint64_t number)
{
    return &p->in[number & (p->window - 1)];
}

/* A block's pieces stay in their places until all of it was read. */
static uint32_t ahead(uint32_t window)
{
    return window - AQ_PIECES_BLOCK;
}

/* ---- GF(256) ---- */

static void make_tables(struct aq_pieces *p)
{
    uint32_t x = 1;
    for (uint32_t i = 0; i < 255; i++) {
        p->exponent[i] = p->exponent[i + 255] = (uint8_t)x;
        p->logarithm[x] = (uint8_t)i;
        x <<= 1;
        if (x & 0x100) x ^= 0x11d;
    }
}

static uint8_t multiply(const struct aq_pieces *p, uint8_t a, uint8_t b)
{
    return a && b ? p->exponent[p->logarithm[a] + p->logarithm[b]] : 0;
}

/* to[0 .. bytes) ^= factor * from[0 .. bytes). */
static void add_times(const struct aq_pieces *p, uint8_t *to, const uint8_t *from, uint32_t bytes, uint8_t factor)
{
    uint8_t table[256];
    if (factor == 1) {
        for (uint32_t i = 0; i < bytes; i++)
            to[i] ^= from[i];
        return;
    }
    table[0] = 0;
    for (uint32_t v = 1; v < 256; v++)
        table[v] = p->exponent[p->logarithm[factor] + p->logarithm[v]];
    for (uint32_t i = 0; i < bytes; i++)
        to[i] ^= table[from[i]];
}

/* a^(row * place) */
static uint8_t factor_of(const struct aq_pieces *p, uint32_t row, uint32_t place)
{
    return p->exponent[row * place % 255];
}

static void add_piece(const struct aq_pieces *p, uint8_t *row, const struct slot *slot, uint8_t factor)
{
    const uint8_t length[LENGTH_BYTES] = {(uint8_t)slot->length, (uint8_t)(slot->length >> 8)};
    add_times(p, row, length, LENGTH_BYTES, factor);
    add_times(p, row + LENGTH_BYTES, slot->body, slot->length & ~END_BIT, factor);
}

/* ---- life ---- */

enum aq_status aq_pieces_open(struct aq_pieces **out)
{
    AQ_TRY(AQ_NEW(1, out));
    struct aq_pieces *p = *out;
    p->out = p->first[0];
    p->in = p->first[1];
    p->window = AQ_PIECES_WINDOW_FIRST;
    make_tables(p);
    return AQ_OK;
}

uint64_t aq_pieces_measure(void)
{
    return sizeof(struct aq_pieces) + sizeof(struct whole);
}

/* Pieces that are on their way or wait to be read have other places afterwards. No block has parity yet. */
enum aq_status aq_pieces_grow(struct aq_pieces *p)
{
    struct whole *whole;
    if (p->whole) return AQ_OK;
    AQ_TRY(AQ_NEW(1, &whole));
    for (uint64_t number = p->out_first; number < p->out_next; number++)
        whole->out[number & (AQ_PIECES_WINDOW - 1)] = *slot_out(p, number);
    for (uint64_t number = p->in_next; number < p->in_next + ahead(p->window); number++)
        whole->in[number & (AQ_PIECES_WINDOW - 1)] = *slot_in(p, number);
    p->whole = whole;
    p->out = whole->out;
    p->in = whole->in;
    p->window = AQ_PIECES_WINDOW;
    p->grown_at = p->in_next;
    p->word_due = true;
    return AQ_OK;
}

void aq_pieces_close(struct aq_pieces *pieces)
{
    if (pieces) aq_free(pieces->whole);
    aq_free(pieces);
}

/* ---- out ---- */

void aq_pieces_parity(struct aq_pieces *p, uint32_t rows)
{
    AQ_ASSERT(rows <= AQ_PIECES_ROWS);
    p->rows = p->peer_whole ? rows : 0;
}

void aq_pieces_flush(struct aq_pieces *p)
{
    if (p->block.due == 0 && p->block.count > 0) p->block.due = p->block.rows;
    if (p->block.due == 0) p->block.count = 0;
}

bool aq_pieces_open_block(const struct aq_pieces *p)
{
    return p->block.rows > 0 && p->block.count > 0;
}

static void join_block(struct aq_pieces *p, uint64_t number)
{
    struct block *b = &p->block;
    const struct slot *slot = slot_out(p, number);
    const uint32_t bytes = slot->length & ~END_BIT;
    if (b->count == 0) {
        b->first = number;
        b->rows = p->rows;
        b->longest = 0;
        memset(b->row, 0, sizeof b->row[0] * b->rows);
    }
    for (uint32_t r = 0; r < b->rows; r++)
        add_piece(p, b->row[r], slot, factor_of(p, r, b->count));
    if (bytes > b->longest) b->longest = bytes;
    if (++b->count == AQ_PIECES_BLOCK) aq_pieces_flush(p);
}

/* A new piece of this length takes its number. */
static void cut(struct aq_pieces *p, uint16_t length)
{
    struct slot *slot = slot_out(p, p->out_next);
    slot->length = length;
    slot->state = WAITS;
    p->unacked++;
    if (p->block.due == 0) join_block(p, p->out_next); /* the end may come while parity is due: it has none then */
    p->out_next++;
}

/* Within both ends' windows. */
static bool room_ahead(const struct aq_pieces *p)
{
    return p->out_next - p->out_first < ahead(p->peer_whole ? p->window : AQ_PIECES_WINDOW_FIRST);
}

static bool may_cut(const struct aq_pieces *p)
{
    return !p->ended && p->block.due == 0 && p->out_due == p->out_next && room_ahead(p);
}

enum aq_status aq_pieces_write(struct aq_pieces *p, const struct iovec *iov, int count, uint32_t most, size_t *put)
{
    struct slot *slot = slot_out(p, p->out_next);
    uint32_t bytes = 0;
    AQ_ASSERT(most > 0 && most <= AQ_PIECE_BYTES);
    if (!may_cut(p)) return AQ_AGAIN;
    for (int i = 0; i < count && bytes < most; i++) {
        const size_t room = most - bytes, part = iov[i].iov_len < room ? iov[i].iov_len : room;
        memcpy(slot->body + bytes, iov[i].iov_base, part);
        bytes += (uint32_t)part;
    }
    if (bytes == 0) return AQ_AGAIN;
    cut(p, (uint16_t)bytes);
    *put = bytes;
    return AQ_OK;
}

/* The end is cut as soon as the window has room for it. */
static void cut_end(struct aq_pieces *p)
{
    if (!p->end_due || !room_ahead(p)) return;
    cut(p, END_BIT);
    p->end_due = false;
    aq_pieces_flush(p);
}

void aq_pieces_end(struct aq_pieces *p)
{
    p->end_due |= !p->ended;
    p->ended = true;
    cut_end(p);
    aq_pieces_flush(p);
}

static void put_u32(uint8_t *to, uint64_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

static void make_head(const struct aq_pieces *p, struct aq_piece_out *out, uint8_t kind, uint8_t which, uint32_t count,
                      uint64_t number)
{
    out->kind = kind;
    memset(out->head, 0, sizeof out->head);
    out->head[0] = kind;
    out->head[1] = which;
    out->head[2] = (uint8_t)count;
    out->head[3] = p->whole != NULL;
    put_u32(out->head + 4, number);
    put_u32(out->head + 8, p->in_next);
    out->id = number << 2 | kind;
}

static void make_piece(const struct aq_pieces *p, uint64_t number, struct aq_piece_out *out)
{
    const struct slot *slot = slot_out(p, number);
    make_head(p, out, PIECE, slot->length & END_BIT ? 1 : 0, 0, number);
    out->body = slot->body;
    out->body_bytes = slot->length & ~END_BIT;
}

/* The first lost piece that waits, if any. */
static bool find_lost(struct aq_pieces *p, uint64_t *number)
{
    if (p->again_first < p->out_first) p->again_first = p->out_first;
    for (; p->again_count > 0 && p->again_first < p->out_due; p->again_first++)
        if (slot_out(p, p->again_first)->state == WAITS) {
            *number = p->again_first;
            return true;
        }
    p->again_count = 0;
    return false;
}

bool aq_pieces_next(struct aq_pieces *p, struct aq_piece_out *out)
{
    const struct block *b = &p->block;
    uint64_t number;
    cut_end(p);
    if (find_lost(p, &number)) {
        make_piece(p, number, out);
        return true;
    }
    if (p->out_due < p->out_next) {
        make_piece(p, p->out_due, out);
        return true;
    }
    if (b->due > 0) {
        const uint32_t row = b->rows - b->due;
        make_head(p, out, PARITY, (uint8_t)row, b->count, b->first);
        out->body = b->row[row];
        out->body_bytes = LENGTH_BYTES + b->longest;
        return true;
    }
    if (!p->word_due) return false;
    make_head(p, out, WINDOW, 0, 0, 0);
    out->body = NULL;
    out->body_bytes = 0;
    return true;
}

void aq_pieces_sent(struct aq_pieces *p, const struct aq_piece_out *out)
{
    const uint64_t number = out->id >> 2;
    p->in_told = p->in_next;
    p->word_due = false;
    if (out->kind == PARITY && --p->block.due == 0) p->block.count = 0;
    if (out->kind != PIECE) return;
    slot_out(p, number)->state = FLIES;
    if (number < p->out_due) {
        p->again_count--;
        p->repeated++;
    } else
        p->out_due = number + 1;
}

static bool flies(const struct aq_pieces *p, uint64_t number)
{
    return number >= p->out_first && number < p->out_due;
}

void aq_pieces_acked(struct aq_pieces *p, uint64_t id)
{
    const uint64_t number = id >> 2;
    if ((id & 3) != PIECE || !flies(p, number)) return;
    struct slot *slot = slot_out(p, number);
    if (slot->state == THERE) return;
    if (slot->state == WAITS) p->again_count--;
    p->unacked--;
    slot->state = THERE;
}

void aq_pieces_lost(struct aq_pieces *p, uint64_t id)
{
    const uint64_t number = id >> 2;
    if ((id & 3) != PIECE) p->word_due = true; /* it may have been the only one that told the window */
    if ((id & 3) != PIECE || !flies(p, number) || slot_out(p, number)->state != FLIES) return;
    slot_out(p, number)->state = WAITS;
    p->again_count++;
    if (number < p->again_first) p->again_first = number;
}

void aq_pieces_word(struct aq_pieces *p)
{
    p->word_due = true;
}

void aq_pieces_lost_all(struct aq_pieces *p)
{
    for (uint64_t number = p->out_first; number < p->out_due; number++)
        aq_pieces_lost(p, number << 2 | PIECE);
}

/* The peer's reader has all before this. */
static void take_window(struct aq_pieces *p, uint64_t read)
{
    for (; p->out_first < read; p->out_first++) {
        struct slot *slot = slot_out(p, p->out_first);
        if (slot->state == WAITS) p->again_count--;
        if (slot->state != THERE) p->unacked--;
        slot->state = FREE;
    }
}

/* ---- in ---- */

static bool here(const struct aq_pieces *p, uint64_t number)
{
    return number < p->in_next || slot_in(p, number)->state == THERE;
}

static uint32_t missing_of(const struct aq_pieces *p, const struct repair *r, uint32_t places[AQ_PIECES_ROWS])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        if (here(p, r->first + i)) continue;
        if (count < AQ_PIECES_ROWS) places[count] = i;
        count++;
    }
    return count;
}

/*
 * Missing pieces by elimination: rows[i] has the sum of the missing pieces, each times its factor. Rows
 * are used as they lie and not needed afterwards.
 */
static void solve(struct aq_pieces *p, uint8_t *rows[], uint8_t m[][AQ_PIECES_ROWS], uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t inverse = p->exponent[255 - p->logarithm[m[i][i]]]; /* never 0: pieces.h */
        uint8_t scaled[ROW_BYTES] = {0};
        add_times(p, scaled, rows[i], ROW_BYTES, inverse);
        memcpy(rows[i], scaled, ROW_BYTES);
        for (uint32_t k = 0; k < count; k++)
            m[i][k] = multiply(p, m[i][k], inverse);
        for (uint32_t j = 0; j < count; j++) {
            const uint8_t factor = m[j][i];
            if (j == i || factor == 0) continue;
            add_times(p, rows[j], rows[i], ROW_BYTES, factor);
            for (uint32_t k = 0; k < count; k++)
                m[j][k] ^= multiply(p, factor, m[i][k]);
        }
    }
}

static enum aq_status place_repaired(struct aq_pieces *p, uint64_t number, const uint8_t *row, const char **text)
{
    const uint16_t length = (uint16_t)(row[0] | row[1] << 8);
    struct slot *slot = slot_in(p, number);
    if (length == 0 || (length > AQ_PIECE_BYTES && length != END_BIT)) {
        *text = "sent parity that does not fit its pieces";
        return AQ_PROTO;
    }
    slot->length = length;
    memcpy(slot->body, row + LENGTH_BYTES, length & ~END_BIT);
    slot->state = THERE;
    p->repaired++;
    return AQ_OK;
}

/*
 * Its place is free afterwards, unless parity is missing. Pieces of the block that were read already are still in their
 * places: nothing behind the missing one was read, and the writer is never further ahead than `ahead`.
 */
static enum aq_status try_repair(struct aq_pieces *p, struct repair *r, const char **text)
{
    uint32_t places[AQ_PIECES_ROWS], used = 0;
    uint8_t *rows[AQ_PIECES_ROWS], m[AQ_PIECES_ROWS][AQ_PIECES_ROWS];
    const uint32_t missing = missing_of(p, r, places);
    if (missing > (uint32_t)__builtin_popcount(r->have)) return AQ_OK;
    for (uint32_t row = 0; row < AQ_PIECES_ROWS && used < missing; row++) {
        if (!(r->have >> row & 1)) continue;
        for (uint32_t i = 0; i < r->count; i++)
            if (here(p, r->first + i)) add_piece(p, r->row[row], slot_in(p, r->first + i), factor_of(p, row, i));
        for (uint32_t k = 0; k < missing; k++)
            m[used][k] = factor_of(p, row, places[k]);
        rows[used++] = r->row[row];
    }
    solve(p, rows, m, missing);
    r->have = 0;
    for (uint32_t k = 0; k < missing; k++)
        AQ_TRY(place_repaired(p, r->first + places[k], rows[k], text));
    return AQ_OK;
}

static enum aq_status repair_around(struct aq_pieces *p, uint64_t number, const char **text)
{
    for (uint32_t i = 0; p->whole && i < AQ_PIECES_REPAIRS; i++) {
        struct repair *r = &p->whole->repairs[i];
        if (r->have && number >= r->first && number < r->first + r->count) AQ_TRY(try_repair(p, r, text));
    }
    return AQ_OK;
}

static enum aq_status take_piece(struct aq_pieces *p, uint64_t number, bool end, const uint8_t *body, size_t bytes,
                                 const char **text)
{
    struct slot *slot = slot_in(p, number);
    if (bytes > AQ_PIECE_BYTES || (bytes == 0) != end) {
        *text = "sent a piece of no possible length";
        return AQ_PROTO;
    }
    if (number >= p->in_next + ahead(p->window)) {
        *text = "sent a piece beyond the window";
        return AQ_PROTO;
    }
    if (here(p, number)) return AQ_OK;
    slot->length = (uint16_t)(bytes | (end ? END_BIT : 0));
    memcpy(slot->body, body, bytes);
    slot->state = THERE;
    return repair_around(p, number, text);
}

/* The place of a block's parity: its own, a free one, or the one that was filled longest ago. */
static struct repair *repair_for(struct aq_pieces *p, uint64_t first, uint32_t count)
{
    struct repair *best = NULL;
    for (uint32_t i = 0; i < AQ_PIECES_REPAIRS; i++) {
        struct repair *r = &p->whole->repairs[i];
        if (r->have && r->first == first && r->count == count) return r;
        if (!r->have && !best) best = r;
    }
    if (!best) best = &p->whole->repairs[p->repair_at++ % AQ_PIECES_REPAIRS];
    best->first = first;
    best->count = count;
    best->have = 0;
    return best;
}

static enum aq_status take_parity(struct aq_pieces *p, const uint8_t head[AQ_PIECE_HEAD_BYTES], uint64_t first,
                                  const uint8_t *body, size_t bytes, const char **text)
{
    const uint32_t row = head[1], count = head[2];
    uint32_t places[AQ_PIECES_ROWS];
    if (row >= AQ_PIECES_ROWS || count == 0 || count > AQ_PIECES_BLOCK || bytes < LENGTH_BYTES || bytes > ROW_BYTES) {
        *text = "sent parity of no possible block";
        return AQ_PROTO;
    }
    if (!p->whole) {
        *text = "sent parity before this end takes any";
        return AQ_PROTO;
    }
    if (first + count > p->in_next + ahead(p->window)) {
        *text = "sent parity beyond the window";
        return AQ_PROTO;
    }
    const struct repair asked = {.first = first, .count = count};
    if (missing_of(p, &asked, places) == 0) return AQ_OK;
    struct repair *r = repair_for(p, first, count);
    if (r->have >> row & 1) return AQ_OK;
    memcpy(r->row[row], body, bytes);
    memset(r->row[row] + bytes, 0, ROW_BYTES - bytes);
    r->have |= (uint8_t)(1u << row);
    return try_repair(p, r, text);
}

/* The number whose low 32 bits these are, the nearest to one that is known. Before 0: a number that never comes. */
static uint64_t whole_number(uint64_t near, const uint8_t *from)
{
    const uint32_t low = (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
    return near + (uint64_t)(int64_t)(int32_t)(low - (uint32_t)near);
}

enum aq_status aq_pieces_receive(struct aq_pieces *p, const uint8_t *datagram, size_t bytes, const char **text)
{
    if (bytes < AQ_PIECE_HEAD_BYTES) {
        *text = "sent a datagram without a head";
        return AQ_PROTO;
    }
    const uint64_t read = whole_number(p->out_first, datagram + 8), number = whole_number(p->in_next, datagram + 4);
    const uint8_t *body = datagram + AQ_PIECE_HEAD_BYTES;
    if ((int64_t)(read - p->out_first) > (int64_t)(p->out_due - p->out_first)) {
        *text = "reports pieces that were not sent";
        return AQ_PROTO;
    }
    if ((int64_t)(read - p->out_first) > 0) take_window(p, read);
    if (datagram[0] > WINDOW || datagram[0] == 0 || datagram[3] > 1 || (datagram[0] != WINDOW && (int64_t)number < 0)) {
        *text = "sent a datagram of an unknown kind";
        return AQ_PROTO;
    }
    if (datagram[3] == 1) p->peer_whole = true;
    bytes -= AQ_PIECE_HEAD_BYTES;
    if (datagram[0] == WINDOW) return AQ_OK;
    return datagram[0] == PIECE ? take_piece(p, number, datagram[1] == 1, body, bytes, text)
                                : take_parity(p, datagram, number, body, bytes, text);
}

/*
 * Pieces that are read between two words. The word that the window has grown may be lost, and the layer below may not
 * report it: until the peer must have heard another one, it is told as often as one that knows only the first window.
 */
static uint32_t word_every(const struct aq_pieces *p)
{
    const uint32_t whole = ahead(p->window) / WORDS;
    return p->in_next < p->grown_at + whole ? ahead(AQ_PIECES_WINDOW_FIRST) / WORDS : whole;
}

enum aq_status aq_pieces_read(struct aq_pieces *p, const struct iovec *iov, int count, size_t *got)
{
    size_t total = 0, filled = 0;
    for (int i = 0; i < count && slot_in(p, p->in_next)->state == THERE;) {
        struct slot *slot = slot_in(p, p->in_next);
        const size_t room = iov[i].iov_len - filled, left = (slot->length & ~END_BIT) - p->in_offset;
        const size_t part = left < room ? left : room;
        if (slot->length & END_BIT) {
            p->in_ended = true;
            break;
        }
        memcpy((uint8_t *)iov[i].iov_base + filled, slot->body + p->in_offset, part);
        total += part;
        filled += part;
        p->in_offset += (uint32_t)part;
        if (part == left) {
            slot->state = FREE;
            p->in_next++;
            p->in_offset = 0;
        }
        if (filled < iov[i].iov_len) continue;
        filled = 0;
        i++;
    }
    if (p->in_next - p->in_told >= word_every(p)) p->word_due = true;
    if (total == 0) return p->in_ended ? AQ_CLOSED : AQ_AGAIN;
    *got = total;
    return AQ_OK;
}

void aq_pieces_stats(const struct aq_pieces *p, struct aq_pieces_stats *out)
{
    *out = (struct aq_pieces_stats){.repaired = p->repaired, .repeated = p->repeated, .unacked = p->unacked};
}
