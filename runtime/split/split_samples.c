/* split_samples.c -- see the header, which has the table of bytes. */
#include "split_samples.h"

#include <string.h>
#include <unistd.h>

#include "aqsgd/base/file.h"
#include "plan.h"
#include "stages/dataset.h"

static const char *const AREA = "split";
static const char head[] = "aqpipe samples 1";
enum { HEAD_BYTES = sizeof head - 1, RECORD_BYTES = 24 };

static const char *const names[] = {[AQ_SAMPLE_TOKENS] = "tokens",
                                    [AQ_SAMPLE_TARGETS] = "targets",
                                    [AQ_SAMPLE_LABELS] = "labels",
                                    [AQ_SAMPLE_SCORES] = "scores",
                                    [AQ_SAMPLE_IMAGES] = "images"};

/* A data set that is being written. */
struct source {
    struct aq_dataset *data;
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    uint32_t field_count;
    const char *learnt; /* the field that the job's task learns; NULL: all that there are */
    bool heldout;
    void *memory; /* of one sample's fields */
};

static void put(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

static enum aq_status write_to(int fd, const void *bytes, size_t count)
{
    return aq_write_all(fd, bytes, count) ? AQ_OK : aq_fail_errno(AREA, "cannot write the samples");
}

/* values: as they lie; every machine that this is built for is little-endian. */
static enum aq_status record_add(int fd, const struct source *source, uint64_t sample, enum aq_sample_values what,
                                 const void *values, uint32_t count)
{
    unsigned char bytes[RECORD_BYTES] = {0};
    put(bytes, (uint64_t)what, 4);
    put(bytes + 4, count, 4);
    put(bytes + 8, source->heldout, 4);
    put(bytes + 16, sample, 8);
    AQ_TRY(write_to(fd, bytes, sizeof bytes));
    return write_to(fd, values, (size_t)count * AQ_FIELD_BYTES);
}

/* 0: it is not written: types of tokens, and what another task would learn. */
static enum aq_sample_values what_of(const struct source *source, const char *name)
{
    for (enum aq_sample_values what = AQ_SAMPLE_TOKENS; what <= AQ_SAMPLE_IMAGES; what++) {
        const bool is_input = what == AQ_SAMPLE_TOKENS || what == AQ_SAMPLE_IMAGES;
        if (strcmp(names[what], name) == 0)
            return is_input || !source->learnt || strcmp(source->learnt, name) == 0 ? what : 0;
    }
    return 0;
}

/* Of tokens and targets without padding. */
static enum aq_status sample_add(int fd, const struct source *source, uint64_t sample)
{
    void *values[AQ_BATCH_FIELDS_MAX] = {NULL};
    const uint32_t *lengths = aq_dataset_lengths(source->data);
    for (uint32_t i = 0; i < source->field_count; i++)
        values[i] = source->fields[i].values;
    AQ_TRY(aq_dataset_get(source->data, sample, values));
    for (uint32_t i = 0; i < source->field_count; i++) {
        const struct aq_field *field = &source->fields[i];
        const enum aq_sample_values what = what_of(source, field->name);
        const bool rows = lengths && field->count == aq_dataset_tokens(source->data) && field->type == AQ_FIELD_I32;
        if (what) AQ_TRY(record_add(fd, source, sample, what, values[i], rows ? lengths[sample] : field->count));
    }
    return AQ_OK;
}

static enum aq_status samples_add(int fd, const struct source *source)
{
    uint64_t count, at = 0;
    const uint64_t samples = aq_dataset_count(source->data);
    const uint32_t *parts = aq_dataset_parts(source->data, &count), *lengths = aq_dataset_lengths(source->data);
    for (uint64_t i = 0; i < samples; i++) {
        AQ_TRY(sample_add(fd, source, i));
        if (!parts) continue;
        const uint64_t first = at;
        const uint32_t length = lengths ? lengths[i] : aq_dataset_tokens(source->data);
        for (uint64_t tokens = 0; tokens < length && at < count; at++)
            tokens += parts[at];
        AQ_TRY(record_add(fd, source, i, AQ_SAMPLE_PARTS, parts + first, (uint32_t)(at - first)));
    }
    return AQ_OK;
}

static enum aq_status source_open(const struct aq_job *job, bool heldout, struct source *source)
{
    const struct aq_dataset_config config = aq_plan_dataset(job, heldout);
    uint64_t bytes = 0;
    *source = (struct source){.heldout = heldout, .learnt = config.field};
    AQ_TRY(aq_dataset_open(&config, &source->data));
    source->field_count =
        aq_dataset_fields(config.kind, aq_dataset_tokens(source->data), &job->data.image, source->fields);
    for (uint32_t i = 0; i < source->field_count; i++)
        bytes += (uint64_t)source->fields[i].count * AQ_FIELD_BYTES;
    AQ_TRY(aq_alloc_at(bytes, &source->memory));
    unsigned char *at = source->memory;
    for (uint32_t i = 0; i < source->field_count; at += (size_t)source->fields[i++].count * AQ_FIELD_BYTES)
        source->fields[i].values = at;
    return AQ_OK;
}

static enum aq_status set_add(int fd, const struct aq_job *job, bool heldout)
{
    struct source source;
    if ((heldout ? job->data.heldout_count : job->data.train_count) == 0) return AQ_OK;
    enum aq_status status = source_open(job, heldout, &source);
    if (status == AQ_OK) status = samples_add(fd, &source);
    aq_free(source.memory);
    aq_dataset_close(source.data);
    return status;
}

/* Only a file of samples is replaced: another one of that name may be the data. */
static enum aq_status check_replaceable(const char *path)
{
    char found[HEAD_BYTES];
    int fd;
    const enum aq_status status = aq_file_open(NULL, path, AQ_FILE_READ, &fd);
    if (status == AQ_NOTFOUND) {
        aq_error_clear();
        return AQ_OK;
    }
    AQ_TRY(status);
    const ssize_t got = aq_read_all(fd, found, HEAD_BYTES);
    close(fd);
    if (got == HEAD_BYTES && memcmp(found, head, HEAD_BYTES) == 0) return AQ_OK;
    return aq_fail(AQ_INVAL, AREA, "%s is there, and is no file of samples: name another one for --samples", path);
}

enum aq_status aq_split_samples_write(const struct aq_job *job, const char *path)
{
    int fd;
    AQ_TRY(check_replaceable(path));
    AQ_TRY(aq_file_open(NULL, path, AQ_FILE_ANEW, &fd));
    enum aq_status status = write_to(fd, head, HEAD_BYTES);
    if (status == AQ_OK) status = set_add(fd, job, false);
    if (status == AQ_OK) status = set_add(fd, job, true);
    if (close(fd) != 0 && status == AQ_OK) status = aq_fail_errno(AREA, "cannot write %s", path);
    return status;
}
