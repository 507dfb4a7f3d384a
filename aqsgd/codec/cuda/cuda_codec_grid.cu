/*
 * cuda_codec_grid.cu -- codecs with a grid (codec_quantizer.c): which way through memory a list of samples goes.
 */
#include "cuda_codec_launch.cuh"

enum aq_status codec_launch_encode_grid(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, struct CUstream_st *stream)
{
    const bool units = codec_units_can(plan, list, false, false);
    if (plan.sparse) return codec_launch_encode_topk(plan, mem, list, stream);
    if (plan.group == AQ_PER_TENSOR || plan.group == AQ_PER_CHANNEL)
        AQ_TRY(codec_launch_whole_scales(plan, mem, list, stream));
    return units ? codec_launch_encode_units(plan, mem, list, false, stream)
                 : codec_launch_encode_rows(plan, mem, list, false, stream);
}

enum aq_status codec_launch_decode_grid(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, struct CUstream_st *stream)
{
    if (plan.sparse) return codec_launch_decode_topk(plan, mem, list, stream);
    return codec_units_can(plan, list, false, true) ? codec_launch_decode_units(plan, mem, list, false, stream)
                                                    : codec_launch_decode_rows(plan, mem, list, false, stream);
}
