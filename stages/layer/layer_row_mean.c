/* layer_row_mean.c -- the mean of a sample's rows: of an image's pixels, average pooling over all of it. */
#include "layer.h"

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct aq_row_mean args = {
        .samples = run->samples, .T = run->layer->in.rows, .C = run->layer->in.columns, .x = x, .y = y};
    return aq_device_row_mean(run->device, &args, run->stream);
}

static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    (void)x;
    (void)below;
    const struct aq_row_mean_backward args = {
        .samples = run->samples, .T = run->layer->in.rows, .C = run->layer->in.columns, .dy = dy, .dx = dx};
    return dx ? aq_device_row_mean_backward(run->device, &args, run->stream) : AQ_OK;
}

const struct layer_kind layer_row_mean = {.name = "row_mean", .forward = forward, .backward = backward};
