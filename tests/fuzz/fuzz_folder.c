/*
 * fuzz_folder.c -- any bytes as config.json of a published folder, and as the index of its shards: a status and a line,
 * or a model that can be, and tensors of which every value can be read. Never a file outside the folder.
 *
 * The input is config.json up to the first byte 0x01, then the index. Two shards are there, with tensors "a" and "b",
 * and beside the folder one more that no name may reach.
 */
#include <string.h>

#include "fuzz.h"
#include "stages/model_folder.h"
#include "stages/publish.h"
#include "stages/weights.h"

enum { BYTES_MAX = 1 << 16, MARK = 1 };

static char folder[512];

static void start(void)
{
    static const float values[4] = {1, 2, 3, 4};
    static const char *const shards[][2] = {{"folder/model-00001-of-00002.safetensors", "a"},
                                            {"folder/model-00002-of-00002.safetensors", "b"},
                                            {"outside.safetensors", "outside"}};
    if (folder[0]) return;
    fuzz_quiet();
    fuzz_make_folder("folder");
    for (int i = 0; i < 3; i++) {
        const struct aq_weights_tensor tensor = {.name = shards[i][1], .dimensions = 1, .shape = {4}, .values = values};
        AQ_ASSERT(aq_weights_write(fuzz_path(shards[i][0]), &tensor, 1, NULL) == AQ_OK);
    }
    snprintf(folder, sizeof folder, "%s", fuzz_path("folder"));
}

static enum aq_status swallow(void *context, const char *name, const char *bytes, size_t count)
{
    (void)context;
    (void)name;
    AQ_ASSERT(count > 0 && bytes[count - 1] == '\n');
    return AQ_OK;
}

static void read_config(void)
{
    struct aq_model_folder *open;
    const enum aq_status status = aq_model_folder_open(folder, &open);
    fuzz_told(status == AQ_OK);
    if (status != AQ_OK) {
        AQ_ASSERT(status == AQ_CORRUPT || status == AQ_MISMATCH);
        return;
    }
    const struct aq_model_config *model = aq_model_folder_model(open);
    AQ_ASSERT(aq_model_config_check(model) == AQ_OK);
    AQ_ASSERT(aq_model_folder_type(open) && aq_model_folder_architecture(open));
    const struct aq_publish_about about = {.end_of_text = -1, .type = "F32", .from = folder};
    struct aq_model_marks marks;
    struct aq_model_generation generation;
    const enum aq_status generates = aq_model_folder_generation(open, &generation);
    AQ_ASSERT(generates != AQ_OK || generation.repetition_penalty > 0);
    char order[64];
    (void)aq_model_folder_order(open, "a, b", order, sizeof order);
    const enum aq_status marked = aq_model_folder_marks(open, &marks);
    AQ_ASSERT(marked == AQ_OK || marked == AQ_MISMATCH);
    for (uint32_t i = 0; marked == AQ_OK && i < marks.end_count; i++)
        AQ_ASSERT(marks.ends[i] >= 0 && (uint32_t)marks.ends[i] < model->vocabulary);
    AQ_ASSERT(aq_publish_model(model, &about, swallow, NULL) == AQ_OK);
    aq_model_folder_close(open);
}

static bool wants_a(void *context, const char *name)
{
    (void)context;
    return strcmp(name, "a") == 0;
}

static void read_index(aq_weights_wants *wants)
{
    struct aq_weights *weights;
    const enum aq_status status = aq_weights_open_wanted(folder, wants, NULL, &weights);
    fuzz_told(status == AQ_OK);
    if (status != AQ_OK) {
        AQ_ASSERT(status == AQ_CORRUPT || status == AQ_NOTFOUND);
        return;
    }
    for (uint32_t i = 0; i < aq_weights_count(weights); i++) {
        struct aq_weights_info info;
        float values[4];
        uint32_t index;
        aq_weights_info(weights, i, &info);
        AQ_ASSERT(strcmp(info.name, "outside") != 0 && aq_weights_find(weights, info.name, &index) == AQ_OK);
        AQ_ASSERT(aq_weights_read(weights, i, false, values, info.count) == AQ_OK);
    }
    aq_weights_close(weights);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    start();
    if (size > BYTES_MAX) return 0;
    const uint8_t *mark = size ? memchr(data, MARK, size) : NULL;
    const size_t config = mark ? (size_t)(mark - data) : size;
    fuzz_write("folder/config.json", data, config);
    read_config();
    if (!mark) return 0;
    fuzz_write("folder/model.safetensors.index.json", mark + 1, size - config - 1);
    read_index(NULL);
    read_index(wants_a);
    return 0;
}
