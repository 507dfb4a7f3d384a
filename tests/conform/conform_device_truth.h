/*
 * conform_device_truth.h -- what the plain truth answered, kept from one variant to the next. Included by
 * conform_device.c alone.
 *
 * The truth is by far the slowest of all that are compared, and every variant makes the same calls in the same order:
 * so the truth is asked once. A call is known by its place in that order, its name and a digest of what went in; where
 * any of these differs (a variant that leaves calls out, a GPU that makes others) the truth is asked anew.
 */
#include "aqsgd/base/digest.h"

struct truth_answer {
    uint64_t call; /* digest of its name and of what goes in */
    uint32_t count;
    void **results; /* one an array; ours */
};

static struct {
    struct truth_answer *answers;
    size_t count, capacity, next; /* next: of the call to come */
} truths;

static uint64_t truth_call(const char *what, const struct array *arrays, uint32_t count)
{
    uint64_t digest = aq_digest_seeded(what, strlen(what), count);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t shape[] = {(uint64_t)arrays[i].type, arrays[i].count, arrays[i].host != NULL};
        digest = aq_digest_seeded(shape, sizeof shape, digest);
        if (arrays[i].host)
            digest = aq_digest_seeded(arrays[i].host, bytes_of(arrays[i].type, arrays[i].count), digest);
    }
    return digest;
}

static void truth_rewind(void)
{
    truths.next = 0;
}

static void truth_answer_free(struct truth_answer *answer)
{
    for (uint32_t i = 0; i < answer->count; i++)
        aq_free(answer->results[i]);
    aq_free(answer->results);
}

static void truth_forget(void)
{
    for (size_t i = 0; i < truths.count; i++)
        truth_answer_free(&truths.answers[i]);
    free(truths.answers);
    memset(&truths, 0, sizeof truths);
}

/* Sets results[0] of every array, which stay ours, and says true where the next call is the one that was kept. */
static bool truth_reload(const char *what, struct array *arrays, uint32_t count)
{
    if (truths.next >= truths.count) return false;
    const struct truth_answer *answer = &truths.answers[truths.next];
    if (answer->count != count || answer->call != truth_call(what, arrays, count)) return false;
    truths.next++;
    for (uint32_t i = 0; i < count; i++)
        arrays[i].results[0] = answer->results[i];
    return true;
}

/* Takes results[0] of every array: what comes after the last call that was the same is forgotten. */
static void truth_keep(const char *what, const struct array *arrays, uint32_t count)
{
    while (truths.count > truths.next)
        truth_answer_free(&truths.answers[--truths.count]);
    if (truths.count == truths.capacity) {
        truths.capacity = truths.capacity ? 2 * truths.capacity : 256;
        truths.answers = realloc(truths.answers, truths.capacity * sizeof *truths.answers);
        assert_non_null(truths.answers);
    }
    struct truth_answer *answer = &truths.answers[truths.count++];
    truths.next = truths.count;
    answer->call = truth_call(what, arrays, count);
    answer->count = count;
    answer->results = help_alloc(count * sizeof *answer->results);
    for (uint32_t i = 0; i < count; i++)
        answer->results[i] = arrays[i].results[0];
}
