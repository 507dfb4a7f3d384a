/*
 * cuda_attention.cuh -- what the files of attention share: the places of a head's rows, and the mask of its weights.
 */
#ifndef AQ_CUDA_ATTENTION_CUH
#define AQ_CUDA_ATTENTION_CUH

#include "cuda_common.cuh"

/* The arguments of aq_attention as kernels take them. */
struct aq_cuda_attention {
    uint64_t T, T_mask;
    unsigned H, kv_heads, D;
    const void *qkv, *dout;
    void *out;
    float *lse, *dqkv;
    uint16_t *dqkv_rounded; /* instead of dqkv, where there is one */
    const float *delta; /* backward: rowsum(out dout), of this launch's samples */
    float scale, cap; /* cap 0: none; not on tensor cores */
    unsigned window; /* keys that a query sees; 2^31: all up to its own */
    const uint32_t *starts;  /* (samples, T): parts of samples, or NULL; not on tensor cores */
    const uint32_t *lengths; /* of samples, or NULL: all T; not on tensor cores             */
    unsigned ahead;          /* keys behind a query that it sees; causal: 0; not on tensor cores */
    struct aq_cuda_mask mask;
    uint64_t first_sample; /* of this launch */
};

/* Columns of a row of qkv and dqkv. */
static __forceinline__ __device__ uint64_t aq_qkv_stride(const struct aq_cuda_attention &args)
{
    return static_cast<uint64_t>(args.H + 2 * args.kv_heads) * args.D;
}

/* The row of q (part 0) of one head and token, or of the k (1) or v (2) that it meets, in qkv or dqkv. */
static __forceinline__ __device__ uint64_t aq_qkv_at(const struct aq_cuda_attention &args, uint64_t sample,
                                                     uint64_t head, uint64_t part, uint64_t token)
{
    const uint64_t shared = args.H + (part - 1) * args.kv_heads + head / (args.H / args.kv_heads);
    return (sample * args.T + token) * aq_qkv_stride(args) + (part == 0 ? head : shared) * args.D;
}

/* The row of out or dout of one head and token. */
static __forceinline__ __device__ uint64_t aq_out_at(const struct aq_cuda_attention &args, uint64_t sample,
                                                     uint64_t head, uint64_t token)
{
    return ((sample * args.T + token) * args.H + head) * args.D;
}

/* A key behind the query is 2^32 - 1 or less before it, and T is below 2^31: one comparison checks both. */
static __forceinline__ __device__ bool aq_sees(const struct aq_cuda_attention &args, uint64_t query, uint64_t key)
{
    return static_cast<unsigned>(query - key) < args.window;
}

/* The start of a query's part; 0 for a query past the end. */
static __forceinline__ __device__ uint64_t aq_part_begin(const struct aq_cuda_attention &args, uint64_t sample,
                                                         uint64_t query)
{
    return args.starts && query < args.T ? args.starts[sample * args.T + query] : 0;
}

/* The first key that a query sees; and the end of the queries that see a key. */
static __forceinline__ __device__ uint64_t aq_first_key(const struct aq_cuda_attention &args, uint64_t query)
{
    return query >= args.window ? query - args.window + 1 : 0;
}

static __forceinline__ __device__ uint64_t aq_queries_end(const struct aq_cuda_attention &args, uint64_t key)
{
    return key + args.window < args.T ? key + args.window : args.T;
}

/* The element of the sample's mask that belongs to a weight. */
static __forceinline__ __device__ uint64_t aq_weight_at(const struct aq_cuda_attention &args, uint64_t head,
                                                        uint64_t query, uint64_t key)
{
    return (head * args.T_mask + query) * args.T_mask + key;
}

/* Samples of one launch of backward, so that their delta fits the scratch; heads and samples are a grid's y and z. */
static inline uint64_t aq_attention_samples(const struct aq_attention *args, uint64_t bytes_of_token)
{
    const uint64_t samples = AQ_CUDA_SCRATCH_BYTES / (args->H * args->T * bytes_of_token);
    return samples < 65535 ? samples : 65535;
}

static inline struct aq_cuda_attention aq_cuda_attention_of(const struct aq_attention *args)
{
    struct aq_cuda_attention kernel = {};
    kernel.T = args->T;
    kernel.T_mask = args->T_mask;
    kernel.H = static_cast<unsigned>(args->H);
    kernel.kv_heads = static_cast<unsigned>(args->kv_heads);
    kernel.D = static_cast<unsigned>(args->D);
    kernel.qkv = args->qkv;
    kernel.dout = args->dout;
    kernel.out = args->out;
    kernel.lse = args->lse;
    kernel.dqkv = args->dqkv;
    kernel.dqkv_rounded = args->dqkv_rounded;
    kernel.scale = args->scale > 0.0f ? args->scale : 1.0f / sqrtf(static_cast<float>(args->D));
    kernel.cap = args->cap;
    kernel.window =
        args->window && args->window < 1u << 31 ? static_cast<unsigned>(args->window) : 1u << 31;
    kernel.starts = args->starts;
    kernel.lengths = args->lengths;
    kernel.ahead = args->both ? kernel.window - 1 : 0;
    kernel.mask = aq_cuda_mask_of(&args->dropout);
    return kernel;
}

/*
 * cuda_attention_mma.cu: bf16 and fp16 with D of 64 or 128, on tensor cores. A launch takes `samples` samples from
 * args->first_sample on.
 */
bool aq_attention_mma_can(const struct aq_attention *args);
enum aq_status aq_attention_mma(const struct aq_cuda_attention *args, enum aq_element type, uint64_t samples,
                                cudaStream_t stream);
enum aq_status aq_attention_mma_backward(const struct aq_cuda_attention *args, enum aq_element type, uint64_t samples,
                                         cudaStream_t stream);

/* cuda_attention_wgmma.cu: the same on Hopper, by its warpgroup products; not with dropout. */
bool aq_attention_wgmma_can(const struct aq_attention *args);
enum aq_status aq_attention_wgmma(const struct aq_cuda_attention *args, enum aq_element type, uint64_t samples,
                                  cudaStream_t stream);
enum aq_status aq_attention_wgmma_backward(const struct aq_cuda_attention *args, enum aq_element type,
                                           uint64_t samples, cudaStream_t stream);

#endif
