/* cuda_codec_directq.cu -- the launchers of codec_directq.c: values on a grid. */
#include "cuda_codec_launch.cuh"

enum aq_status codec_launch_encode_directq(const struct aq_cuda_codec_plan &plan,
                                           const struct aq_cuda_codec_scratch &mem, const struct job_list &list,
                                           struct CUstream_st *stream)
{
    return codec_launch_encode_grid(plan, mem, list, stream);
}

enum aq_status codec_launch_decode_directq(const struct aq_cuda_codec_plan &plan,
                                           const struct aq_cuda_codec_scratch &mem, const struct job_list &list,
                                           struct CUstream_st *stream)
{
    return codec_launch_decode_grid(plan, mem, list, stream);
}
