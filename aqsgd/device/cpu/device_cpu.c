/*
 * device_cpu.c -- the CPU backend: plain memory, streams that are always drained, one pool of threads.
 *
 * Everything is done when the call returns, so a stream is a name and an event is passed as soon as it is recorded. The
 * instruction set is chosen once, when the device is opened (aqsgd/base/processor.h).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cpu_device.h"
#include "cpu_winograd.h"

struct aq_stream {
    struct cpu_device *device;
};

struct aq_event {
    struct cpu_device *device;
    uint64_t passed_ns;
    bool timed;
};

static void variants_choose(struct cpu_device *cpu, uint32_t instructions)
{
    cpu->rows = &cpu_rows_plain;
    cpu->gemm = instructions & AQ_BASE ? &cpu_gemm_dnnl : &cpu_gemm_plain;
    cpu->winograd = NULL;
    cpu->bf16 = (instructions & AQ_AVX512_BF16) != 0;
#if defined(__x86_64__)
    if (instructions & AQ_AVX2) cpu->rows = &cpu_rows_avx2;
    if (instructions & AQ_AVX512) cpu->rows = &cpu_rows_avx512;
    if (instructions & AQ_AVX2) cpu->gemm = &cpu_gemm_avx2;
    if (instructions & AQ_AVX512) cpu->gemm = &cpu_gemm_avx512;
    if (instructions & AQ_AVX2) cpu->winograd = &cpu_winograd_avx2;
    if (instructions & AQ_AVX512) cpu->winograd = &cpu_winograd_avx512;
    if (instructions & AQ_AVX512_BF16) cpu->rows = &cpu_rows_avx512bf16;
    if (instructions & AQ_AVX512_BF16) cpu->gemm = &cpu_gemm_avx512bf16;
    if (instructions & AQ_AMX_BF16) {
        if (aq_processor_request_tiles())
            cpu->gemm = &cpu_gemm_amx;
        else
            aq_log("device", AQ_LOG_WARNING,
                   "Linux refuses the tile registers of AMX to this process (%s): products of bf16 are by "
                   "AVX512_BF16, several times slower",
                   strerror(errno));
    }
#endif
}

/* "AMD EPYC", from the processor's own words. */
static void processor_name(char text[64])
{
    snprintf(text, 64, "processor");
#if defined(__x86_64__)
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file) return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "model name", 10) != 0) continue;
        const char *at = strchr(line, ':');
        if (at) snprintf(text, 64, "%.*s", (int)strcspn(at + 2, "\n"), at + 2);
        break;
    }
    fclose(file);
#endif
}

static void cpu_close(struct aq_device *device)
{
    struct cpu_device *cpu = cpu_device_of(device);
    cpu_pool_close(cpu->pool);
    aq_unmap(cpu->scratch, cpu->scratch_bytes);
    aq_free(cpu);
}

extern const struct aq_device_ops aq_device_cpu;

static enum aq_status cpu_open(const struct aq_device_config *config, struct aq_device **out)
{
    uint32_t instructions;
    AQ_TRY(aq_processor_choose(&instructions));
    void *memory = NULL;
    struct cpu_device *cpu;
    AQ_TRY(AQ_NEW(1, &cpu));
    cpu->base.ops = &aq_device_cpu;
    variants_choose(cpu, instructions);
    enum aq_status status;
    AQ_TRY_GOTO(cpu_pool_open(config->threads, &cpu->pool), out);
    cpu->threads = cpu_pool_threads(cpu->pool);
    const size_t bytes = CPU_SHARED_BYTES + (size_t)cpu->threads * CPU_WORKER_BYTES;
    AQ_TRY_GOTO(aq_map_untouched(bytes, &memory), out); /* a small model uses little of it */
    cpu->scratch = memory;
    cpu->scratch_bytes = bytes;
    char processor[64];
    processor_name(processor);
    snprintf(cpu->name, sizeof cpu->name, "cpu: %.48s, %u threads, rows %s, products %s", processor, cpu->threads,
             cpu->rows->name, cpu->gemm->name);
    aq_log("device", 2, "%s", cpu->name);
    *out = &cpu->base;
    return AQ_OK;
out:
    cpu_close(&cpu->base);
    return status;
}

static void cpu_info(const struct aq_device *device, struct aq_device_info *out)
{
    const struct cpu_device *cpu = (const struct cpu_device *)device;
    *out = (struct aq_device_info){.threads = cpu->threads, .host_memory = true, .bf16 = cpu->bf16};
    snprintf(out->name, sizeof out->name, "%s", cpu->name);
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0) out->memory_bytes = (uint64_t)pages * (uint64_t)page;
}

