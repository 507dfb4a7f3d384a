/*
 * cuda_codec_launch.cuh -- the launchers that files of this folder call of each other; each enqueues on `stream`.
 */
#ifndef AQSGD_CUDA_CODEC_LAUNCH_CUH
#define AQSGD_CUDA_CODEC_LAUNCH_CUH

#include "cuda_codec_math.cuh"

enum {
    ROW_BLOCK = AQ_CUDA_CODEC_BLOCK_ROWS * AQ_CUDA_CODEC_WARP, /* threads */
    PACK_BLOCK = 256
};

static inline uint32_t codec_precision_bits(uint32_t precision)
{
    return precision == AQ_PRECISION_FP32 ? 32 : precision <= AQ_PRECISION_BF16 ? 16 : 32u >> (precision - 2);
}

/* Unpacked codes, `plan.values` bytes per sample, to streams at `offset` of the bodies. */
enum aq_status codec_launch_pack(const struct aq_cuda_codec_plan &plan, const struct job_list &list,
                                 const uint8_t *codes, uint64_t offset, uint64_t total, uint32_t bits,
                                 struct CUstream_st *stream);

/*
 * cuda_codec_rows.cu, for kernels of a warp per row (row_place): their grid; and the codes of rows that do not end on a
 * byte into the body's stream.
 */
dim3 codec_row_grid(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem, uint32_t count);
enum aq_status codec_launch_waiting(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                    const struct job_list &list, struct CUstream_st *stream);

/* cuda_codec_rows.cu: any configuration but top-k; plain: keyframes or raw bodies. */
enum aq_status codec_launch_encode_rows(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, bool plain, struct CUstream_st *stream);
enum aq_status codec_launch_decode_rows(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, bool plain, struct CUstream_st *stream);

/* cuda_codec_whole.cu: the scales of tensor and channel groups, before the rows. */
enum aq_status codec_launch_whole_scales(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                         const struct job_list &list, struct CUstream_st *stream);

/* cuda_codec_store.cu: m of each sample to scratch.messages; x^, from hat or there, to m_out. */
enum aq_status codec_launch_message_unpack(const struct aq_cuda_codec_plan &plan,
                                           const struct aq_cuda_codec_scratch &mem, const struct job_list &list,
                                           struct CUstream_st *stream);
enum aq_status codec_launch_message_pack(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                         const struct job_list &list, struct CUstream_st *stream);
/* |a - m'|^2 of each measured row to scratch.stored, of samples that have m_out and did not fail. */
enum aq_status codec_launch_stored_rows(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, struct CUstream_st *stream);

/* cuda_codec_topk.cu. */
enum aq_status codec_launch_encode_topk(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, struct CUstream_st *stream);
enum aq_status codec_launch_decode_topk(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, struct CUstream_st *stream);

/* cuda_codec_units.cu: can these samples go that way, and there they go. */
bool codec_units_can(const struct aq_cuda_codec_plan &plan, const struct job_list &list, bool plain, bool decode);
enum aq_status codec_launch_encode_units(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                         const struct job_list &list, bool plain, struct CUstream_st *stream);
enum aq_status codec_launch_decode_units(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                         const struct job_list &list, bool plain, struct CUstream_st *stream);

/* cuda_codec_grid.cu: deltas, or values, on a grid. */
enum aq_status codec_launch_encode_grid(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, struct CUstream_st *stream);
enum aq_status codec_launch_decode_grid(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, struct CUstream_st *stream);

/* A way for each row of codecs.def, in cuda_codec_<name>.cu, of samples that are no keyframes. */
#define AQ_CODEC_HOST(NAME, name, id)
#define AQ_CODEC(NAME, name, id)                                                                                       \
    enum aq_status codec_launch_encode_##name(                                                                         \
        const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem, const struct job_list &list,   \
        struct CUstream_st *stream);                                                                                   \
    enum aq_status codec_launch_decode_##name(                                                                         \
        const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem, const struct job_list &list,   \
        struct CUstream_st *stream);
#include "aqsgd/codecs.def"

/* ---- messages in Q: where the scale of a value is, and where the codes begin ---- */
static __device__ __forceinline__ uint64_t message_group(const struct aq_cuda_codec_plan &plan, uint64_t e)
{
    return plan.packed_channel ? e % plan.columns : e / plan.columns;
}

static __device__ __forceinline__ uint64_t message_codes_at(const struct aq_cuda_codec_plan &plan)
{
    return 4 * (uint64_t)(plan.packed_channel ? plan.columns : plan.rows);
}

#endif
