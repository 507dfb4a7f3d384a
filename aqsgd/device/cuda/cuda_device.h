/*
 * cuda_device.h -- what the files of the CUDA backend share: the device, and how CUDA's errors become ours.
 *
 * Map: cuda_probe.c which GPU, why not, and whose; device_cuda.c memory, streams, events; cuda_matmul.c matrix products
 * (cuBLASLt); cuda_conv_product.c convolutions by them; cuda_math.c the rest of device_math.h, which cuda_*.cu compute;
 * cuda_cudnn.c attention and convolutions by cuDNN; cuda_table.h choices by the clock; cuda_graph.c work that is
 * launched again at once.
 */
#ifndef AQ_CUDA_DEVICE_H
#define AQ_CUDA_DEVICE_H

#include <cuda_runtime_api.h>

#include "cuda_kernels.h"
#include "cuda_list.h"
#include "device_ops.h"

#define CUDA_WANTED "device: cuda: " /* the start of a line with the reason why there is no GPU */

enum {
    CUDA_TEXT_BYTES = 512,
    CUDA_HOLDER_BYTES = 160, /* of a lock file: who took it */
    CUDA_MAJOR_MIN = 8, /* compute capability: the first with bf16 products and asynchronous copies to shared memory */
    CUDA_GRAIN = 512,   /* pieces of device memory are a multiple of it long; they start at one of AQ_DEVICE_ALIGN */
    CUDA_PART_BYTES = AQ_CUDA_SCRATCH_BYTES, /* of a stream's scratch: the kernels', or the sums of a product ... */
    CUDA_PARTS = 3,                 /* ... and its two operands, where it needs them in another type          */
    CUDA_SUMS = 1024,               /* sums of squares between two waits: a stage of 1.5B has about 600         */
    CUDA_WORKSPACE_BYTES = 32 << 20 /* of each stream: cuBLASLt's, what NVIDIA names for Hopper               */
};

/* A GPU that this build can run on. */
struct cuda_probe {
    int index;
    int major, minor; /* compute capability */
    int processors;   /* streaming multiprocessors */
    uint64_t memory_bytes;
    char name[80];
    char uuid[40]; /* as nvidia-smi writes it, without "GPU-" */
};

/*
 * Look at GPU `index` without making a context on it. AQ_NOTFOUND: no driver, or one that shows no GPU. AQ_NODEV: a GPU
 * that cannot be used: a driver older than the toolkit, no GPU of that number, one that this build has no machine code
 * for, or one that no process may use. `why` (CUDA_TEXT_BYTES) is then one line with the reason and the remedy. Nothing
 * is logged.
 */
enum aq_status cuda_probe(uint32_t index, struct cuda_probe *out, char *why);

/*
 * Take the GPU for an owner, for as long as *fd is open: processes of one owner share it, another's get AQ_REFUSED and
 * why. A lock file of this user, which the kernel drops with the process. owner 0 takes nothing: *fd is -1.
 */
/* Of the lock files: only AQ_GPU_LOCKS, else /dev/shm, else /tmp; where a name is taken there, /tmp and /var/tmp. */
const char *cuda_locks_folder(void);
enum aq_status cuda_take(const struct cuda_probe *probe, uint64_t owner, const char *name, int *fd, char *why);

/*
 * The same with the file named. AQ_REFUSED (unlogged): another owner has it. AQ_IO: the file belongs to another user,
 * or others may write to it. name: of the owner, for the text of a refused process; may be NULL.
 */
enum aq_status cuda_take_file(const char *path, uint64_t owner, const char *name, int *fd);

/*
 * Has another user a job on the GPU of this uuid, by the lock files in the folder? Such a file counts only if its owner
 * is the user in its name, so that nobody can speak for another. False also where /proc/locks cannot be read.
 */
bool cuda_other_user(const char *folder, const char *uuid, uid_t *user);

/* The holder of a lock file, for people: "NAME, process PID". `bytes` of at least 2 CUDA_HOLDER_BYTES. */
void cuda_holder_text(const char *path, char *out, size_t bytes);

/* Does machine code or PTX of this list ("80-real,90-real,100") run on a GPU of that compute capability? */
bool cuda_architecture_fits(const char *list, int major, int minor);

struct cuda_matmul; /* cuBLASLt, and the algorithms chosen so far: cuda_matmul.c */
struct cuda_cudnn;  /* cuDNN, where it is asked for: cuda_cudnn.c */

/* Whose kernels compute attention, or convolutions: AQ_GPU_ATTENTION, AQ_GPU_CONVOLUTION. */
enum cuda_way { CUDA_OWN, CUDA_CUDNN, CUDA_FASTEST };

struct aq_stream {
    struct cuda_device *device;
    cudaStream_t at;
    uint8_t *scratch;   /* CUDA_PARTS of CUDA_PART_BYTES; device memory */
    uint8_t *workspace; /* CUDA_WORKSPACE_BYTES */
    double *sums;       /* pinned, CUDA_SUMS: results that the host waits for */
};

