/*
 * device_isolated.c -- the CPU backend behind a wall: a device whose memory the host cannot reach and whose streams run
 * as late as they may.
 *
 * A test program registers it (device_isolated.h). What works here works on a GPU, as far as host and device go
 * together, and gives the bits of the CPU backend, so that any job can be compared:
 *
 * - Device memory is handed out as addresses that no page stands behind; the mathematics runs on an alias at a constant
 *   distance. A host that reads or writes a device pointer dies at that instruction. An operand that has to be device
 *   memory and is not stops the program, as a GPU would with an illegal address.
 * - A stream only notes what it is told. It runs when somebody waits for it (sync, an event of it that another stream
 *   waits for, the second look at an event), so that operands that are reused too early, results that are read too
 * early and events that are missing show as wrong numbers, every time.
 *
 * Locking: as device.h says; memory has a lock of its own.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "device_isolated.h"
#include "device_ops.h"
#include "grad_launchers.h"

extern const struct aq_device_ops aq_device_cpu;
static const struct aq_device_ops isolated_ops;

enum {
    COMMANDS_MAX = 4096, /* of a stream, noted and not yet run: some steps of a small model; then the oldest run */
    ALLOCATIONS_MAX = 4096
};

static const uint64_t SPAN_BYTES = UINT64_C(1)
                                   << 38; /* addresses of one device: 256 GiB, of which pages are seldom many */
static const uint64_t GRAIN_BYTES = UINT64_C(2) << 20;

struct aq_stream;

struct wait {
    struct aq_stream *stream;
    uint64_t position;
};

struct copy {
    void *to;
    const void *from;
    size_t bytes;
};

struct coding { /* of a range, piece by piece */
    const struct aq_grad_codec *codec;
    struct aq_grad_span span;
    const float *x;
    float *to; /* error, or sum */
    uint8_t *wire;
    uint64_t step;
    float weight;
    bool add;
};

enum operation {
    DO_WAIT,
    DO_STAMP,
    DO_COPY,
    DO_ZERO,
    DO_GRAD_ENCODE,
    DO_GRAD_DECODE,
    DO_SUM_RANKS,
    DO_FUSED,
#define AQ_MATH(name, ...) DO_##name,
#include "aqsgd/math.def"
};

struct command {
    enum operation operation;
    union {
        struct wait wait;
        struct aq_event *stamp;
        struct copy copy;
        struct coding coding;
        struct aq_sum_ranks sum_ranks;
        struct aq_fused kernel;
#define AQ_MATH(name, type, ...) struct type name;
#include "aqsgd/math.def"
    } with;
};

struct aq_stream {
    struct isolated *isolated;
    struct aq_stream *next; /* of all ever opened: events may name one that is closed */
    uint64_t noted, done;   /* commands, ever */
    bool light;             /* not for mathematics */
    enum aq_status status;  /* the first failure; stays */
    struct command *commands;
};

struct aq_event {
    struct aq_stream *stream; /* NULL: never recorded */
    uint64_t position;
    uint64_t passed_ns;
    bool timed;
    bool asked; /* since it was recorded: a second look makes the stream run */
};

struct allocation {
    uint64_t at, bytes; /* bytes 0: free */
};

struct isolated {
    struct aq_device base;
    struct aq_device *inner;
    struct aq_stream *own; /* of calls that name none */
    struct aq_stream *streams;
    uint8_t *wall, *alias; /* SPAN_BYTES each: what the caller sees, and where it is */
    struct aq_mutex *lock;
    struct allocation allocations[ALLOCATIONS_MAX]; /* in order of addresses */
    uint32_t allocation_count;
};

static struct isolated *isolated_of(struct aq_device *device)
{
    return (struct isolated *)device;
}

static bool is_device(const struct isolated *isolated, const void *pointer)
{
    const uintptr_t at = (uintptr_t)pointer, wall = (uintptr_t)isolated->wall;
    return at >= wall && at < wall + SPAN_BYTES;
}

