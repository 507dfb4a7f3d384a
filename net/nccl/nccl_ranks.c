/*
 * nccl_ranks.c -- who may be joined by NCCL, which is known without it: see net/pair.h.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nccl_channel.h"

static const char *const SAYS = "nccl";

enum { MACHINE_BYTES = 256 };

/* The machine as the kernel booted it, and the host's name, which each container sets for itself. */
static uint64_t machine_digest(void)
{
    char text[MACHINE_BYTES] = "";
    size_t used = 0;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        used = fread(text, 1, MACHINE_BYTES / 2, file);
        (void)fclose(file);
    }
    if (gethostname(text + used, MACHINE_BYTES - used - 1) != 0) text[used] = '\0';
    return aq_digest(text, used + strlen(text + used));
}

static uint32_t nccl_version(void)
{
    int version = 0;
#if AQ_WITH_NCCL
    struct aq_error_hold hold; /* who needs NCCL says so: aq_nccl_refuse */
    aq_error_hold(&hold);
    const enum aq_status here = aq_nccl_library_open();
    aq_error_release(&hold);
    if (here != AQ_OK) return 0;
    if (ncclGetVersion(&version) != ncclSuccess) version = 0;
#endif
    return (uint32_t)version;
}

void aq_nccl_rank_here(const struct aq_device *device, struct aq_nccl_rank *out)
{
    struct aq_device_info info = {.host_memory = true};
    *out = (struct aq_nccl_rank){.machine = machine_digest(), .built = nccl_version()};
    if (device) aq_device_info(device, &info);
    if (info.uuid[0]) out->gpu = aq_digest_seeded(info.uuid, strlen(info.uuid), out->machine) | 1;
}

void aq_nccl_judge(const struct aq_nccl_rank *all, uint32_t count, struct aq_nccl_facts *out)
{
    struct aq_nccl_facts found = {.built = true, .distinct_gpus = true, .one_machine = true, .rank = UINT32_MAX};
    for (uint32_t rank = 0; rank < count; rank++) {
        bool good = all[rank].built != 0 && all[rank].gpu != 0;
        found.built = found.built && good;
        found.gpus += all[rank].gpu != 0;
        for (uint32_t other = 0; other < rank; other++)
            if (all[other].gpu == all[rank].gpu && all[rank].gpu != 0) good = found.distinct_gpus = false;
        found.one_machine = found.one_machine && all[rank].machine == all[0].machine;
        if (!good && found.rank == UINT32_MAX) found.rank = rank;
    }
    *out = found;
}

enum aq_status aq_nccl_refuse(const struct aq_nccl_rank *all, uint32_t count, const char *noun, uint32_t first,
                              const char *remedy)
{
    for (uint32_t rank = 0; rank < count; rank++) {
        if (!all[rank].built)
            return aq_fail(AQ_NODEV, SAYS,
                           "%s %u has no NCCL: it was built without, or has no libnccl.so.2 (aqpipe doctor)", noun,
                           first + rank);
        if (!all[rank].gpu)
            return aq_fail(AQ_NODEV, SAYS, "%s %u has no GPU, and NCCL needs one for each", noun, first + rank);
        if (all[rank].built != all[0].built)
            return aq_fail(AQ_MISMATCH, SAYS, "%s %u has NCCL %u, %s %u has %u: install the same version", noun,
                           first + rank, all[rank].built, noun, first, all[0].built);
        for (uint32_t other = 0; other < rank; other++)
            if (all[other].gpu == all[rank].gpu)
                return aq_fail(AQ_NODEV, SAYS,
                               "%ss %u and %u share a GPU, and NCCL needs one for each: give each its own, or %s", noun,
                               first + other, first + rank, remedy);
    }
    return AQ_OK;
}

#if AQ_WITH_NCCL

static_assert(AQ_NCCL_ID_BYTES == NCCL_UNIQUE_ID_BYTES, "NCCL's id travels as it is");

enum aq_status aq_nccl_id(struct aq_nccl_id *out)
{
    ncclUniqueId id;
    AQ_TRY(aq_nccl_library_open());
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess)
        return aq_fail(AQ_NCCLERR, SAYS, "this rank, ncclGetUniqueId: NCCL: %s", ncclGetErrorString(result));
    memcpy(out->bytes, &id, sizeof out->bytes);
    return AQ_OK;
}

#else

enum aq_status aq_nccl_id(struct aq_nccl_id *out)
{
    (void)out;
    return aq_fail(AQ_NODEV, SAYS, "built without NCCL: configure with -DAQ_CUDA=ON -DAQ_NCCL=ON (libnccl-dev)");
}

#endif
