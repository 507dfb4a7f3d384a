/*
 * library_device.c -- the CPU backend of libaqsgd: memory and the pool, no mathematics, and so no oneDNN.
 *
 * It takes the place of device/cpu/device_cpu.c under its name. Codecs ask a device for memory, its pool and what it
 * is; the slots of mathematics stay empty, and nothing in the library calls them.
 */
#include "cpu_pool.h"
#include "device_ops.h"

struct library_device {
    struct aq_device base;
    struct cpu_pool *pool;
};

extern const struct aq_device_ops aq_device_cpu;

static struct cpu_pool *pool_of(const struct aq_device *device)
{
    return ((const struct library_device *)device)->pool;
}

static void library_close(struct aq_device *device)
{
    cpu_pool_close(pool_of(device));
    aq_free(device);
}

static enum aq_status library_open(const struct aq_device_config *config, struct aq_device **out)
{
    struct library_device *device;
    AQ_TRY(AQ_NEW(1, &device));
    device->base.ops = &aq_device_cpu;
    const enum aq_status status = cpu_pool_open(config->threads, &device->pool);
    if (status == AQ_OK)
        *out = &device->base;
    else
        aq_free(device);
    return status;
}

static void library_info(const struct aq_device *device, struct aq_device_info *out)
{
    *out = (struct aq_device_info){.name = "cpu", .threads = cpu_pool_threads(pool_of(device)), .host_memory = true};
}

static enum aq_status library_reserve(struct aq_device *device, uint64_t bytes, const char *what)
{
    (void)device;
    (void)bytes;
    (void)what;
    return AQ_OK;
}

static enum aq_status library_alloc(struct aq_device *device, enum aq_memory_kind kind, size_t bytes, void **out)
{
    (void)device;
    (void)kind;
    return aq_map(bytes, out);
}

static void library_free(struct aq_device *device, enum aq_memory_kind kind, void *memory, size_t bytes)
{
    (void)device;
    (void)kind;
    aq_unmap(memory, bytes);
}

struct pieces {
    void (*run)(uint32_t piece, void *context);
    void *context;
};

static void one_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct pieces *pieces = context;
    (void)worker;
    pieces->run((uint32_t)piece, pieces->context);
}

static void library_parallel(struct aq_device *device, uint32_t count, void (*run)(uint32_t piece, void *context),
                             void *context)
{
    struct pieces pieces = {.run = run, .context = context};
    cpu_pool_run(pool_of(device), count, one_piece, &pieces);
}

const struct aq_device_ops aq_device_cpu = {
    .kind = "cpu",
    .open = library_open,
    .close = library_close,
    .info = library_info,
    .reserve = library_reserve,
    .alloc = library_alloc,
    .free = library_free,
    .parallel = library_parallel,
};
