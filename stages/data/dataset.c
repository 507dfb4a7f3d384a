/*
 * dataset.c -- text files as blocks of T tokens with stable ids.
 *
 * All tokens lie in one array; block i is tokens[i*T .. i*T+T], the last of which is only a target, so that N tokens
 * give (N-1)/T blocks. What the ids mean depends on files, tokenizer and T alone.
 */
#include <string.h>

#include "dataset_file.h"
#include "tokenizer.h"

#define AREA "dataset"
#define FILE_BYTES_MAX (UINT64_C(1) << 40) /* a TiB: beyond any memory, and far from running over a size_t */

struct aq_dataset {
    int32_t *tokens;
    uint64_t token_count;
    uint32_t T;
    uint64_t skip, count, dropped;
    uint64_t digest;
};

/* Appends the tokens of one file. */
static enum aq_status add_file(const struct aq_dataset_config *config, const char *path, struct aq_token_list *all)
{
    uint8_t *text;
    size_t bytes, count = 0;
    int32_t *tokens = NULL;
    AQ_TRY(aq_file_read(AREA, path, FILE_BYTES_MAX, &text, &bytes));
    enum aq_status status = aq_tokenizer_encode(config->tokenizer, (const char *)text, bytes, &tokens, &count);
    aq_free(text);
    if (status != AQ_OK) return status;
    if (!all->at) { /* the first file's tokens are not copied: often there is no other */
        *all = (struct aq_token_list){.at = tokens, .count = count, .capacity = count};
        tokens = NULL;
    } else {
        AQ_TRY_GOTO(aq_token_list_reserve(all, count), out);
        memcpy(all->at + all->count, tokens, count * sizeof(int32_t));
        all->count += count;
    }
    if (config->end_of_text) {
        AQ_TRY_GOTO(aq_token_list_reserve(all, 1), out);
        all->at[all->count++] = aq_tokenizer_end_of_text(config->tokenizer);
    }
    aq_log(AREA, 2, "file=%s bytes=%zu tokens=%zu", path, bytes, count);
out:
    aq_free(tokens);
    return status;
}

static enum aq_status check_config(const struct aq_dataset_config *config)
{
    if (config->path_count == 0) return aq_fail(AQ_INVAL, AREA, "no text file is named");
    if (config->T == 0) return aq_fail(AQ_INVAL, AREA, "a block must have at least 1 token, T is 0");
    if (config->end_of_text && aq_tokenizer_end_of_text(config->tokenizer) < 0)
        return aq_fail(AQ_INVAL, AREA, "the tokenizer has no end-of-text token to put between files");
    return AQ_OK;
}

/* Which blocks the configuration takes of those there are. */
static enum aq_status cut_blocks(const struct aq_dataset_config *config, struct aq_dataset *dataset)
{
    uint64_t blocks = dataset->token_count ? (dataset->token_count - 1) / config->T : 0;
    const char *more = config->path_count > 1 ? " and others" : "";
    if (blocks <= config->skip)
        return aq_fail(AQ_INVAL, AREA, "%s%s: %llu tokens make %llu blocks of T=%u (each takes T+1), %llu left out: "
                       "none remains", config->paths[0], more, (unsigned long long)dataset->token_count,
                       (unsigned long long)blocks, (unsigned)config->T, (unsigned long long)config->skip);
    dataset->T = config->T;
    dataset->skip = config->skip;
    dataset->count = blocks - config->skip;
    if (config->samples_max && dataset->count > config->samples_max) dataset->count = config->samples_max;
    dataset->dropped = dataset->token_count - 1 - blocks * config->T;
    return AQ_OK;
}

enum aq_status aq_dataset_open(const struct aq_dataset_config *config, struct aq_dataset **out)
{
    AQ_TRY(check_config(config));
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct aq_dataset), &memory));
    struct aq_dataset *dataset = memory;
    struct aq_token_list all = {0};
    enum aq_status status = AQ_OK;
    for (uint32_t i = 0; i < config->path_count && status == AQ_OK; i++)
        status = add_file(config, config->paths[i], &all);
    dataset->tokens = all.at;
    dataset->token_count = all.count;
    if (status == AQ_OK) status = cut_blocks(config, dataset);
    if (status != AQ_OK) {
        aq_dataset_close(dataset);
        return status;
    }
    dataset->digest = aq_digest(all.at, all.count * sizeof(int32_t));
    aq_log(AREA, 2, "tokens=%zu samples=%llu dropped_tokens=%llu", all.count, (unsigned long long)dataset->count,
           (unsigned long long)dataset->dropped);
    *out = dataset;
    return AQ_OK;
}

void aq_dataset_close(struct aq_dataset *dataset)
{
    if (!dataset) return;
    aq_free(dataset->tokens);
    aq_free(dataset);
}

uint64_t aq_dataset_count(const struct aq_dataset *dataset)
{
    return dataset->count;
}

uint32_t aq_dataset_tokens(const struct aq_dataset *dataset)
{
    return dataset->T;
}

uint64_t aq_dataset_dropped(const struct aq_dataset *dataset)
{
    return dataset->dropped;
}

uint64_t aq_dataset_digest(const struct aq_dataset *dataset)
{
    return dataset->digest;
}

uint64_t aq_dataset_id(const struct aq_dataset *dataset, uint64_t index)
{
    AQ_ASSERT(index < dataset->count);
    return dataset->skip + index;
}

enum aq_status aq_dataset_get(const struct aq_dataset *dataset, uint64_t index, int32_t *tokens, int32_t *targets)
{
    if (index >= dataset->count)
        return aq_fail(AQ_INVAL, AREA, "sample %llu of %llu", (unsigned long long)index,
                       (unsigned long long)dataset->count);
    const int32_t *block = dataset->tokens + (dataset->skip + index) * dataset->T;
    memcpy(tokens, block, dataset->T * sizeof(int32_t));
    memcpy(targets, block + 1, dataset->T * sizeof(int32_t));
    return AQ_OK;
}