/* Where a pointer of either kind really is. */
static void *reach(const struct isolated *isolated, const void *pointer)
{
    if (!is_device(isolated, pointer)) return (void *)(uintptr_t)pointer;
    return isolated->alias + ((const uint8_t *)pointer - isolated->wall);
}

/* The same for what must be device memory, or NULL. */
static void *within(const struct isolated *isolated, const void *pointer)
{
    AQ_ASSERT(!pointer || is_device(isolated, pointer));
    return pointer ? reach(isolated, pointer) : NULL;
}

#define WITHIN(field) ((field) = within(isolated, (field)))

/* --- streams ---------------------------------------------------------------------------------------------------- */

static enum aq_status stream_run(struct aq_stream *stream, uint64_t position);

static enum aq_status coding_run(const struct coding *coding, bool encode)
{
    uint8_t *wire = coding->wire;
    for (uint64_t at = 0; at < coding->span.count; at += AQ_GRAD_PIECE) {
        const uint64_t left = coding->span.count - at, count = left < AQ_GRAD_PIECE ? left : AQ_GRAD_PIECE;
        const uint64_t first = coding->span.first + at;
        const size_t bytes = aq_grad_codec_bytes(coding->codec, first, count);
        float *to = coding->to ? coding->to + at : NULL;
        AQ_TRY(encode ? aq_grad_encode(coding->codec, first, count, coding->x + at, to, coding->step, wire)
                      : aq_grad_decode(coding->codec, first, count, wire, bytes, coding->weight, coding->add, to));
        wire += bytes;
    }
    return AQ_OK;
}

static void sum_run(const struct aq_sum_ranks *args)
{
    for (uint64_t i = 0; i < args->count; i++) {
        float sum = args->rank == 0 ? args->own[i] : args->parts[0][i];
        for (uint32_t rank = 1; rank < args->size; rank++)
            sum += rank == args->rank ? args->own[i] : args->parts[rank][i];
        args->own[i] = args->scale == 1.0f ? sum : sum * args->scale;
    }
}

static enum aq_status command_run(struct aq_device *inner, const struct command *command)
{
    switch (command->operation) {
    case DO_WAIT:
        return stream_run(command->with.wait.stream, command->with.wait.position);
    case DO_STAMP:
        command->with.stamp->passed_ns = aq_clock_ns();
        return AQ_OK;
    case DO_COPY:
        return aq_device_copy(inner, command->with.copy.to, command->with.copy.from, command->with.copy.bytes, NULL);
    case DO_ZERO:
        return aq_device_zero(inner, command->with.copy.to, command->with.copy.bytes, NULL);
    case DO_GRAD_ENCODE:
    case DO_GRAD_DECODE:
        return coding_run(&command->with.coding, command->operation == DO_GRAD_ENCODE);
    case DO_SUM_RANKS:
        sum_run(&command->with.sum_ranks);
        return AQ_OK;
    case DO_FUSED:
        aq_fused_pieces(&command->with.kernel);
        return AQ_OK;
#define AQ_MATH(name, ...)                                                                                             \
    case DO_##name:                                                                                                    \
        return aq_device_##name(inner, &command->with.name, NULL);
#include "aqsgd/math.def"
    }
    AQ_ASSERT(!"an operation that no stream has");
    return AQ_INVAL;
}

/* Run until `position` commands are done. Waits point backwards in time only, so that this ends. */
static enum aq_status stream_run(struct aq_stream *stream, uint64_t position)
{
    AQ_ASSERT(position <= stream->noted);
    while (stream->done < position) {
        const struct command *command = &stream->commands[stream->done++ % COMMANDS_MAX];
        const enum aq_status status = command_run(stream->isolated->inner, command);
        if (stream->status == AQ_OK) stream->status = status;
    }
    return stream->status;
}

