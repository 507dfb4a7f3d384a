/*
 * fuzz_checkpoint.c -- any bytes as a stage's checkpoint, as a model to start from, and as one of the files that are
 * joined to the trained model.
 *
 * The reader refuses another plan and other bytes than were written, by hashes that no mutation hits. So 16 letters P
 * in the input stand for the plan's hash, and 16 letters D for the digest that the reader would find.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint.h"
#include "fuzz.h"
#include "job.h"
#include "plan.h"
#include "stages/weights.h"

enum { BYTES_MAX = 1 << 16, RANK = 1, STEP = 3, HEX = 16, VALUES_MAX = 4096 };

/* The middle one of three stages has one block and nothing else: 140 parameters. */
static const char manifest[] = "model: {blocks: 1, heads: 1, channels: 2, context: 4, vocabulary: 256, tied: false}\n"
                               "data: {train: nowhere.txt}\n"
                               "train: {T: 4, batch: 2, micro_batch: 1, epochs: 1}\n"
                               "pipeline: {stages: [{layers: 0-0}, {layers: 1-1}, {layers: 2-2}]}\n"
                               "facts: {vocabulary: 256, train_samples: 2, train_digest: 1, heldout_samples: 0}\n";

static struct aq_checkpoint checkpoint;
static struct aq_plan *plan; /* of the stage's shape, as long as the stage is open */
static char folder[512], file[512], joined[512], hash[HEX + 1];

static void start(void)
{
    struct aq_job *job;
    struct aq_optimizer_tensor tensors[32];
    if (checkpoint.stage) return;
    AQ_ASSERT(aq_job_parse(manifest, strlen(manifest), "fuzz.yaml", "/", NULL, 0, &job) == AQ_OK);
    AQ_ASSERT(aq_plan_open(job, &plan) == AQ_OK);
    checkpoint = (struct aq_checkpoint){.folder = folder, .rank = RANK};
    aq_plan_checkpoint_run(plan, &checkpoint.run);
    const struct aq_device_config config = {.kind = "cpu", .threads = 1};
    AQ_ASSERT(aq_device_open(&config, &checkpoint.device) == AQ_OK);
    AQ_ASSERT(aq_stage_open(checkpoint.device, &plan->stages[RANK].config, &checkpoint.stage) == AQ_OK);
    const uint32_t count = aq_stage_tensor_count(checkpoint.stage);
    const uint64_t parameters = aq_stage_parameter_count(checkpoint.stage);
    AQ_ASSERT(count <= sizeof tensors / sizeof *tensors && parameters <= VALUES_MAX);
    for (uint32_t i = 0; i < count; i++) {
        struct aq_tensor_info info;
        aq_stage_tensor(checkpoint.stage, i, &info);
        tensors[i] = (struct aq_optimizer_tensor){.offset = info.offset, .count = info.count, .decay = info.decay};
    }
    AQ_ASSERT(aq_optimizer_open(checkpoint.device, &job->train.optimizer, tensors, count, parameters,
                                &checkpoint.optimizer) == AQ_OK);
    AQ_ASSERT(aq_stage_init(checkpoint.stage, 1) == AQ_OK);
    snprintf(folder, sizeof folder, "%s", fuzz_path("checkpoint"));
    fuzz_make_folder("checkpoint");
    AQ_ASSERT(aq_checkpoint_write(&checkpoint, STEP) == AQ_OK);
    snprintf(file, sizeof file, "%s", fuzz_path("checkpoint/3/stage-1.safetensors"));
    snprintf(joined, sizeof joined, "%s", fuzz_path("joined"));
    fuzz_make_folder("joined");
    snprintf(hash, sizeof hash, "%016" PRIx64, aq_plan_hash(plan));
    fuzz_make_folder("checkpoint/4"); /* where the input is the only file */
    fuzz_quiet();
}

/* Continue the digest with one tensor of the file, as the reader of checkpoints does. */
static void chain(const struct aq_weights *weights, const char *name, uint64_t *digest)
{
    static float values[VALUES_MAX];
    struct aq_weights_info info;
    uint32_t index;
    if (aq_weights_find(weights, name, &index) != AQ_OK) return;
    aq_weights_info(weights, index, &info);
    if (info.count > VALUES_MAX || aq_weights_read(weights, index, false, values, info.count) != AQ_OK) return;
    *digest = aq_digest_seeded(values, info.count * sizeof(float), *digest);
}

static uint64_t digest_of(const char *path)
{
    struct aq_weights *weights;
    uint64_t digest = 0;
    if (aq_weights_open(path, &weights) != AQ_OK) return 0;
    for (uint32_t i = 0; i < aq_stage_tensor_count(checkpoint.stage); i++) {
        struct aq_tensor_info info;
        aq_stage_tensor(checkpoint.stage, i, &info);
        chain(weights, info.name, &digest);
    }
    for (uint32_t i = 0; i < aq_optimizer_state_count(checkpoint.optimizer); i++) {
        char name[32];
        snprintf(name, sizeof name, "optimizer.%s", aq_optimizer_state_name(checkpoint.optimizer, i));
        chain(weights, name, &digest);
    }
    aq_weights_close(weights);
    return digest;
}

/* Every run of 16 times `letter` becomes the text. */
static void stand_in(uint8_t *bytes, size_t count, char letter, const char *text)
{
    char run[HEX];
    memset(run, letter, HEX);
    for (uint8_t *at; (at = count >= HEX ? memmem(bytes, count, run, HEX) : NULL);)
        memcpy(at, text, HEX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t bytes[BYTES_MAX];
    char digest[HEX + 1];
    start();
    if (size > BYTES_MAX) return 0;
    memcpy(bytes, data, size);
    stand_in(bytes, size, 'P', hash);
    fuzz_write("checkpoint/3/stage-1.safetensors", bytes, size);
    snprintf(digest, sizeof digest, "%016" PRIx64, digest_of(file));
    stand_in(bytes, size, 'D', digest);
    fuzz_write("checkpoint/3/stage-1.safetensors", bytes, size);
    fuzz_told(aq_checkpoint_read(&checkpoint, STEP) == AQ_OK);
    (void)aq_checkpoint_import(&checkpoint, file, 1);
    fuzz_write("checkpoint/4/stage-0.safetensors", bytes, size);
    const struct aq_model_config model = {.kind = "gpt2"};
    const struct aq_lora_config lora = {.rank = size % 5 ? 0 : 2, .alpha = 1};
    const struct aq_join join = {.checkpoint = folder,
                                 .step = 4,
                                 .stages = 1,
                                 .model = &model,
                                 .lora = &lora,
                                 .folder = joined,
                                 .type = size % 3 ? "F32" : "BF16",
                                 .file_bytes_max = size % 2 ? 4 : 0};
    (void)aq_checkpoint_join(&join);
    return 0;
}
