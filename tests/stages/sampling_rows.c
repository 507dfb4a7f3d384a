/*
 * sampling_rows.c -- for test_sampling_reference: what is left of rows of logits, and what is drawn of it.
 *
 * A line {"logits": [...], "before": [...], "penalty": x, "temperature": x, "top_k": n, "top_p": x, "draws": n} from
 * standard input; the answer is {"ids": [...], "probabilities": [...], "tokens": [...]} with the draws, each a sequence
 * of its own.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "stages/sampling.h"

enum { VOCABULARY_MAX = 1 << 18, BEFORE_MAX = 4096 };

static float number(const json_t *object, const char *name)
{
    return (float)json_number_value(json_object_get(object, name));
}

static json_t *answer(const json_t *request)
{
    static float logits[VOCABULARY_MAX];
    static int32_t before[BEFORE_MAX], ids[VOCABULARY_MAX];
    static double probabilities[VOCABULARY_MAX];
    const json_t *row = json_object_get(request, "logits"), *seen = json_object_get(request, "before");
    const struct aq_sampling_config config = {.repetition_penalty = number(request, "penalty"),
                                              .temperature = number(request, "temperature"),
                                              .top_k = (uint32_t)json_integer_value(json_object_get(request, "top_k")),
                                              .top_p = number(request, "top_p"),
                                              .seed = 1};
    const uint32_t vocabulary = (uint32_t)json_array_size(row), noted = (uint32_t)json_array_size(seen);
    struct aq_sampling *sampling;
    uint32_t count;
    if (vocabulary > VOCABULARY_MAX || noted > BEFORE_MAX) return NULL;
    for (uint32_t i = 0; i < vocabulary; i++)
        logits[i] = (float)json_number_value(json_array_get(row, i));
    for (uint32_t i = 0; i < noted; i++)
        before[i] = (int32_t)json_integer_value(json_array_get(seen, i));
    json_t *out_ids = json_array(), *out_probabilities = json_array(), *tokens = json_array();
    if (aq_sampling_open(&config, vocabulary, &sampling) != AQ_OK || aq_sampling_note(sampling, before, noted) != AQ_OK)
        return NULL;
    if (aq_sampling_candidates(sampling, logits, ids, probabilities, &count) != AQ_OK) return NULL;
    for (uint32_t i = 0; i < count; i++) {
        json_array_append_new(out_ids, json_integer(ids[i]));
        json_array_append_new(out_probabilities, json_real(probabilities[i]));
    }
    for (json_int_t i = 0; i < json_integer_value(json_object_get(request, "draws")); i++) {
        int32_t token;
        aq_sampling_begin(sampling, (uint64_t)i);
        if (aq_sampling_note(sampling, before, noted) != AQ_OK || aq_sampling_next(sampling, logits, &token) != AQ_OK)
            return NULL;
        json_array_append_new(tokens, json_integer(token));
    }
    aq_sampling_close(sampling);
    return json_pack("{s:o, s:o, s:o}", "ids", out_ids, "probabilities", out_probabilities, "tokens", tokens);
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    for (ssize_t bytes; (bytes = getline(&line, &room, stdin)) > 0;) {
        json_t *request = json_loadb(line, (size_t)bytes, 0, NULL);
        json_t *out = request ? answer(request) : NULL;
        if (!out || json_dumpf(out, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF) return 1;
        json_decref(out);
        json_decref(request);
    }
    free(line);
    return fflush(stdout) == 0 ? 0 : 1;
}