/* Room for one more command; what it says is then written by the caller. */
static struct command *note(struct isolated *isolated, struct aq_stream *stream, enum operation operation)
{
    if (!stream) stream = isolated->own;
    AQ_ASSERT(stream->isolated == isolated && (!stream->light || operation <= DO_ZERO));
    if (stream->noted - stream->done == COMMANDS_MAX) (void)stream_run(stream, stream->done + 1);
    struct command *command = &stream->commands[stream->noted++ % COMMANDS_MAX];
    command->operation = operation;
    return command;
}

static enum aq_status isolated_stream_open(struct aq_device *device, bool light, struct aq_stream **out)
{
    void *memory = NULL;
    AQ_TRY(aq_alloc(sizeof(struct aq_stream), &memory));
    struct aq_stream *stream = memory;
    const enum aq_status status = aq_map_untouched(COMMANDS_MAX * sizeof *stream->commands, &memory);
    if (status != AQ_OK) {
        aq_free(stream);
        return status;
    }
    stream->commands = memory;
    stream->isolated = isolated_of(device);
    stream->light = light;
    stream->next = stream->isolated->streams;
    stream->isolated->streams = stream;
    *out = stream;
    return AQ_OK;
}

static enum aq_status isolated_stream_sync(struct aq_device *device, struct aq_stream *stream)
{
    if (!stream) stream = isolated_of(device)->own;
    return stream_run(stream, stream->noted);
}

static void isolated_stream_close(struct aq_device *device, struct aq_stream *stream)
{
    (void)isolated_stream_sync(device, stream);
}

static enum aq_status isolated_event_open(struct aq_device *device, bool timed, struct aq_event **out)
{
    (void)device;
    void *memory = NULL;
    AQ_TRY(aq_alloc(sizeof(struct aq_event), &memory));
    *out = memory;
    (*out)->timed = timed;
    return AQ_OK;
}

static void isolated_event_close(struct aq_device *device, struct aq_event *event)
{
    (void)device;
    if (event->timed && event->stream) (void)stream_run(event->stream, event->position); /* its stamp */
    aq_free(event);
}

static enum aq_status isolated_event_record(struct aq_device *device, struct aq_event *event, struct aq_stream *stream)
{
    if (!stream) stream = isolated_of(device)->own;
    if (event->timed) note(isolated_of(device), stream, DO_STAMP)->with.stamp = event;
    event->stream = stream;
    event->position = stream->noted;
    event->asked = false;
    return AQ_OK;
}

static enum aq_status isolated_event_wait(struct aq_device *device, struct aq_event *event, struct aq_stream *stream)
{
    if (!event->stream) return AQ_OK;
    struct command *command = note(isolated_of(device), stream, DO_WAIT);
    command->with.wait = (struct wait){.stream = event->stream, .position = event->position};
    return AQ_OK;
}

static enum aq_status isolated_event_query(struct aq_device *device, struct aq_event *event)
{
    (void)device;
    if (!event->stream) return AQ_OK;
    if (event->stream->done < event->position && !event->asked) {
        event->asked = true;
        return AQ_AGAIN;
    }
    return stream_run(event->stream, event->position);
}

static enum aq_status isolated_event_elapsed(struct aq_device *device, struct aq_event *first, struct aq_event *last,
                                             uint64_t *ns)
{
    (void)device;
    AQ_ASSERT(first->timed && last->timed && first->stream && last->stream);
    if (first->stream->done < first->position || last->stream->done < last->position) return AQ_AGAIN;
    *ns = last->passed_ns > first->passed_ns ? last->passed_ns - first->passed_ns : 0;
    return AQ_OK;
}

/* --- memory ----------------------------------------------------------------------------------------------------- */

