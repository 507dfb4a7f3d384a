/*
 * test_gguf.c -- a GGUF file to the byte: header, keys, places of tensors, and Q8_0 blocks with their rounding; and
 * that nothing is left of a file that cannot be written.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "data_files.h"
#include "stages/gguf.h"
#include "stages/stage.h"
#include "stages/weights.h"

enum { C = 32, V = 256, FILE_BYTES = 65536 };

static char place[DATA_PATH_BYTES];
static float table[V * C];
static uint8_t bytes[FILE_BYTES];

static void config(struct aq_model_config *model)
{
    aq_model_config_default(model, "llama");
    model->blocks = 1;
    model->heads = 2;
    model->channels = C;
    model->mlp = C;
    model->vocabulary = V;
    model->context = 64;
}

static enum aq_status open_as(const struct aq_model_config *model, const char *type, struct aq_gguf **gguf)
{
    const struct aq_gguf_about about = {.model = model, .type = type, .name = "test", .tokenizer = "bytes"};
    return aq_gguf_open(&about, gguf);
}

/* Writes one tensor of the model; what the file has. */
static size_t write_tensor(const struct aq_model_config *model, const char *type,
                           const struct aq_weights_tensor *tensor, enum aq_status wanted)
{
    struct aq_gguf *gguf;
    char path[DATA_PATH_BYTES];
    assert_int_equal(open_as(model, type, &gguf), AQ_OK);
    assert_int_equal(aq_gguf_write(gguf, place, "model.gguf", tensor, 1, NULL, NULL), wanted);
    aq_gguf_close(gguf);
    FILE *file = fopen(data_path(place, "model.gguf", path), "rb");
    if (!file) return 0;
    const size_t count = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_int_equal(unlink(path), 0);
    return count;
}

/* The same of one table as the embedding. */
static size_t write_table(const char *type, enum aq_status wanted)
{
    const struct aq_weights_tensor tensor = {
        .name = "embed_tokens.weight", .dimensions = 2, .shape = {V, C}, .values = table};
    struct aq_model_config model;
    config(&model);
    return write_tensor(&model, type, &tensor, wanted);
}

static uint64_t u64_at(size_t at)
{
    uint64_t value;
    memcpy(&value, bytes + at, sizeof value);
    return value;
}

static uint32_t u32_at(size_t at)
{
    uint32_t value;
    memcpy(&value, bytes + at, sizeof value);
    return value;
}

static void test_header_and_places_are_those_of_the_format(void **state)
{
    static const char name[] = "token_embd.weight";
    (void)state;
    for (int i = 0; i < V * C; i++)
        table[i] = (float)(i % 7) - 3.0f;
    const size_t count = write_table("f16", AQ_OK);
    assert_memory_equal(bytes, "GGUF", 4);
    assert_int_equal(u32_at(4), 3);
    assert_int_equal(u64_at(8), 1);
    assert_int_equal(u64_at(24), strlen("general.architecture"));
    assert_memory_equal(bytes + 32, "general.architecture", strlen("general.architecture"));
    const size_t data = count - sizeof(uint16_t) * V * C;
    assert_int_equal(data % 32, 0);
    size_t at = data - sizeof name;
    while (memcmp(bytes + at, name, sizeof name - 1) != 0)
        at--;
    assert_int_equal(u64_at(at - 8), sizeof name - 1);
    at += sizeof name - 1;
    assert_int_equal(u32_at(at), 2);
    assert_int_equal(u64_at(at + 4), C);
    assert_int_equal(u64_at(at + 12), V);
    assert_int_equal(u32_at(at + 20), 1);
    assert_int_equal(u64_at(at + 24), 0);
    for (int i = 0; i < V * C; i++) {
        uint16_t half;
        memcpy(&half, bytes + data + 2 * (size_t)i, sizeof half);
        assert_true(aq_half_to_float(half) == table[i]);
    }
}

