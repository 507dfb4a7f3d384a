/* lr_ends.c -- see the header. */
#include "lr_ends.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const choice_names[] = {
    [AQ_LR_UNSAID] = "", [AQ_LR_EXTEND] = "extend", [AQ_LR_CONTINUE] = "continue", [AQ_LR_RESTART] = "restart"};

const char *aq_lr_choice_name(enum aq_lr_choice choice)
{
    return choice_names[choice];
}

bool aq_lr_choice_named(const char *name, enum aq_lr_choice *out)
{
    for (int i = AQ_LR_EXTEND; i <= AQ_LR_RESTART; i++) {
        if (strcmp(name, choice_names[i]) != 0) continue;
        *out = (enum aq_lr_choice)i;
        return true;
    }
    return false;
}

/* "restart 24" at *text, which is then behind it. */
static bool end_read(const char **text, struct aq_lr_end *out)
{
    char name[16] = "", *behind;
    const size_t length = strcspn(*text, " ");
    if (length >= sizeof name) return false;
    memcpy(name, *text, length);
    const char *digits = *text + length + strspn(*text + length, " ");
    if (!aq_lr_choice_named(name, &out->choice) || *digits < '1' || *digits > '9') return false;
    out->step = strtoull(digits, &behind, 10);
    *text = behind + strspn(behind, " ");
    return out->step <= UINT64_C(1) << 60;
}

bool aq_lr_ends_read(const char *text, struct aq_lr_ends *out)
{
    struct aq_lr_ends ends = {0};
    const char *at = text ? text + strspn(text, " ") : "";
    for (; *at; at += strspn(at, " ")) {
        struct aq_lr_end end;
        if (ends.count == AQ_LR_ENDS_MAX || !end_read(&at, &end)) return false;
        if (ends.count > 0 && end.step <= ends.of[ends.count - 1].step) return false;
        ends.of[ends.count++] = end;
        if (*at && (*at != ',' || !at[1])) return false;
        at += *at == ',';
    }
    *out = ends;
    return true;
}

void aq_lr_ends_write(const struct aq_lr_ends *ends, char out[AQ_LR_ENDS_BYTES])
{
    size_t used = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < ends->count && used < AQ_LR_ENDS_BYTES; i++)
        used += (size_t)snprintf(out + used, AQ_LR_ENDS_BYTES - used, "%s%s %" PRIu64, i > 0 ? ", " : "",
                                 choice_names[ends->of[i].choice], ends->of[i].step);
}

static bool last_is(const struct aq_lr_ends *ends, enum aq_lr_choice choice)
{
    return ends->count > 0 && ends->of[ends->count - 1].choice == choice;
}

bool aq_lr_ends_add(struct aq_lr_ends *ends, enum aq_lr_choice choice, uint64_t step)
{
    struct aq_lr_ends now = *ends;
    if (choice == AQ_LR_UNSAID && now.count > 0) choice = now.of[now.count - 1].choice;
    while (now.count > 0 && now.of[now.count - 1].step >= step)
        now.count--;
    if (choice == AQ_LR_EXTEND && last_is(&now, AQ_LR_CONTINUE)) now.count--;
    if (choice != AQ_LR_EXTEND && last_is(&now, AQ_LR_EXTEND)) now.count--; /* superseded by the new choice */
    const bool same = choice != AQ_LR_RESTART && last_is(&now, choice);
    if (choice != AQ_LR_UNSAID && !same) {
        if (now.count == AQ_LR_ENDS_MAX) return false;
        now.of[now.count++] = (struct aq_lr_end){.choice = choice, .step = step};
    }
    *ends = now;
    return true;
}

float aq_lr_ends_rate(const struct aq_lr_ends *ends, const struct aq_lr_schedule *whole, uint64_t step)
{
    struct aq_lr_schedule stretch = *whole; /* the one that the step is in */
    uint64_t begin = 0, held = 0;           /* held: the step whose rate stays; 0: none */
    uint32_t i = 0;
    for (; i < ends->count; i++) {
        const struct aq_lr_end *end = &ends->of[i];
        if (end->choice == AQ_LR_CONTINUE && !held) held = end->step;
        if (end->choice != AQ_LR_RESTART) continue;
        if (step <= end->step) break;
        begin = end->step;
        held = 0;
    }
    const uint64_t last = held ? held : i < ends->count ? ends->of[i].step : whole->total;
    stretch.total = last - begin;
    if (held && step > held && !aq_lr_decay_paces(whole->decay)) step = held;
    return aq_learning_rate(&stretch, step - begin);
}