/* The first gap that is large enough, in whole grains. */
static enum aq_status allocation_take(struct isolated *isolated, uint64_t bytes, uint64_t *at)
{
    uint64_t end = 0;
    uint32_t i = 0;
    if (isolated->allocation_count == ALLOCATIONS_MAX)
        return aq_fail(AQ_NOMEM, "device", "isolated: more than %d pieces of memory", ALLOCATIONS_MAX);
    while (i < isolated->allocation_count && isolated->allocations[i].at - end < bytes) {
        end = isolated->allocations[i].at + isolated->allocations[i].bytes;
        i++;
    }
    if (SPAN_BYTES - end < bytes)
        return aq_fail(AQ_NOMEM, "device", "isolated: %llu bytes do not fit the %llu addresses of a device",
                       (unsigned long long)bytes, (unsigned long long)SPAN_BYTES);
    memmove(&isolated->allocations[i + 1], &isolated->allocations[i],
            (isolated->allocation_count - i) * sizeof isolated->allocations[0]);
    isolated->allocations[i] = (struct allocation){.at = end, .bytes = bytes};
    isolated->allocation_count++;
    *at = end;
    return AQ_OK;
}

static void allocation_return(struct isolated *isolated, uint64_t at)
{
    uint32_t i = 0;
    while (i < isolated->allocation_count && isolated->allocations[i].at != at)
        i++;
    AQ_ASSERT(i < isolated->allocation_count);
    isolated->allocation_count--;
    memmove(&isolated->allocations[i], &isolated->allocations[i + 1],
            (isolated->allocation_count - i) * sizeof isolated->allocations[0]);
}

static uint64_t grains(size_t bytes)
{
    return (bytes / GRAIN_BYTES + 1) * GRAIN_BYTES; /* at least a byte of no man's land behind it */
}

static enum aq_status isolated_reserve(struct aq_device *device, uint64_t bytes, const char *what)
{
    return aq_device_reserve(isolated_of(device)->inner, bytes, what);
}

static enum aq_status isolated_alloc(struct aq_device *device, enum aq_memory_kind kind, size_t bytes, void **out)
{
    struct isolated *isolated = isolated_of(device);
    if (kind == AQ_MEMORY_PINNED) return aq_map(bytes, out);
    uint64_t at = 0;
    aq_mutex_lock(isolated->lock);
    enum aq_status status = allocation_take(isolated, grains(bytes), &at);
    aq_mutex_unlock(isolated->lock);
    AQ_TRY(status);
    void *pages = mmap(isolated->alias + at, bytes + !bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (pages == MAP_FAILED) return aq_fail(AQ_NOMEM, "device", "isolated: cannot map %zu bytes", bytes);
    *out = isolated->wall + at;
    return AQ_OK;
}

static void isolated_free(struct aq_device *device, enum aq_memory_kind kind, void *memory, size_t bytes)
{
    struct isolated *isolated = isolated_of(device);
    if (kind == AQ_MEMORY_PINNED) {
        aq_unmap(memory, bytes);
        return;
    }
    const uint64_t at = (uint64_t)((uint8_t *)within(isolated, memory) - isolated->alias);
    /* Freed memory is no memory: what a stream still does to it shows. */
    AQ_ASSERT(mmap(isolated->alias + at, grains(bytes), PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED);
    aq_mutex_lock(isolated->lock);
    allocation_return(isolated, at);
    aq_mutex_unlock(isolated->lock);
}

static enum aq_status isolated_copy(struct aq_device *device, void *to, const void *from, size_t bytes,
                                    struct aq_stream *stream)
{
    struct isolated *isolated = isolated_of(device);
    struct command *command = note(isolated, stream, DO_COPY);
    command->with.copy = (struct copy){.to = reach(isolated, to), .from = reach(isolated, from), .bytes = bytes};
    return AQ_OK;
}

static enum aq_status isolated_zero(struct aq_device *device, void *to, size_t bytes, struct aq_stream *stream)
{
    struct isolated *isolated = isolated_of(device);
    struct command *command = note(isolated, stream, DO_ZERO);
    command->with.copy = (struct copy){.to = reach(isolated, to), .bytes = bytes};
    return AQ_OK;
}

static void isolated_parallel(struct aq_device *device, uint32_t pieces, void (*run)(uint32_t piece, void *context),
                              void *context)
{
    aq_device_parallel(isolated_of(device)->inner, pieces, run, context);
}

/* --- mathematics ------------------------------------------------------------------------------------------------ */

#define AQ_IN(member)          WITHIN(mine->member);
#define AQ_IN_OR_NULL(member)  WITHIN(mine->member);
#define AQ_OUT(member)         WITHIN(mine->member);
#define AQ_OUT_OR_NULL(member) WITHIN(mine->member);
#define AQ_MATH(name, type, work, legal, operands)                                                                     \
    static enum aq_status isolated_##name(struct aq_device *device, const struct type *args, struct aq_stream *stream) \
    {                                                                                                                  \
        struct isolated *isolated = isolated_of(device);                                                               \
        struct type *mine = &note(isolated, stream, DO_##name)->with.name;                                             \
        *mine = *args;                                                                                                 \
        operands return AQ_OK;                                                                                         \
    }
#include "aqsgd/math.def"

static enum aq_status isolated_squares(struct aq_device *device, const float *x, const struct aq_range *spans,
                                       uint32_t count, double *sums, struct aq_stream *stream)
{
    struct isolated *isolated = isolated_of(device);
    AQ_TRY(isolated_stream_sync(device, stream));
    return aq_device_squares(isolated->inner, within(isolated, x), spans, count, sums, NULL);
}

/* --- gradient codecs: the CPU's, when the stream gets there ------------------------------------------------------ */

struct isolated_coder {
    struct aq_grad_coder base;
    struct aq_grad_span spans[];
};

static enum aq_status coder_check_config(const struct aq_grad_codec_config *config)
{
    (void)config;
    return AQ_OK;
}

static enum aq_status coder_open(struct aq_device *device, const struct aq_grad_codec *codec,
                                 const struct aq_grad_span *spans, uint32_t span_count, struct aq_grad_coder **out)
{
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct isolated_coder) + span_count * sizeof *spans, &memory));
    struct isolated_coder *coder = memory;
    coder->base = (struct aq_grad_coder){.device = device, .codec = codec, .span_count = span_count};
    memcpy(coder->spans, spans, span_count * sizeof *spans);
    *out = &coder->base;
    return AQ_OK;
}