/* Of the first block: largest magnitude 127, so that d is 1 and a value is its own code but for its rounding. */
static void test_q8_rounds_halves_away_from_zero(void **state)
{
    static const float values[] = {127, -126.5f, 0.5f, -0.5f, 1.5f, 2.5f, -2.5f, 0.49f};
    static const int8_t codes[] = {127, -127, 1, -1, 2, 3, -3, 0};
    (void)state;
    memset(table, 0, sizeof table);
    memcpy(table, values, sizeof values);
    table[C + 31] = -2.54f; /* the second block: d is 0.02 */
    const size_t count = write_table("q8_0", AQ_OK), data = count - 34 * V;
    uint16_t d;
    memcpy(&d, bytes + data, sizeof d);
    assert_true(aq_half_to_float(d) == 1.0f);
    assert_memory_equal(bytes + data + 2, codes, sizeof codes);
    memcpy(&d, bytes + data + 34, sizeof d);
    assert_int_equal(d, aq_half_from_float(2.54f / 127.0f));
    assert_int_equal((int8_t)bytes[data + 34 + 33], -127);
    memcpy(&d, bytes + data + 68, sizeof d);
    assert_int_equal(d, 0);
}

/*
 * A block whose d is 0 as fp16 has codes 0. Below a magnitude of 3.7e-37, 1 / d is infinite, and the codes were what
 * the processor makes of an infinity.
 */
static void test_q8_of_tiny_values_is_zero(void **state)
{
    static const float most[] = {1e-6f, 3.8e-37f, 3.7e-37f, 3.6e-37f, 1e-38f, 1e-42f, 1.4e-45f, 0};
    const size_t blocks = sizeof most / sizeof *most;
    (void)state;
    assert_true(blocks <= V);
    memset(table, 0, sizeof table);
    for (size_t b = 0; b < blocks; b++)
        for (int i = 0; i < 32; i++)
            table[32 * b + (size_t)i] = (i % 2 ? -1.0f : 1.0f) * most[b] / (float)(1 + i / 8);
    const size_t count = write_table("q8_0", AQ_OK), data = count - 34 * V;
    for (size_t b = 0; b < blocks; b++) {
        uint16_t d;
        memcpy(&d, bytes + data + 34 * b, sizeof d);
        assert_int_equal(d, aq_half_from_float(most[b] / 127.0f));
        for (size_t i = 0; i < 32; i++) {
            const float x = table[32 * b + i],
                        value = aq_half_to_float(d) * (float)(int8_t)bytes[data + 34 * b + 2 + i];
            assert_true(fabsf(value - x) <= 1e-6f); /* half of fp16's least d, times 127 */
            if (b > 2) assert_int_equal(bytes[data + 34 * b + 2 + i], 0);
        }
    }
}

static void test_values_that_do_not_fit_leave_no_file(void **state)
{
    static const char *const names[] = {"model.gguf", "model.gguf.partial"};
    char path[DATA_PATH_BYTES];
    (void)state;
    memset(table, 0, sizeof table);
    table[V * C - 1] = 65520.0f;
    assert_int_equal(write_table("f16", AQ_INVAL), 0);
    table[V * C - 1] = 127.0f * 65520.0f;
    assert_int_equal(write_table("q8_0", AQ_INVAL), 0);
    for (int i = 0; i < 2; i++)
        assert_int_not_equal(access(data_path(place, names[i], path), F_OK), 0);
}

enum { KEYS = 2, EACH = 3, DIM = 2, INNER = KEYS * EACH * DIM, TAPS = 4 };

/* Row or column `at` of the heads of values, of `rows` each: the first of each head of keys, then the second ones. */
static uint32_t tiled(uint32_t at, uint32_t rows)
{
    const uint32_t head = at / rows, item = head / KEYS, group = head % KEYS;
    return (group * EACH + item) * rows + at % rows;
}

