/*
 * conform_collective_gpu.c -- groups of GPUs where there are some (label gpu): every case of collective_cases.c over
 * links with all ranks on one GPU, and over NCCL with as many ranks as there are GPUs, up to 4. NCCL has one rank on a
 * machine with one GPU: its communicator opens and closes, and two ranks on that GPU are refused by name.
 */
#include "collective_cases.h"
#include "group_kit.h"

enum { NCCL_RANKS_MAX = 4, SKIPPED = 77 };

static enum aq_status run_every(struct kit_rank *rank)
{
    return collective_cases_run_behind(rank->group, rank->device);
}

static struct kit kit_of(uint32_t size, bool one_gpu, bool nccl)
{
    struct kit kit = {.size = size,
                      .scheme = "tcp",
                      .query = "",
                      .piece_bytes = CASE_CODED_BYTES,
                      .one_gpu = one_gpu,
                      .nccl = nccl,
                      .run = run_every};
    for (uint32_t i = 0; i < size; i++)
        kit.devices[i] = "cuda";
    return kit;
}

static uint32_t gpus(void)
{
    struct aq_device *device;
    uint32_t count = 0;
    while (count < NCCL_RANKS_MAX) {
        const struct aq_device_config config = {.kind = "cuda", .index = count};
        if (aq_device_open(&config, &device) != AQ_OK) break;
        aq_device_close(device);
        count++;
    }
    return count;
}

static void test_ranks_on_one_gpu_over_links(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 3; size++) {
        struct kit kit = kit_of(size, true, false);
        kit_run_well(&kit);
    }
}

static void test_nccl_with_a_gpu_a_rank(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= gpus(); size++) {
        struct kit kit = kit_of(size, false, true);
        print_message("  NCCL, W = %u\n", size);
        kit_run_well(&kit);
    }
}

static void test_nccl_with_two_ranks_on_one_gpu_is_refused(void **state)
{
    (void)state;
    struct kit kit = kit_of(2, true, true);
    kit_run(&kit);
    assert_int_equal(kit.ranks[0].status, AQ_NODEV);
    assert_int_equal(kit.ranks[1].status, AQ_NODEV);
    assert_non_null(strstr(aq_error_text(), "ranks 0 and 1 share a GPU"));
}

int main(void)
{
    collective_cases_on_gpus = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_on_one_gpu_over_links),
        cmocka_unit_test(test_nccl_with_a_gpu_a_rank),
        cmocka_unit_test(test_nccl_with_two_ranks_on_one_gpu_is_refused),
    };
    if (gpus() == 0) {
        printf("skipped: %s\n", aq_error_text());
        return SKIPPED;
    }
    aq_error_clear();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