static void coder_close(struct aq_grad_coder *coder)
{
    aq_free(coder);
}

static enum aq_status coder_encode(struct aq_grad_coder *base, uint32_t span, const float *x, float *error,
                                   uint64_t step, void *wire, struct aq_stream *stream)
{
    struct isolated *isolated = isolated_of(base->device);
    note(isolated, stream, DO_GRAD_ENCODE)->with.coding =
        (struct coding){.codec = base->codec,
                        .span = ((const struct isolated_coder *)base)->spans[span],
                        .x = within(isolated, x),
                        .to = within(isolated, error),
                        .wire = within(isolated, wire),
                        .step = step};
    return AQ_OK;
}

static enum aq_status coder_decode(struct aq_grad_coder *base, uint32_t span, const void *wire, float weight, bool add,
                                   float *sum, struct aq_stream *stream)
{
    struct isolated *isolated = isolated_of(base->device);
    note(isolated, stream, DO_GRAD_DECODE)->with.coding =
        (struct coding){.codec = base->codec,
                        .span = ((const struct isolated_coder *)base)->spans[span],
                        .to = within(isolated, sum),
                        .wire = within(isolated, wire),
                        .weight = weight,
                        .add = add};
    return AQ_OK;
}

/* What a decode met is the stream's status. */
static enum aq_status coder_check(struct aq_grad_coder *base, struct aq_stream *stream)
{
    return isolated_stream_sync(base->device, stream);
}

static enum aq_status isolated_sum_ranks(struct aq_device *device, const struct aq_sum_ranks *args,
                                         struct aq_stream *stream)
{
    struct isolated *isolated = isolated_of(device);
    struct aq_sum_ranks *mine = &note(isolated, stream, DO_SUM_RANKS)->with.sum_ranks;
    *mine = *args;
    WITHIN(mine->own);
    for (uint32_t rank = 0; rank < args->size; rank++)
        if (rank != args->rank) WITHIN(mine->parts[rank]);
    return AQ_OK;
}

static void *fused_within(const void *context, const void *pointer)
{
    return within(context, pointer);
}