static float half_at(size_t data, size_t index)
{
    uint16_t half;
    memcpy(&half, bytes + data + 2 * index, sizeof half);
    return aq_half_to_float(half);
}

/* Rows of z, columns of the product behind, a value per head that becomes its decay, taps behind those of keys. */
static void test_heads_of_values_of_the_delta_rule_are_tiled(void **state)
{
    const struct aq_weights_tensor out = {.name = "layers.0.linear_attn.out_proj.weight", .shape = {C, INNER}};
    const struct aq_weights_tensor z = {.name = "layers.0.linear_attn.in_proj_z.weight", .shape = {INNER, C}};
    const struct aq_weights_tensor rates = {.name = "layers.0.linear_attn.A_log", .shape = {KEYS * EACH}};
    const struct aq_weights_tensor taps = {.name = "layers.0.linear_attn.conv1d.weight",
                                           .shape = {2 * KEYS * DIM + INNER, 1, TAPS}};
    const struct aq_weights_tensor *const all[] = {&out, &z, &rates, &taps};
    static const uint32_t dimensions[] = {2, 2, 1, 3};
    struct aq_model_config model;
    (void)state;
    aq_model_config_default(&model, "qwen3_5");
    model.blocks = 4;
    model.heads = model.kv_heads = 2;
    model.channels = C;
    model.vocabulary = V;
    model.own[1] = KEYS, model.own[2] = KEYS * EACH, model.own[3] = model.own[4] = DIM, model.own[5] = TAPS;
    for (int i = 0; i < V * C; i++)
        table[i] = (float)(i % 512) / 16.0f;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct aq_weights_tensor tensor = *all[i];
        tensor.dimensions = dimensions[i];
        tensor.values = table;
        const size_t count = write_tensor(&model, "f16", &tensor, AQ_OK);
        float values[(2 * KEYS * DIM + INNER) * TAPS];
        if (i >= 2) memcpy(values, bytes + count - (i == 2 ? 32 : sizeof values), i == 2 ? 32 : sizeof values);
        for (uint32_t r = 0; r < INNER; r++) {
            if (i == 0) assert_true(half_at(count - 2 * C * INNER, r) == table[tiled(r, DIM)]);
            if (i == 1) assert_true(half_at(count - 2 * C * INNER, r * C) == table[tiled(r, DIM) * C]);
            if (i == 2 && r < KEYS * EACH) assert_true(values[r] == (float)-exp((double)table[tiled(r, 1)]));
            const uint32_t behind = 2 * KEYS * DIM;
            if (i == 3) assert_true(values[(behind + r) * TAPS + 1] == table[(behind + tiled(r, DIM)) * TAPS + 1]);
        }
        if (i == 3) assert_memory_equal(values, table, 2 * KEYS * DIM * TAPS * sizeof(float));
    }
}

