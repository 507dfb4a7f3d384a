/* cuda_codec_raw.cu -- the launchers of codec_raw.c: every body is plain, so that these are never asked. */
#include "cuda_codec_launch.cuh"

enum aq_status codec_launch_encode_raw(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                       const struct job_list &list, struct CUstream_st *stream)
{
    return codec_launch_encode_rows(plan, mem, list, true, stream);
}

enum aq_status codec_launch_decode_raw(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                       const struct job_list &list, struct CUstream_st *stream)
{
    return codec_launch_decode_rows(plan, mem, list, true, stream);
}