static enum aq_status isolated_fused(struct aq_device *device, const struct aq_fused *args, struct aq_stream *stream)
{
    struct aq_fused *mine = &note(isolated_of(device), stream, DO_FUSED)->with.kernel;
    *mine = *args;
    aq_fused_move(mine, fused_within, device);
    return AQ_OK;
}

static const struct aq_grad_launchers isolated_grad = {.check_config = coder_check_config,
                                                       .open = coder_open,
                                                       .close = coder_close,
                                                       .encode = coder_encode,
                                                       .decode = coder_decode,
                                                       .check = coder_check,
                                                       .sum_ranks = isolated_sum_ranks,
                                                       .fused = isolated_fused};

/* --- the device ------------------------------------------------------------------------------------------------- */

static void isolated_info(const struct aq_device *device, struct aq_device_info *out)
{
    char name[sizeof out->name];
    aq_device_info(((const struct isolated *)device)->inner, out);
    snprintf(name, sizeof name, "isolated %.110s", out->name);
    memcpy(out->name, name, sizeof name);
    out->host_memory = false;
    out->rounds = true; /* as a GPU's: the same bits, rounded once instead of in every product */
}

static void isolated_close(struct aq_device *device)
{
    struct isolated *isolated = isolated_of(device);
    while (isolated->streams) {
        struct aq_stream *stream = isolated->streams;
        isolated->streams = stream->next;
        aq_unmap(stream->commands, COMMANDS_MAX * sizeof *stream->commands);
        aq_free(stream);
    }
    if (isolated->wall) munmap(isolated->wall, 2 * SPAN_BYTES);
    aq_mutex_close(isolated->lock);
    aq_device_close(isolated->inner);
    aq_free(isolated);
}

static enum aq_status isolated_open(const struct aq_device_config *config, struct aq_device **out)
{
    void *memory = NULL;
    AQ_TRY(aq_alloc(sizeof(struct isolated), &memory));
    struct isolated *isolated = memory;
    enum aq_status status;
    isolated->base.ops = &isolated_ops;
    AQ_TRY_GOTO(aq_device_cpu.open(config, &isolated->inner), out);
    AQ_TRY_GOTO(aq_mutex_open(&isolated->lock), out);
    AQ_TRY_GOTO(isolated_stream_open(&isolated->base, false, &isolated->own), out);
    memory = mmap(NULL, 2 * SPAN_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        status = aq_fail(AQ_NOMEM, "device", "isolated: no room for %llu addresses", 2ull * SPAN_BYTES);
        goto out;
    }
    isolated->wall = memory;
    isolated->alias = isolated->wall + SPAN_BYTES;
    *out = &isolated->base;
    return AQ_OK;
out:
    isolated_close(&isolated->base);
    return status;
}

static const struct aq_device_ops isolated_ops = {.kind = "isolated",
                                                  .grad = &isolated_grad,
                                                  .open = isolated_open,
                                                  .close = isolated_close,
                                                  .info = isolated_info,
                                                  .reserve = isolated_reserve,
                                                  .alloc = isolated_alloc,
                                                  .free = isolated_free,
                                                  .stream_open = isolated_stream_open,
                                                  .stream_close = isolated_stream_close,
                                                  .stream_sync = isolated_stream_sync,
                                                  .event_open = isolated_event_open,
                                                  .event_close = isolated_event_close,
                                                  .event_record = isolated_event_record,
                                                  .event_wait = isolated_event_wait,
                                                  .event_query = isolated_event_query,
                                                  .event_elapsed = isolated_event_elapsed,
                                                  .copy = isolated_copy,
                                                  .zero = isolated_zero,
                                                  .parallel = isolated_parallel,
#define AQ_MATH(name, ...) .name = isolated_##name,
#include "aqsgd/math.def"
                                                  .squares = isolated_squares};

void isolated_register(const char *kind)
{
    static struct aq_device_ops named;
    named = isolated_ops;
    named.kind = kind;
    aq_device_register(&named);
}