/* Sizes that fit an architecture of llama.cpp, and one change that does not. */
static void test_values_that_an_architecture_lacks_are_refused(void **state)
{
    enum change { NOTHING, FACTORS, ROOT, CAP, HEADS, VALUES, ONE_TAP, PURE, BLOCKS };
    static const struct {
        const char *kind;
        enum change change;
        enum aq_status wanted;
    } cases[] = {{"llama", FACTORS, AQ_OK},      {"granite", FACTORS, AQ_OK},     {"exaone4", FACTORS, AQ_OK},
                 {"olmo2", FACTORS, AQ_INVAL},   {"smollm3", FACTORS, AQ_INVAL},  {"lfm2", FACTORS, AQ_INVAL},
                 {"gemma2", NOTHING, AQ_OK},     {"gemma2", ROOT, AQ_INVAL},      {"gemma2", CAP, AQ_INVAL},
                 {"gemma2", BLOCKS, AQ_INVAL},   {"phi3", NOTHING, AQ_OK},        {"phi3", HEADS, AQ_INVAL},
                 {"lfm2", NOTHING, AQ_OK},       {"lfm2", HEADS, AQ_INVAL},       {"lfm2", ONE_TAP, AQ_INVAL},
                 {"lfm2", PURE, AQ_INVAL},       {"qwen3_5", NOTHING, AQ_OK},     {"qwen3_5", VALUES, AQ_INVAL},
                 {"qwen3_5", PURE, AQ_INVAL}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const enum change change = cases[i].change;
        struct aq_model_config model;
        struct aq_gguf *gguf = NULL;
        aq_model_config_default(&model, cases[i].kind);
        model.blocks = change == BLOCKS ? 46 : 4;
        model.heads = 2;
        model.channels = C;
        model.vocabulary = V;
        model.head_dim = change == HEADS ? 8 : change == BLOCKS ? 32 : 16;
        model.kv_heads = 2;
        model.query_scale = change == ROOT ? 8 : model.head_dim;
        model.score_cap = strcmp(cases[i].kind, "gemma2") != 0 || change == CAP ? 0.0f : 50.0f;
        model.logit_cap = strcmp(cases[i].kind, "gemma2") == 0 ? 30.0f : 0.0f;
        if (model.logit_cap > 0.0f) model.window = 8;
        if (change == FACTORS) model.rope_factor = 2.0f;
        if (change == ONE_TAP) model.conv_taps = 1;
        if (change == VALUES) model.own[4] = 64; /* delta_value_dim */
        if (change == PURE) model.own[0] = 1, model.attention_blocks = UINT32_MAX;
        if (open_as(&model, "f16", &gguf) != cases[i].wanted) fail_msg("%s, change %d", cases[i].kind, (int)change);
        aq_gguf_close(gguf);
    }
}

static void test_what_llama_cpp_does_not_compute_is_refused(void **state)
{
    struct aq_model_config model;
    struct aq_gguf *gguf;
    (void)state;
    config(&model);
    assert_int_equal(open_as(&model, "q4_0", &gguf), AQ_INVAL);
    model.labels = 2;
    assert_int_equal(open_as(&model, "f16", &gguf), AQ_INVAL);
    config(&model);
    model.rope_partial = 0.5f;
    assert_int_equal(open_as(&model, "f16", &gguf), AQ_INVAL);
    aq_model_config_default(&model, "deberta");
    assert_int_equal(open_as(&model, "f16", &gguf), AQ_INVAL);
    aq_model_config_default(&model, "ministral3");
    assert_int_equal(open_as(&model, "f16", &gguf), AQ_INVAL);
}

/* Without memory at any point there is a status, and nothing is left. */
static void test_opening_without_memory_leaves_nothing(void **state)
{
    struct aq_model_config model;
    struct aq_gguf *gguf;
    enum aq_status status = AQ_NOMEM;
    uint64_t n = 0;
    (void)state;
    config(&model);
    const uint64_t before = aq_memory_used();
    while (status != AQ_OK) {
        aq_memory_fail_at(++n);
        status = open_as(&model, "f16", &gguf);
        aq_memory_fail_at(0);
        if (status == AQ_OK) aq_gguf_close(gguf);
        assert_true(status == AQ_OK || status == AQ_NOMEM);
        assert_int_equal(aq_memory_used(), before);
    }
    assert_true(n > 5);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header_and_places_are_those_of_the_format),
        cmocka_unit_test(test_q8_rounds_halves_away_from_zero),
        cmocka_unit_test(test_q8_of_tiny_values_is_zero),
        cmocka_unit_test(test_values_that_do_not_fit_leave_no_file),
        cmocka_unit_test(test_opening_without_memory_leaves_nothing),
        cmocka_unit_test(test_what_llama_cpp_does_not_compute_is_refused),
        cmocka_unit_test(test_heads_of_values_of_the_delta_rule_are_tiled),
        cmocka_unit_test(test_values_that_an_architecture_lacks_are_refused),
    };
    data_be_quiet();
    data_folder_open(place);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    data_folder_close(place);
    return failed;
}
