/* layer_relu.c -- max(x, 0). The output is above 0 if the input is: backward reads the input, which is kept. */
#include "layer.h"

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct aq_relu args = {.count = run->rows_in * run->layer->in.columns, .x = x, .y = y};
    return aq_device_relu(run->device, &args, run->stream);
}

static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    (void)below;
    const struct aq_relu_backward args = {.count = run->rows_in * run->layer->in.columns, .y = x, .dy = dy, .dx = dx};
    return aq_device_relu_backward(run->device, &args, run->stream);
}

const struct layer_kind layer_relu = {.name = "relu", .in_place = true, .forward = forward, .backward = backward};
