/*
 * device.h -- the device seam: memory, streams, events and the mathematics that stages are made of.
 *
 * Caveats first. A function that takes a stream may only *enqueue*: its operands must stay until the stream gets there,
 * and its results are there only after an event or aq_device_stream_sync. The CPU backend runs everything at once on
 * the calling thread and its pool, so its streams are always drained; code that relies on that breaks on a GPU.
 *
 * A device is a const table of functions (struct aq_device_ops), one file per backend: device_cpu.c, device_cuda.c.
 * Tests bring one more, tests/isolated: the CPU as a device whose memory the host cannot reach and whose streams run as
 * late as they may. The mathematics (matrix products, layer norm, attention ...) is in device_math.h, a part of the
 * same table.
 *
 * The CPU backend owns one thread pool, sized by the manifest. Work is cut into pieces whose size does not depend on
 * the number of threads and handed out dynamically, so that a descheduled thread delays no other; every output element
 * is computed by one piece in a fixed order, so that results do not depend on the number of threads.
 *
 * Locking: a device may be used from one thread at a time for mathematics; aq_device_alloc/free from any thread.
 */
#ifndef AQSGD_DEVICE_H
#define AQSGD_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_device; /* opaque */
struct aq_stream; /* opaque: work in order */
struct aq_event;  /* opaque: a point in a stream */

enum { AQ_DEVICE_THREADS_MAX = 256 }; /* of a CPU's pool */

struct aq_device_config {
    const char *kind; /* "cpu"; "cuda" where it was built in; "auto": cuda where there is a GPU, else cpu, and a line */
    uint32_t index;   /* which GPU; 0 on the CPU */
    uint32_t threads; /* CPU pool, the calling thread included; 0: every core this process may use */
    uint64_t owner;   /* a GPU is for one owner at a time: processes that name the same share it. 0: does not ask */
};

enum aq_memory_kind {
    AQ_MEMORY_DEVICE = 0, /* where the mathematics happens */
    AQ_MEMORY_PINNED = 1, /* host memory that the device copies from and to asynchronously */
    AQ_MEMORY_SHARED = 2  /* the device's, which another process may map: its own allocation, outside aq_device_reserve,
                             in whole AQ_DEVICE_SHARED_GRAIN, so that nothing else is mapped with it */
};

enum { AQ_DEVICE_SHARED_GRAIN = 2 << 20 }; /* CUDA cuts smaller allocations from pieces of this size */

/*
 * Addresses that aq_device_alloc returns are multiples of this, on every device. cudaMalloc promises 256 bytes.
 * cudaHostAlloc promises none beyond a type's (512 were seen); O_DIRECT and io_uring need a page, so we provide it.
 */
enum { AQ_DEVICE_ALIGN = 256, AQ_PINNED_ALIGN = 4096 };

struct aq_device_info {
    char name[128]; /* "cpu: AMD EPYC, 2 threads, AVX-512 BF16"             */
    char uuid[40];  /* of the GPU, as nvidia-smi writes it; "" on a CPU    */
    char rounding
        [192]; /* on what the bits of its sums depend: GPU, processors, library; "" on a CPU, where on nothing */
    uint64_t memory_bytes; /* in all                                              */
    uint32_t threads;      /* of the pool (1 on a GPU)                            */
    bool host_memory;      /* device pointers may be dereferenced by the host     */
    bool bf16;             /* has a bf16 matrix product faster than fp32          */
    bool tf32;             /* has products that read the first 10 bits of an fp32 value's mantissa (AQ_TF32) */
    bool rounds;           /* bf16 products need both operands in bf16 already: a caller with fp32 keeps a copy */
};

/*
 * AQ_INVAL: unknown kind. AQ_NODEV: built without it, or no such device here; the logged line has the reason and the
 * remedy. AQ_REFUSED: the GPU belongs to another owner. "auto" takes the CPU only where there is no GPU at all (none in
 * the build, no driver, none shown): one line of the log. A GPU that is there and cannot be used is an error there too.
 */
enum aq_status aq_device_open(const struct aq_device_config *config, struct aq_device **out);

/*
 * Is a device of that kind (NULL: auto) a GPU? The answer depends only on the kind, the same on every machine: code
 * whose results machines must agree on (planned memory, checks, hashes) asks this, and provides for a GPU where it may
 * be.
 */
enum aq_device_gpu { AQ_GPU_NO = 0, AQ_GPU_MAYBE = 1, AQ_GPU_YES = 2 };
enum aq_device_gpu aq_device_gpu(const char *kind);

/*
 * The choice of aq_device_open on this machine, without opening it: "auto" is a GPU where there is one, also one that
 * cannot be used. For answers about this machine only: predicted times, memory present.
 */
