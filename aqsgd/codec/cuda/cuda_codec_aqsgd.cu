/* cuda_codec_aqsgd.cu -- the launchers of codec_aqsgd.c: deltas on a grid. */
#include "cuda_codec_launch.cuh"

enum aq_status codec_launch_encode_aqsgd(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                         const struct job_list &list, struct CUstream_st *stream)
{
    return codec_launch_encode_grid(plan, mem, list, stream);
}

enum aq_status codec_launch_decode_aqsgd(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                         const struct job_list &list, struct CUstream_st *stream)
{
    return codec_launch_decode_grid(plan, mem, list, stream);
}
