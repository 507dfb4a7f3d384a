/*
 * conv_results.h -- what the three operations of a convolution give on a device of this environment: for
 * test_cuda_device.c and test_cuda_cudnn.c. Include stage_help.h before it.
 */
#ifndef CONV_RESULTS_H
#define CONV_RESULTS_H

#include "cuda_plan.h"

/* y, dx and dw side by side. conv_bytes: 0, or the scratch of a piece; plans: NULL, or the kinds of products made. */
static float *conv_results(const struct aq_conv_shape *shape, uint64_t conv_bytes, uint32_t *plans)
{
    const struct aq_device_config config = {.kind = "cuda"};
    const uint64_t in = shape->samples * shape->height * shape->width * shape->C;
    const uint64_t out = shape->samples * aq_conv_out(shape->height, shape->stride) *
                         aq_conv_out(shape->width, shape->stride) * shape->N;
    const uint64_t w = shape->K * shape->K * shape->C * shape->N, all = 2 * (in + out + w);
    struct aq_device *device = NULL;
    void *memory = NULL;
    float *host = help_alloc(all * sizeof *host), *results = help_alloc((in + out + w) * sizeof *results);
    help_normal(host, all, 3, 1.0f);
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    cuda_device_of(device)->conv_bytes = conv_bytes ? conv_bytes : CUDA_PART_BYTES;
    assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, all * sizeof *host, &memory), AQ_OK);
    assert_int_equal(aq_device_copy(device, memory, host, all * sizeof *host, NULL), AQ_OK);
    float *x = memory, *dy = x + in, *weights = dy + out, *y = weights + w, *dx = y + out, *dw = dx + in;
    const struct aq_conv forward = {*shape, x, weights, y};
    const struct aq_conv_backward backward = {*shape, dy, weights, dx};
    const struct aq_conv_weights gradient = {*shape, x, dy, dw};
    assert_int_equal(aq_device_conv(device, &forward, NULL), AQ_OK);
    assert_int_equal(aq_device_conv_backward(device, &backward, NULL), AQ_OK);
    assert_int_equal(aq_device_conv_weights(device, &gradient, NULL), AQ_OK);
    assert_int_equal(aq_device_copy(device, results, y, (in + out + w) * sizeof *results, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    if (plans) *plans = cuda_device_of(device)->matmul->next;
    aq_device_free(device, AQ_MEMORY_DEVICE, memory, all * sizeof *host);
    aq_device_close(device);
    aq_free(host);
    return results;
}

#endif
