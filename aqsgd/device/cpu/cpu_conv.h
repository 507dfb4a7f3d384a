/*
 * cpu_conv.h -- convolutions: the general way, oneDNN's and Winograd's; private to this folder.
 *
 * cpu_conv.c gathers what each output pixel reads into rows and multiplies those by cpu_gemm: for every processor,
 * every type, and the truth. cpu_conv_dnnl.c lets oneDNN's primitives of images do it, one thread each, on pieces of
 * the batch: for fp32, where the weights fit the shared scratch.
 */
#ifndef AQ_CPU_CONV_H
#define AQ_CPU_CONV_H

#include "cpu_device.h"

/* Has oneDNN done it? False: nothing was written, the general way is to be taken. */
bool cpu_conv_dnnl(struct cpu_device *cpu, const struct aq_conv *args);
bool cpu_conv_backward_dnnl(struct cpu_device *cpu, const struct aq_conv_backward *args);
bool cpu_conv_weights_dnnl(struct cpu_device *cpu, const struct aq_conv_weights *args);

/* The same of cpu_conv_winograd.c, which is asked before: 3 x 3, stride 1, even images, channels that fill vectors. */
bool cpu_conv_winograd(struct cpu_device *cpu, const struct aq_conv *args);
bool cpu_conv_backward_winograd(struct cpu_device *cpu, const struct aq_conv_backward *args);
bool cpu_conv_weights_winograd(struct cpu_device *cpu, const struct aq_conv_weights *args);

/* Sets OpenMP, which oneDNN of Debian runs on, to one thread, the calling one: cpu_gemm_dnnl.c. */
void cpu_dnnl_one_thread(void);

#endif