bool aq_device_gpu_here(const char *kind, uint32_t index);

/* Does this build have a device of that kind (NULL: auto)? AQ_NODEV, AQ_INVAL: no, logged as by aq_device_open. */
enum aq_status aq_device_built(const char *kind);
void aq_device_close(struct aq_device *device); /* NULL is fine */
void aq_device_info(const struct aq_device *device, struct aq_device_info *out);

/*
 * One allocation for the bytes of a plan: device memory that is allocated from here on is cut from it, as long as it
 * lasts. what: its user, for the line of AQ_NOMEM (which has needed and free bytes too); borrowed until return. Does
 * nothing on a CPU.
 */
enum aq_status aq_device_reserve(struct aq_device *device, uint64_t bytes, const char *what);

/*
 * The use of a device's own memory now. Memory neither free nor held (all - free - held) is not this library's: the
 * context, the code and buffers of libraries (NCCL among them) and other processes; a plan cannot know it, so that it
 * is measured. Zeros where device memory is the host's. AQ_CUDAERR.
 */
struct aq_device_memory {
    uint64_t all, free;
    uint64_t held; /* by this device: allocated here and not given back */
};
enum aq_status aq_device_memory(struct aq_device *device, struct aq_device_memory *out);

/* Zeroed, at a multiple of AQ_DEVICE_ALIGN (pinned: AQ_PINNED_ALIGN). AQ_NOMEM: its text has needed and free. */
enum aq_status aq_device_alloc(struct aq_device *device, enum aq_memory_kind kind, size_t bytes, void **out);
void aq_device_free(struct aq_device *device, enum aq_memory_kind kind, void *memory, size_t bytes);

/*
 * Pinned memory for modules that know no devices (caches, links), for their configs. If device memory is the host's,
 * this is plain memory.
 */
struct aq_pages aq_device_pages(struct aq_device *device);

/* A stream runs what is enqueued on it in order; sync waits for all of it. Closing a stream waits too. AQ_NOMEM. */
enum aq_status aq_device_stream_open(struct aq_device *device, struct aq_stream **out);

/* The same only for copies, events and codecs: it has no memory for mathematics. */
enum aq_status aq_device_stream_open_light(struct aq_device *device, struct aq_stream **out);

/* Device memory that each stream for mathematics takes on a GPU: for a plan. In addition the device has its own one,
 * which it takes when it is opened, before anything is reserved. */
uint64_t aq_device_stream_bytes(void);
void aq_device_stream_close(struct aq_device *device, struct aq_stream *stream);
enum aq_status aq_device_stream_sync(struct aq_device *device, struct aq_stream *stream);

/* The stream as the device's own libraries know it: a cudaStream_t. NULL on a CPU. stream NULL: the device's own. */
void *aq_device_stream_native(struct aq_device *device, struct aq_stream *stream);

/*
 * An event is a point in a stream: record puts it behind what the stream has so far, wait holds another stream back
 * until it is passed. An event never recorded is passed.
 */
enum aq_status aq_device_event_open(struct aq_device *device, struct aq_event **out);
void aq_device_event_close(struct aq_device *device, struct aq_event *event);
enum aq_status aq_device_event_record(struct aq_device *device, struct aq_event *event, struct aq_stream *stream);
enum aq_status aq_device_event_wait(struct aq_device *device, struct aq_event *event, struct aq_stream *stream);
/* AQ_OK: the stream has passed it. AQ_AGAIN: not yet. */
enum aq_status aq_device_event_query(struct aq_device *device, struct aq_event *event);

/*
 * The same with a time. elapsed: nanoseconds between the passing of two such events, both recorded; 0 where the last
 * was not later. AQ_AGAIN: not passed yet. On a GPU good to about a microsecond if they are a few seconds apart.
 */
enum aq_status aq_device_event_open_timed(struct aq_device *device, struct aq_event **out);
enum aq_status aq_device_event_elapsed(struct aq_device *device, struct aq_event *first, struct aq_event *last,
                                       uint64_t *ns);

/* Between any two of device, pinned and plain host memory. */
enum aq_status aq_device_copy(struct aq_device *device, void *to, const void *from, size_t bytes,
                              struct aq_stream *stream);
enum aq_status aq_device_zero(struct aq_device *device, void *to, size_t bytes, struct aq_stream *stream);

/*
 * The CPU pool, for work on host memory (codecs). run(piece, context) is called once for each piece of 0..pieces-1, on
 * any of the pool's threads, the caller's among them; returns when all are done. Must not be nested. On a device
 * without host memory the pieces run on the calling thread.
 */
void aq_device_parallel(struct aq_device *device, uint32_t pieces, void (*run)(uint32_t piece, void *context),
                        void *context);

#ifdef __cplusplus
}
#endif
#endif