struct cuda_device {
    struct aq_device base;
    struct cuda_probe probe;
    int owner_fd;
    bool graphs; /* AQ_GPU_GRAPHS=1 */
    bool check;  /* AQ_SYNC=1: wait after every call that enqueues, to find the guilty one (kernels do so themselves) */
    struct aq_stream *own; /* of calls that name none */
    struct aq_mutex *lock; /* of the arena and of held */
    uint8_t *arena;        /* one allocation, from the plan */
    uint64_t arena_bytes, arena_used;
    uint32_t arena_pieces;
    uint64_t held; /* by cudaMalloc: the arena, and what is not cut from it */
    struct cuda_matmul *matmul;
    uint64_t conv_bytes;      /* rows of a convolution's piece: CUDA_PART_BYTES; tests lower it */
    struct cuda_cudnn *cudnn; /* NULL: all is our own */
    char name[128];
};

static inline struct cuda_device *cuda_device_of(struct aq_device *device)
{
    return (struct cuda_device *)device;
}

/*
 * Makes the device the calling thread's current one. Kernels, events and memory belong to the GPU that is current, and
 * a thread may have several devices, or one that another thread opened. Costs nothing where it is current already: the
 * thread remembers what it chose last, for nothing else in a process that has this backend chooses.
 */
cudaError_t cuda_use(const struct cuda_device *cuda);

/* The stream that is meant; its GPU is the thread's from here on. The next enqueued work shows an error of cuda_use. */
static inline struct aq_stream *cuda_stream_of(struct cuda_device *cuda, struct aq_stream *stream)
{
    (void)cuda_use(cuda);
    return stream ? stream : cuda->own;
}

/* A CUDA call that failed: logs the call, where, and CUDA's text; AQ_NOMEM if memory is short, else AQ_CUDAERR. */
enum aq_status cuda_failed(cudaError_t error, const char *call, const char *file, int line);

/* After something was enqueued, where AQ_SYNC=1: wait for it. */
enum aq_status cuda_check(const struct cuda_device *cuda, const struct aq_stream *stream, const char *what);

/* Pass a failure of CUDA up. */
#define AQ_CUDA(call)                                                                                                  \
    do {                                                                                                               \
        const cudaError_t aq_cuda_ = (call);                                                                           \
        if (aq_cuda_ != cudaSuccess) return cuda_failed(aq_cuda_, #call, __FILE__, __LINE__);                          \
    } while (0)

static inline void *cuda_part(const struct aq_stream *stream, uint32_t part)
{
    AQ_ASSERT(stream->scratch); /* a light stream is not for mathematics */
    return stream->scratch + (size_t)part * CUDA_PART_BYTES;
}

/* cuda_math.c; cuda_matmul.c */
#define AQ_MATH(name, type, ...)                                                                                       \
    enum aq_status cuda_##name(struct aq_device *device, const struct type *args, struct aq_stream *stream);
#include "aqsgd/math.def"
enum aq_status cuda_squares(struct aq_device *device, const float *x, const struct aq_range *spans, uint32_t count,
                            double *sums, struct aq_stream *stream);

/* codec/cuda_codec_open.c */
extern const struct aq_codec_launchers aq_codec_launchers_cuda;

/* grad/cuda_grad_open.c */
extern const struct aq_grad_launchers aq_grad_launchers_cuda;

/*
 * cuda_conv_product.c. Rows of a convolution's piece: as many as fit its scratch, evenly shared among the pieces.
 * 0: one does not fit. `bytes` of a row, `round`: a piece has a multiple of it.
 */
uint64_t cuda_conv_rows(const struct cuda_device *cuda, uint64_t rows, uint64_t bytes, uint64_t round);
/* Convolutions by our own kernels, whoever was asked for. */
enum aq_status cuda_conv_own(struct cuda_device *cuda, const struct aq_conv *args, struct aq_stream *stream);
enum aq_status cuda_conv_backward_own(struct cuda_device *cuda, const struct aq_conv_backward *args,
                                      struct aq_stream *stream);
enum aq_status cuda_conv_weights_own(struct cuda_device *cuda, const struct aq_conv_weights *args,
                                     struct aq_stream *stream);

/* cuda_graph.c: aq_device_graph_* */
enum aq_status cuda_graph_wanted(bool *wanted); /* AQ_GPU_GRAPHS. AQ_INVAL: it is neither 0 nor 1, or AQ_SYNC is 1 */
enum aq_status cuda_graph_open(struct aq_device *device, struct aq_graph **out);
void cuda_graph_close(struct aq_device *device, struct aq_graph *graph);
enum aq_status cuda_graph_begin(struct aq_device *device, struct aq_graph *graph, struct aq_stream *stream);
bool cuda_graph_again(struct aq_device *device, struct aq_graph *graph, enum aq_status *status);
/* Before what no graph can hold. AQ_INVAL: the thread's work is being listed for one. */
enum aq_status cuda_outside_graphs(const char *what);

/* cuda_matmul.c */
enum aq_status cuda_matmul_open(struct cuda_device *cuda, struct cuda_matmul **out);
void cuda_matmul_close(struct cuda_matmul *matmul); /* NULL is fine */

#endif
