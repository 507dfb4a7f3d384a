/*
 * relay_words.h -- the messages between an end of a link and a relay, before the bytes of the link (docs/FRAME.md,
 * "Over a relay"). Both ends read this one statement of them.
 *
 *     offset  bytes  hello, from an end
 *     0       8      "AQRELAY1"
 *     8       1      role: 1 waits for others (it listens), 2 calls (it connects)
 *     9       7      0
 *     16      16     the room: a secret of those who may meet in it
 *
 *     offset  bytes  word, from the relay
 *     0       7      "AQRELAY"
 *     7       1      1 waiting: the room has it; 2 joined: from here on all bytes are the peer's; 3 nobody waits in the
 *                    room; 4 full: a bound of the room is reached
 *
 * Locking: pure functions.
 */
#ifndef NET_RELAY_WORDS_H
#define NET_RELAY_WORDS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { AQ_RELAY_HELLO_BYTES = 32, AQ_RELAY_WORD_BYTES = 8, AQ_RELAY_ROOM_BYTES = 16, AQ_RELAY_MAGIC_BYTES = 8 };
enum aq_relay_role { AQ_RELAY_WAITS = 1, AQ_RELAY_CALLS = 2 };
enum aq_relay_word { AQ_RELAY_WAITING = 1, AQ_RELAY_JOINED = 2, AQ_RELAY_NOBODY = 3, AQ_RELAY_FULL = 4 };

static inline void aq_relay_hello_write(enum aq_relay_role role, const uint8_t room[AQ_RELAY_ROOM_BYTES],
                                        uint8_t out[AQ_RELAY_HELLO_BYTES])
{
    memset(out, 0, AQ_RELAY_HELLO_BYTES);
    memcpy(out, "AQRELAY1", AQ_RELAY_MAGIC_BYTES);
    out[8] = (uint8_t)role;
    memcpy(out + 16, room, AQ_RELAY_ROOM_BYTES);
}

/* False: these are not the first bytes of a hello. */
static inline bool aq_relay_hello_begins(const uint8_t *bytes, uint32_t count)
{
    return memcmp(bytes, "AQRELAY1", count < AQ_RELAY_MAGIC_BYTES ? count : AQ_RELAY_MAGIC_BYTES) == 0;
}

/* False: it is none. */
static inline bool aq_relay_hello_read(const uint8_t hello[AQ_RELAY_HELLO_BYTES], enum aq_relay_role *role,
                                       uint8_t room[AQ_RELAY_ROOM_BYTES])
{
    static const uint8_t zeros[7];
    if (!aq_relay_hello_begins(hello, AQ_RELAY_HELLO_BYTES) || hello[8] < AQ_RELAY_WAITS || hello[8] > AQ_RELAY_CALLS ||
        memcmp(hello + 9, zeros, sizeof zeros) != 0)
        return false;
    *role = (enum aq_relay_role)hello[8];
    memcpy(room, hello + 16, AQ_RELAY_ROOM_BYTES);
    return true;
}

static inline void aq_relay_word_write(enum aq_relay_word word, uint8_t out[AQ_RELAY_WORD_BYTES])
{
    memcpy(out, "AQRELAY", 7);
    out[7] = (uint8_t)word;
}

static inline bool aq_relay_word_read(const uint8_t bytes[AQ_RELAY_WORD_BYTES], enum aq_relay_word *word)
{
    if (memcmp(bytes, "AQRELAY", 7) != 0 || bytes[7] < AQ_RELAY_WAITING || bytes[7] > AQ_RELAY_FULL) return false;
    *word = (enum aq_relay_word)bytes[7];
    return true;
}

#endif
