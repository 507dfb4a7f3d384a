/*
 * bench_tokenize.c -- speed of the tokenizers: MB of text per second.
 *
 * Text and tokenizer are the caller's (--text FILE, --tokenizer FOLDER: any folder that data.tokenizer_path takes);
 * without them it prints that there is nothing to measure. "one core" is one call over the whole text; "all cores" is
 * the opening of a data set, as a stage does it: pieces over all cores, digests, samples; "kept" is the same with the
 * tokens already in data.cache. A figure is the best of the repeats.
 */
#include "bench.h"

#include <stdio.h>

#include "owned_folder.h"
#include "stages/dataset.h"

enum { REPEATS = 7, TEXT_BYTES_MAX = 1 << 30, T = 128 };

struct tokens {
    const struct aq_tokenizer *tokenizer;
    const char *text;
    size_t bytes;
    struct aq_dataset_config set;
};

static enum aq_status encode_run(void *context)
{
    const struct tokens *self = context;
    int32_t *tokens;
    size_t count;
    AQ_TRY(aq_tokenizer_encode(self->tokenizer, self->text, self->bytes, &tokens, &count));
    aq_free(tokens);
    return AQ_OK;
}

static enum aq_status open_run(void *context)
{
    const struct tokens *self = context;
    struct aq_dataset *dataset;
    AQ_TRY(aq_dataset_open(&self->set, &dataset));
    aq_dataset_close(dataset);
    return AQ_OK;
}

/* Runs in its own folder, which is removed. */
static enum aq_status kept_run(const struct aq_bench_options *options, struct aq_bench_case one, struct tokens *self,
                               const char *kind)
{
    char folder[] = "aqpipe-bench-tokenize-XXXXXX";
    AQ_TRY(aq_owned_scratch_make(folder));
    self->set.cache = folder;
    enum aq_status status = open_run(self);
    if (status == AQ_OK) status = aq_bench_case(options, &one, NULL, "tokenize %s kept", kind);
    const enum aq_status removed = aq_owned_scratch_remove(folder, NULL);
    return status == AQ_OK ? removed : status;
}

enum aq_status aq_bench_tokenize(const struct aq_bench_options *options)
{
    if (!options->text || !options->tokenizer) {
        fprintf(stderr, "aqpipe bench: tokenize is left out: it needs --text FILE and --tokenizer FOLDER\n");
        return AQ_OK;
    }
    const char *kind = aq_tokenizer_of_folder(options->tokenizer);
    struct aq_tokenizer *tokenizer = NULL;
    char *text = NULL;
    size_t bytes = 0;
    enum aq_status status;
    if (!kind) return aq_fail(AQ_NOTFOUND, "bench", "%s: no tokenizer is in this folder", options->tokenizer);
    AQ_TRY_GOTO(aq_tokenizer_open(kind, options->tokenizer, &tokenizer), out);
    AQ_TRY_GOTO(aq_file_load(NULL, options->text, TEXT_BYTES_MAX, &text, &bytes), out);
    struct tokens self = {.tokenizer = tokenizer,
                          .text = text,
                          .bytes = bytes,
                          .set = {.kind = "text",
                                  .paths = &options->text,
                                  .path_count = 1,
                                  .tokenizer = tokenizer,
                                  .T = T,
                                  .threads = options->threads}};
    struct aq_bench_case one = {encode_run, &self, REPEATS, .amount = 1e-6 * (double)bytes, .unit = "MB/s"};
    AQ_TRY_GOTO(aq_bench_case(options, &one, NULL, "tokenize %s one core", kind), out);
    one.run = open_run;
    AQ_TRY_GOTO(aq_bench_case(options, &one, NULL, "tokenize %s all cores", kind), out);
    status = kept_run(options, one, &self, kind);
out:
    aq_free(text);
    aq_tokenizer_close(tokenizer);
    return status;
}