static enum aq_status cpu_reserve(struct aq_device *device, uint64_t bytes, const char *what)
{
    (void)device;
    (void)bytes;
    (void)what;
    return AQ_OK;
}

static enum aq_status cpu_alloc(struct aq_device *device, enum aq_memory_kind kind, size_t bytes, void **out)
{
    (void)device;
    (void)kind;
    return aq_map(bytes, out);
}

static void cpu_free(struct aq_device *device, enum aq_memory_kind kind, void *memory, size_t bytes)
{
    (void)device;
    (void)kind;
    aq_unmap(memory, bytes);
}

static enum aq_status cpu_stream_open(struct aq_device *device, bool light, struct aq_stream **out)
{
    (void)light;
    AQ_TRY(AQ_NEW(1, out));
    (*out)->device = cpu_device_of(device);
    return AQ_OK;
}

static void cpu_stream_close(struct aq_device *device, struct aq_stream *stream)
{
    AQ_ASSERT(stream->device == cpu_device_of(device));
    aq_free(stream);
}

static enum aq_status cpu_stream_sync(struct aq_device *device, struct aq_stream *stream)
{
    AQ_ASSERT(!stream || stream->device == cpu_device_of(device));
    return AQ_OK;
}

static enum aq_status cpu_event_open(struct aq_device *device, bool timed, struct aq_event **out)
{
    AQ_TRY(AQ_NEW(1, out));
    **out = (struct aq_event){.device = cpu_device_of(device), .timed = timed};
    return AQ_OK;
}

static void cpu_event_close(struct aq_device *device, struct aq_event *event)
{
    AQ_ASSERT(event->device == cpu_device_of(device));
    aq_free(event);
}

static enum aq_status cpu_event_record(struct aq_device *device, struct aq_event *event, struct aq_stream *stream)
{
    AQ_ASSERT(event->device == cpu_device_of(device) && (!stream || stream->device == event->device));
    if (event->timed) event->passed_ns = aq_clock_ns();
    return AQ_OK;
}

static enum aq_status cpu_event_wait(struct aq_device *device, struct aq_event *event, struct aq_stream *stream)
{
    AQ_ASSERT(event->device == cpu_device_of(device) && (!stream || stream->device == event->device));
    return AQ_OK;
}

static enum aq_status cpu_event_query(struct aq_device *device, struct aq_event *event)
{
    return cpu_event_wait(device, event, NULL);
}

static enum aq_status cpu_event_elapsed(struct aq_device *device, struct aq_event *first, struct aq_event *last,
                                        uint64_t *ns)
{
    AQ_ASSERT(first->device == cpu_device_of(device) && first->timed && last->timed);
    *ns = last->passed_ns > first->passed_ns ? last->passed_ns - first->passed_ns : 0;
    return AQ_OK;
}

struct parallel {
    void (*run)(uint32_t piece, void *context);
    void *context;
};

static void parallel_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct parallel *parallel = context;
    parallel->run((uint32_t)piece, parallel->context);
}

static void cpu_parallel(struct aq_device *device, uint32_t pieces, void (*run)(uint32_t piece, void *context),
                         void *context)
{
    struct parallel parallel = {.run = run, .context = context};
    cpu_pool_run(cpu_device_of(device)->pool, pieces, parallel_piece, &parallel);
}

const struct aq_device_ops aq_device_cpu = {.kind = "cpu",
                                            .open = cpu_open,
                                            .close = cpu_close,
                                            .info = cpu_info,
                                            .reserve = cpu_reserve,
                                            .alloc = cpu_alloc,
                                            .free = cpu_free,
                                            .stream_open = cpu_stream_open,
                                            .stream_close = cpu_stream_close,
                                            .stream_sync = cpu_stream_sync,
                                            .event_open = cpu_event_open,
                                            .event_close = cpu_event_close,
                                            .event_record = cpu_event_record,
                                            .event_wait = cpu_event_wait,
                                            .event_query = cpu_event_query,
                                            .event_elapsed = cpu_event_elapsed,
                                            .copy = cpu_copy,
                                            .zero = cpu_zero,
                                            .parallel = cpu_parallel,
#define AQ_MATH(name, ...) .name = cpu_##name,
#include "aqsgd/math.def"
                                            .squares = cpu_squares};
