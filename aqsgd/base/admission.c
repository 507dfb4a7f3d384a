/* admission.c -- see admission.h. Guests are counted again for each new connection: in one pass, unless all places are
 * taken and the newcomer's source has not got its half of them. */
#include "aqsgd/base/admission.h"

#include <stdbool.h>
#include <string.h>

#include "aqsgd/base/status.h"

uint64_t aq_source_of(const void *address, uint32_t address_bytes)
{
    static const uint8_t MAPPED[12] = {[10] = 0xff, [11] = 0xff};
    const uint8_t *bytes = address;
    uint64_t source = 0;
    if (address_bytes == 16 && memcmp(bytes, MAPPED, sizeof MAPPED) == 0) {
        bytes += sizeof MAPPED;
        address_bytes = 4;
    }
    if (address_bytes != 4 && address_bytes != 16) return 0;
    const uint32_t kept = address_bytes == 4 ? 4 : 8;
    for (uint32_t i = 0; i < kept; i++)
        source = source << 8 | bytes[i];
    /* The networks 0:1::/32 are not assigned, so that no IPv6 address is taken for one of these. */
    return address_bytes == 4 ? source | UINT64_C(1) << 32 : source;
}

static uint32_t crowd_of(const struct aq_guest *guests, uint32_t count, uint64_t source)
{
    uint32_t crowd = 0;
    for (uint32_t i = 0; i < count; i++)
        crowd += guests[i].state != AQ_GUEST_NONE && guests[i].source == source;
    return crowd;
}

/* An index among those of `crowd` (of guests' sources; 0: not in question) that equal `most`: who came first, or last.
 */
static uint32_t pick(const struct aq_guest *guests, const uint16_t *crowd, uint32_t count, uint32_t most, bool first)
{
    uint32_t at = AQ_ADMISSION_REFUSED;
    for (uint32_t i = 0; i < count; i++) {
        if (crowd[i] != most) continue;
        if (at == AQ_ADMISSION_REFUSED ||
            (first ? guests[i].since_ns < guests[at].since_ns : guests[i].since_ns >= guests[at].since_ns))
            at = i;
    }
    return at;
}

uint32_t aq_admit(const struct aq_guest *guests, uint32_t count, uint64_t source, uint64_t now_ns)
{
    uint16_t crowd[AQ_ADMISSION_PLACES_MAX];
    AQ_ASSERT(count <= AQ_ADMISSION_PLACES_MAX);
    const uint32_t own = crowd_of(guests, count, source);
    const bool has_its_half = own >= count - count / 2;
    for (uint32_t i = 0; i < count && !has_its_half; i++)
        if (guests[i].state == AQ_GUEST_NONE) return i;

    uint32_t most = own + 1; /* the newcomer counts */
    for (uint32_t i = 0; i < count; i++) {
        const bool same = guests[i].source == source;
        const bool in_question = guests[i].state == AQ_GUEST_UNPROVED && (same || !has_its_half);
        crowd[i] = in_question ? (uint16_t)((same ? own : crowd_of(guests, count, guests[i].source)) + same) : 0;
        if (crowd[i] > most) most = crowd[i];
    }
    const uint32_t longest = pick(guests, crowd, count, most, true);
    if (longest != AQ_ADMISSION_REFUSED && now_ns >= guests[longest].since_ns + AQ_ADMISSION_GRACE_NS) return longest;
    return own + 1 == most ? AQ_ADMISSION_REFUSED : pick(guests, crowd, count, most, false);
}
