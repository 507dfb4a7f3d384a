/*
 * test_weights.c -- safetensors files: golden bytes both ways, every lie a header can tell, a disk that is full.
 *
 * The golden files were written by a few lines of Python's struct and json, apart from the code under test.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "data_files.h"
#include "stages/stage.h"
#include "stages/weights.h"

static char folder[DATA_PATH_BYTES], path[DATA_PATH_BYTES];

static void expect_values(const struct aq_weights *w, const char *name, const float *expected, uint64_t count)
{
    uint32_t index;
    float values[16];
    assert_int_equal(aq_weights_find(w, name, &index), AQ_OK);
    assert_int_equal(aq_weights_read(w, index, false, values, count), AQ_OK);
    assert_memory_equal(values, expected, count * sizeof(float));
}

static void test_read_golden_every_type(void **state)
{
    (void)state;
    struct aq_weights *w;
    struct aq_weights_info info;
    uint32_t index;
    float values[6];
    assert_int_equal(aq_weights_open(AQ_GOLDEN "/weights_types.safetensors", &w), AQ_OK);
    assert_int_equal(aq_weights_count(w), 7);
    assert_string_equal(aq_weights_metadata(w, "step"), "12");
    assert_null(aq_weights_metadata(w, "stop"));
    expect_values(w, "transformer.wte.weight", (const float[]){1, 2, 3, 4, 5, 6.5f}, 6);
    expect_values(w, "wte.weight", (const float[]){1, 2, 3, 4, 5, 6.5f}, 6);
    expect_values(w, "transformer.h.0.ln.bias", (const float[]){-1.5f, 0, 3}, 3);
    expect_values(w, "half", (const float[]){0.5f, -2, 65504, 0x1p-24f}, 4);
    expect_values(w, "double", (const float[]){0.1f}, 1);
    expect_values(w, "scalar", (const float[]){42}, 1);
    assert_int_equal(aq_weights_find(w, "nothing", &index), AQ_OK);
    aq_weights_info(w, index, &info);
    assert_int_equal(info.count, 0);
    assert_int_equal(aq_weights_read(w, index, true, NULL, 0), AQ_OK);
    assert_int_equal(aq_weights_find(w, "wte", &index), AQ_NOTFOUND);
    assert_int_equal(aq_weights_find(w, "wte.weight", &index), AQ_OK);
    aq_weights_info(w, index, &info);
    assert_string_equal(info.name, "transformer.wte.weight");
    assert_string_equal(info.type, "F32");
    assert_int_equal(info.dimensions, 2);
    assert_int_equal(info.shape[0], 2);
    assert_int_equal(info.shape[1], 3);
    assert_int_equal(aq_weights_read(w, index, true, values, 6), AQ_OK);
    assert_memory_equal(values, ((const float[]){1, 4, 2, 5, 3, 6.5f}), sizeof values);
    assert_int_equal(aq_weights_read(w, index, false, values, 5), AQ_MISMATCH);
    assert_int_equal(aq_weights_read(w, 7, false, values, 6), AQ_INVAL);
    assert_int_equal(aq_weights_find(w, "ids", &index), AQ_OK);
    assert_int_equal(aq_weights_read(w, index, false, values, 2), AQ_MISMATCH);
    assert_int_equal(aq_weights_find(w, "scalar", &index), AQ_OK);
    assert_int_equal(aq_weights_read(w, index, true, values, 1), AQ_MISMATCH);
    aq_weights_close(w);
    aq_weights_close(NULL);
}

static size_t read_bytes(const char *name, uint8_t *out, size_t most)
{
    FILE *file = fopen(name, "rb");
    assert_non_null(file);
    size_t bytes = fread(out, 1, most, file);
    assert_int_equal(fclose(file), 0);
    assert_true(bytes < most);
    return bytes;
}

static const float a_values[] = {1, 2, 3, 4}, b_values[] = {-1, 0.5f, 1e-3f}, c_values[] = {9};
static const struct aq_weights_tensor three[] = {
    {.name = "a", .dimensions = 2, .shape = {2, 2}, .values = a_values},
    {.name = "b.weight", .dimensions = 1, .shape = {3}, .values = b_values},
    {.name = "c", .dimensions = 0, .values = c_values},
};

static void test_write_golden_same_bytes(void **state)
{
    (void)state;
    uint8_t golden[1024], written[1024];
    char partial[DATA_PATH_BYTES];
    assert_int_equal(aq_weights_write(path, three, 3, (const char *const[]){"writer", "test", NULL}), AQ_OK);
    size_t bytes = read_bytes(path, written, sizeof written);
    assert_int_equal(bytes, read_bytes(AQ_GOLDEN "/weights_written.safetensors", golden, sizeof golden));
    assert_memory_equal(written, golden, bytes);
    assert_int_equal(access(data_path(folder, "weights.partial", partial), F_OK), -1);
}

static void test_write_then_read_same_values(void **state)
{
    (void)state;
    enum { ROWS = 37, COLUMNS = 530, MATRICES = 2, COUNT = MATRICES * ROWS * COLUMNS };
    static float values[COUNT], back[COUNT];
    struct aq_rng_key key = aq_rng_key(41, AQ_RNG_TEST, 0, 0);
    for (uint64_t i = 0; i < COUNT; i++)
        values[i] = aq_rng_normal(&key, i);
    const struct aq_weights_tensor tensors[] = {
        three[0],
        {.name = "nothing", .dimensions = 1, .shape = {0}},
        {.name = "quote \" and \xC3\xA9", .dimensions = 3, .shape = {MATRICES, ROWS, COLUMNS}, .values = values}};
    struct aq_weights *w;
    uint32_t index;
    assert_int_equal(aq_weights_write(path, tensors, 3, NULL), AQ_OK);
    assert_int_equal(aq_weights_open(path, &w), AQ_OK);
    assert_null(aq_weights_metadata(w, "writer"));
    assert_int_equal(aq_weights_count(w), 3);
    assert_int_equal(aq_weights_find(w, tensors[2].name, &index), AQ_OK);
    assert_int_equal(aq_weights_read(w, index, false, back, COUNT), AQ_OK);
    assert_memory_equal(back, values, sizeof back);
    assert_int_equal(aq_weights_read(w, index, true, back, COUNT), AQ_OK);
    for (size_t m = 0; m < MATRICES; m++) {
        for (size_t r = 0; r < ROWS; r++) {
            for (size_t c = 0; c < COLUMNS; c++)
                assert_true(back[(m * COLUMNS + c) * ROWS + r] == values[(m * ROWS + r) * COLUMNS + c]);
        }
    }
    aq_weights_close(w);
    assert_int_equal(aq_weights_write(path, NULL, 0, NULL), AQ_OK);
    assert_int_equal(aq_weights_open(path, &w), AQ_OK);
    assert_int_equal(aq_weights_count(w), 0);
    aq_weights_close(w);
}

/* The first value that is no number, wherever it is in the pieces that are read at once; the largest number is one. */
static void test_finite_says_the_first_place(void **state)
{
    (void)state;
    enum { COUNT = 20001 };
    static const uint64_t places[] = {0, 5, 8191, 8192, 16383, 16384, COUNT - 1};
    static float values[COUNT];
    const struct aq_weights_tensor tensor = {.name = "t", .dimensions = 1, .shape = {COUNT}, .values = values};
    for (size_t i = 0; i <= sizeof places / sizeof *places; i++) {
        const bool all = i == sizeof places / sizeof *places;
        struct aq_weights *w;
        bool finite;
        uint64_t place;
        float value;
        for (uint64_t k = 0; k < COUNT; k++)
            values[k] = k % 2 ? FLT_MAX : -FLT_MAX;
        if (!all) values[places[i]] = i % 2 ? -INFINITY : NAN;
        if (!all && places[i] + 1 < COUNT) values[COUNT - 1] = INFINITY;
        assert_int_equal(aq_weights_write(path, &tensor, 1, NULL), AQ_OK);
        assert_int_equal(aq_weights_open(path, &w), AQ_OK);
        assert_int_equal(aq_weights_finite(w, 0, &finite, &place, &value), AQ_OK);
        assert_int_equal(finite, all);
        if (!all) assert_int_equal(place, places[i]);
        if (!all) assert_int_equal(isnan(value) != 0, i % 2 == 0);
        aq_weights_close(w);
    }
}

/* A file of this header and so many zero bytes of data; opening it must fail, saying `part`. */
static void expect_corrupt(const char *header, size_t data_bytes, const char *part)
{
    uint8_t file[4096] = {0};
    uint64_t length = strlen(header);
    struct aq_weights *w = NULL;
    memcpy(file, &length, sizeof length);
    memcpy(file + sizeof length, header, length);
    data_write(folder, "weights", file, sizeof length + length + data_bytes);
    uint64_t used = aq_memory_used();
    aq_error_clear();
    assert_int_equal(aq_weights_open(path, &w), AQ_CORRUPT);
    if (!strstr(aq_error_text(), part)) fail_msg("%s: \"%s\" does not say \"%s\"", header, aq_error_text(), part);
    assert_non_null(strstr(aq_error_text(), path));
    assert_int_equal(aq_memory_used(), used);
}

#define TENSOR(name, dtype, shape, offsets)                                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_open_lying_header_corrupt(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *part;
    } cases[] = {
        {"{ ", 8, "header, line"},
        {"[]", 8, "does not start with {"},
        {" {}", 0, "does not start with {"},
        {"{}", 1, "the tensors end at byte 0, the file has 1"},
        {"{}}", 0, "header, line"},
        {"{\"a\":1}", 0, "no \"dtype\""},
        {"{\"a\":{}}", 0, "no \"dtype\""},
        {"{" TENSOR("a", "F31", "[1]", "[0,4]") "}", 4, "unknown type \"F31\""},
        {"{" TENSOR("a", "F32", "1", "[0,4]") "}", 4, "\"shape\""},
        {"{" TENSOR("a", "F32", "[-1]", "[0,4]") "}", 4, "extent 0"},
        {"{" TENSOR("a", "F32", "[1.0]", "[0,4]") "}", 4, "extent 0"},
        {"{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "at most 8"},
        {"{" TENSOR("a", "F32", "[4294967296,4294967296,16]", "[0,4]") "}", 4, "exceeds 64 bits"},
        {"{" TENSOR("a", "F32", "[4611686018427387905]", "[0,4]") "}", 4, "do not take 4 bytes"},
        {"{" TENSOR("a", "F32", "[99999999999999999999]", "[0,4]") "}", 4, "header, line"},
        {"{" TENSOR("a", "F32", "[1]", "4") "}", 4, "\"data_offsets\""},
        {"{" TENSOR("a", "F32", "[1]", "[0]") "}", 4, "\"data_offsets\""},
        {"{" TENSOR("a", "F32", "[1]", "[0,4,8]") "}", 4, "\"data_offsets\""},
        {"{" TENSOR("a", "F32", "[1]", "[-4,0]") "}", 4, "\"data_offsets\""},
        {"{" TENSOR("a", "F32", "[1]", "[4,0]") "}", 4, "bytes 4 to 0"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4]") "}", 3, "cut short"},
        {"{" TENSOR("a", "F32", "[2]", "[0,4]") "}", 4, "do not take 4 bytes"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("a", "F32", "[1]", "[4,8]") "}", 8, "duplicate"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("b", "F32", "[1]", "[0,4]") "}", 4, "starts at byte 0"},
        {"{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[1]", "[4,8]") "}", 8, "starts at byte 4"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("b", "F32", "[1]", "[8,12]") "}", 12, "starts at byte 8"},
        {"{" TENSOR("a", "F32", "[1]", "[4,8]") "}", 8, "starts at byte 4"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4]") "}", 8, "the tensors end at byte 4"},
        {"{\"__metadata__\":3}", 0, "is not an object"},
        {"{\"__metadata__\":{\"a\":3}}", 0, "is not a text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_corrupt(cases[i].header, cases[i].data, cases[i].part);
}

static void test_open_bad_lengths_fail(void **state)
{
    (void)state;
    struct aq_weights *w = NULL;
    static const uint64_t lengths[] = {0, 1, 3, 4, UINT64_MAX, UINT64_MAX - 7, UINT64_C(100000001)};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint8_t file[10] = {0};
        memcpy(file, &lengths[i], sizeof lengths[i]);
        memcpy(file + 8, "{}", 2);
        data_write(folder, "weights", file, sizeof file);
        assert_int_equal(aq_weights_open(path, &w), AQ_CORRUPT);
    }
    data_write(folder, "weights", "", 0);
    assert_int_equal(aq_weights_open(path, &w), AQ_CORRUPT);
    data_write(folder, "weights", "\2\0\0\0\0\0\0\0{", 9);
    assert_int_equal(aq_weights_open(path, &w), AQ_CORRUPT);
    data_write(folder, "weights", "\2\0\0\0\0\0\0\0{}", 10);
    assert_int_equal(aq_weights_open(path, &w), AQ_OK);
    aq_weights_close(w);
    w = NULL;
    assert_int_equal(aq_weights_open(folder, &w), AQ_NOTFOUND);
    assert_int_equal(aq_weights_open("/nonexistent/file", &w), AQ_NOTFOUND);
    assert_null(w);
}

static void test_write_impossible_tensors_inval(void **state)
{
    (void)state;
    const struct aq_weights_low_rank plus = {.a = a_values, .b = a_values, .in = 2, .out = 1, .rank = 1, .scale = 1};
    const struct aq_weights_tensor bad[] = {
        {.name = "a", .dimensions = 9, .values = a_values},
        {.name = "a", .dimensions = 2, .shape = {UINT64_C(1) << 32, UINT64_C(1) << 32}, .values = a_values},
        {.name = "a", .dimensions = 1, .shape = {UINT64_C(1) << 62}, .values = a_values},
        {.name = "a", .dimensions = 2, .shape = {0, UINT64_MAX}, .values = a_values},
        {.name = "__metadata__", .dimensions = 0, .values = a_values},
        {.name = "\xFF", .dimensions = 0, .values = a_values},
        {.name = "a", .dimensions = 2, .shape = {1, 2}, .values = a_values, .plus = &plus},
        {.name = "a", .dimensions = 2, .shape = {2, 2}, .values = a_values, .plus = &plus},
        {.name = "a", .dimensions = 1, .shape = {2}, .values = a_values, .plus = &plus},
    };
    remove(path);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(aq_weights_write(path, &bad[i], 1, NULL), AQ_INVAL);
    const struct aq_weights_tensor twice[] = {three[0], three[0]};
    assert_int_equal(aq_weights_write(path, twice, 2, NULL), AQ_INVAL);
    assert_int_equal(aq_weights_write(path, three, 3, (const char *const[]){"a", "\xFF", NULL}), AQ_INVAL);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_not_equal(aq_weights_write("/nonexistent/file", three, 3, NULL), AQ_OK);
}

/* A limit on the file's length stands for the full disk: the old file stays, the neighbour goes. */
static void test_write_no_room_keeps_the_old_file(void **state)
{
    (void)state;
    static float many[4096];
    const struct aq_weights_tensor large = {.name = "a", .dimensions = 1, .shape = {4096}, .values = many};
    uint8_t before[1024], after[1024];
    char partial[DATA_PATH_BYTES];
    struct rlimit unlimited, limited;
    assert_int_equal(aq_weights_write(path, three, 3, NULL), AQ_OK);
    size_t bytes = read_bytes(path, before, sizeof before);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
    signal(SIGXFSZ, SIG_IGN);
    limited = unlimited;
    limited.rlim_cur = 8192;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limited), 0);
    enum aq_status status = aq_weights_write(path, &large, 1, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
    assert_int_not_equal(status, AQ_OK);
    assert_int_equal(access(data_path(folder, "weights.partial", partial), F_OK), -1);
    assert_int_equal(read_bytes(path, after, sizeof after), bytes);
    assert_memory_equal(before, after, bytes);
}

static void test_no_memory_at_any_place_leaks_nothing(void **state)
{
    (void)state;
    uint64_t used = aq_memory_used();
    enum aq_status status = AQ_NOMEM;
    int failures = 0;
    for (uint64_t n = 1; status != AQ_OK; n++) {
        struct aq_weights *w = NULL;
        aq_memory_fail_at(n);
        status = aq_weights_write(path, three, 3, NULL);
        if (status == AQ_OK) status = aq_weights_open(path, &w);
        aq_memory_fail_at(0);
        aq_weights_close(w);
        assert_int_equal(aq_memory_used(), used);
        if (status != AQ_OK) assert_int_equal(status, AQ_NOMEM);
        failures += status != AQ_OK;
        assert_true(n < 100);
    }
    assert_true(failures >= 3);
}

/* A checkpoint that another program wrote: minGPT's "gpt-nano", trained to sort. */

/* ---- aq_weights_match ---- */

enum { MATCH_TENSORS = 64 };

/* A file of the tensors of that model, as this house writes them; `change` is done to the list before. */
static enum aq_status match(const struct aq_model_config *file, const struct aq_model_config *model,
                            void (*change)(struct aq_weights_tensor *tensors, uint32_t *count))
{
    static struct aq_tensor_info infos[MATCH_TENSORS];
    static float values[1 << 16];
    struct aq_weights_tensor tensors[MATCH_TENSORS];
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        values[i] = (float)i;
    struct aq_device *device;
    struct aq_stage *stage;
    struct aq_weights *weights;
    const struct aq_stage_config config = {
        .model = *file, .layer_end = file->blocks + 2, .B = 1, .T = 4, .slots = 1, .precision = AQ_STAGE_FP32};
    const struct aq_device_config cpu = {.kind = "cpu", .threads = 1};
    assert_int_equal(aq_device_open(&cpu, &device), AQ_OK);
    assert_int_equal(aq_stage_open(device, &config, &stage), AQ_OK);
    uint32_t count = aq_stage_tensor_count(stage);
    assert_true(count + 2 < MATCH_TENSORS);
    for (uint32_t i = 0; i < count; i++) {
        aq_stage_tensor(stage, i, &infos[i]);
        tensors[i] =
            (struct aq_weights_tensor){.name = infos[i].name, .dimensions = infos[i].dimensions, .values = values + i};
        memcpy(tensors[i].shape, infos[i].shape, sizeof infos[i].shape);
    }
    if (change) change(tensors, &count);
    assert_int_equal(aq_weights_write(path, tensors, count, NULL), AQ_OK);
    aq_stage_close(stage);
    aq_device_close(device);
    assert_int_equal(aq_weights_open(path, &weights), AQ_OK);
    const enum aq_status status = aq_weights_match(weights, model);
    aq_weights_close(weights);
    return status;
}

static uint32_t place(const struct aq_weights_tensor *tensors, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(tensors[i].name, name) == 0) return i;
    fail_msg("no %s", name);
    return 0;
}

static void drop_a_bias(struct aq_weights_tensor *tensors, uint32_t *count)
{
    tensors[place(tensors, *count, "h.1.ln_2.bias")] = tensors[*count - 1];
    (*count)--;
}

static void turn_a_matrix(struct aq_weights_tensor *tensors, uint32_t *count)
{
    struct aq_weights_tensor *matrix = &tensors[place(tensors, *count, "h.0.mlp.c_fc.weight")];
    const uint64_t rows = matrix->shape[0];
    matrix->shape[0] = matrix->shape[1];
    matrix->shape[1] = rows;
}

static void add_masks_and_more(struct aq_weights_tensor *tensors, uint32_t *count)
{
    tensors[*count] = (struct aq_weights_tensor){
        .name = "transformer.h.0.attn.bias", .dimensions = 2, .shape = {4, 4}, .values = tensors[0].values};
    (*count)++;
    tensors[*count] = (struct aq_weights_tensor){
        .name = "score.weight", .dimensions = 2, .shape = {2, 8}, .values = tensors[0].values};
    (*count)++;
}

static void drop_the_head(struct aq_weights_tensor *tensors, uint32_t *count)
{
    tensors[place(tensors, *count, "lm_head.weight")] = tensors[*count - 1];
    (*count)--;
}

static void head_is_the_embedding(struct aq_weights_tensor *tensors, uint32_t *count)
{
    tensors[place(tensors, *count, "lm_head.weight")].values = tensors[place(tensors, *count, "wte.weight")].values;
}

static void test_match_finds_what_would_train_in_silence(void **state)
{
    (void)state;
    struct aq_model_config deep, two, wide, tied;
    aq_model_config_default(&deep, "gpt2");
    deep.blocks = 3;
    deep.heads = 2;
    deep.channels = 8;
    deep.vocabulary = 11;
    deep.context = 4;
    deep.tied = false;
    two = wide = tied = deep;
    two.blocks = 2;
    wide.context = 5;
    tied.tied = true;
    const struct {
        const struct aq_model_config *file, *model;
        void (*change)(struct aq_weights_tensor *tensors, uint32_t *count);
        const char *text; /* NULL: it fits */
    } cases[] = {
        {&deep, &deep, NULL, NULL},
        {&tied, &tied, NULL, NULL},
        {&deep, &deep, drop_the_head, NULL},
        {&deep, &deep, add_masks_and_more, NULL},
        {&deep, &tied, head_is_the_embedding, NULL},
        {&deep, &tied, NULL, "lm_head.weight is not wte.weight; set model.tied: untied"},
        {&deep, &two, NULL, "which the model does not have: is model.blocks right?"},
        {&two, &deep, NULL, "h.2."},
        {&deep, &wide, NULL, "wpe.weight is 4 x 8, the model needs 5 x 8"},
        {&deep, &deep, drop_a_bias, "h.1.ln_2.bias is missing"},
        {&deep, &deep, turn_a_matrix,
         "h.0.mlp.c_fc.weight is 32 x 8, the model needs 8 x 32: its matrices "
         "are transposed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        aq_error_clear();
        const enum aq_status status = match(cases[i].file, cases[i].model, cases[i].change);
        assert_int_equal(status, cases[i].text ? AQ_MISMATCH : AQ_OK);
        if (cases[i].text && !strstr(aq_error_text(), cases[i].text)) fail_msg("case %zu: %s", i, aq_error_text());
    }
}

static void test_read_published_checkpoint(void **state)
{
    (void)state;
    char published[DATA_PATH_BYTES];
    if (!data_shared("weights/gpt_nano_sort/model.safetensors", published)) skip();
    struct aq_weights *w;
    struct aq_weights_info info;
    uint32_t index;
    uint64_t parameters = 0;
    static float values[48 * 144];
    assert_int_equal(aq_weights_open(published, &w), AQ_OK);
    for (uint32_t i = 0; i < aq_weights_count(w); i++) {
        aq_weights_info(w, i, &info);
        assert_string_equal(info.type, "F32");
        parameters += info.count;
    }
    assert_int_equal(parameters, 85296);
    assert_int_equal(aq_weights_find(w, "h.0.attn.c_attn.weight", &index), AQ_OK);
    aq_weights_info(w, index, &info);
    assert_int_equal(info.shape[0], 144); /* [out, in], as minGPT's Linear has it */
    assert_int_equal(info.shape[1], 48);
    assert_int_equal(aq_weights_read(w, index, true, values, info.count), AQ_OK);
    double sum = 0;
    for (uint64_t i = 0; i < info.count; i++)
        sum += (double)values[i] * (double)values[i];
    assert_true(sum > 1 && sum < 1e5);
    aq_weights_close(w);
}

static int open_folder(void **state)
{
    (void)state;
    data_be_quiet();
    data_folder_open(folder);
    data_path(folder, "weights", path);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    data_folder_close(folder);
    return 0;
}

/* As they lie, the other way round, of another file, in 16 bits: each value where it belongs, each rounded once. */
static void test_write_turned_from_a_file_and_rounded(void **state)
{
    enum { ROWS = 3, COLUMNS = 700 }; /* over one strip */
    static float values[ROWS * COLUMNS], back[ROWS * COLUMNS];
    char second[DATA_PATH_BYTES];
    struct aq_weights *w, *copy;
    struct aq_weights_info info;
    (void)state;
    for (int i = 0; i < ROWS * COLUMNS; i++) values[i] = 1.0f + (float)i / 1024.0f;
    const struct aq_weights_tensor tensors[] = {
        {.name = "a", .dimensions = 2, .shape = {ROWS, COLUMNS}, .values = values, .transposed = true},
        {.name = "b", .dimensions = 2, .shape = {ROWS, COLUMNS}, .values = values, .type = "BF16"}};
    assert_int_equal(aq_weights_write(data_path(folder, "a.safetensors", path), tensors, 2, NULL), AQ_OK);
    assert_int_equal(aq_weights_open(path, &w), AQ_OK);
    aq_weights_info(w, 0, &info);
    assert_int_equal(info.shape[0], COLUMNS);
    assert_int_equal(info.shape[1], ROWS);
    assert_int_equal(aq_weights_read(w, 0, false, back, ROWS * COLUMNS), AQ_OK);
    for (int i = 0; i < ROWS * COLUMNS; i++) assert_true(back[i] == values[i % ROWS * COLUMNS + i / ROWS]);
    aq_weights_info(w, 1, &info);
    assert_string_equal(info.type, "BF16");
    assert_int_equal(aq_weights_read(w, 1, false, back, ROWS * COLUMNS), AQ_OK);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        assert_true(back[i] == aq_bfloat_to_float(aq_bfloat_from_float(values[i])));
    const struct aq_weights_tensor copies[] = {
        {.name = "a", .dimensions = 2, .shape = {COLUMNS, ROWS}, .from = w, .index = 0, .transposed = true},
        {.name = "b", .dimensions = 2, .shape = {ROWS, COLUMNS}, .from = w, .index = 1, .type = "F16"}};
    assert_int_equal(aq_weights_write(data_path(folder, "b.safetensors", second), copies, 2, NULL), AQ_OK);
    assert_int_equal(aq_weights_open(second, &copy), AQ_OK);
    assert_int_equal(aq_weights_read(copy, 0, false, back, ROWS * COLUMNS), AQ_OK);
    assert_memory_equal(back, values, sizeof values);
    assert_int_equal(aq_weights_read(copy, 1, true, back, ROWS * COLUMNS), AQ_OK);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        assert_true(back[i] == aq_bfloat_to_float(aq_bfloat_from_float(values[i % ROWS * COLUMNS + i / ROWS])));
    aq_weights_close(copy);
    aq_weights_close(w);
}

static void test_write_refuses_what_cannot_be_written(void **state)
{
    const float large[] = {1.0f, 1e6f};
    const struct aq_weights_tensor cases[] = {
        {.name = "a", .dimensions = 1, .shape = {2}, .values = large, .type = "F16"},
        {.name = "a", .dimensions = 1, .shape = {2}, .values = large, .type = "F64"},
        {.name = "a", .dimensions = 1, .shape = {2}, .values = large, .type = "nothing"},
        {.name = "a", .dimensions = 1, .shape = {2}, .values = large, .transposed = true}};
    struct aq_weights *w;
    (void)state;
    data_path(folder, "never.safetensors", path);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(aq_weights_write(path, &cases[i], 1, NULL), AQ_INVAL);
        assert_int_equal(aq_weights_open(path, &w), AQ_NOTFOUND);
    }
}

/* 640, 896, 1152 and 1408 bytes of header begin as pickles do. */
static void test_open_header_of_any_length(void **state)
{
    char text[2048];
    struct aq_weights *w;
    (void)state;
    for (size_t bytes = 16; bytes < 1500; bytes += 8) {
        memset(text, 0, 8);
        memcpy(text, &bytes, sizeof bytes);
        snprintf(text + 8, sizeof text - 8, "{\"__metadata__\": {}}");
        if (bytes < strlen(text + 8)) continue;
        memset(text + 8 + strlen(text + 8), ' ', bytes);
        data_write(folder, "weights", text, 8 + bytes);
        assert_int_equal(aq_weights_open(data_path(folder, "weights", path), &w), AQ_OK);
        aq_weights_close(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_golden_every_type),
        cmocka_unit_test(test_write_golden_same_bytes),
        cmocka_unit_test(test_write_then_read_same_values),
        cmocka_unit_test(test_finite_says_the_first_place),
        cmocka_unit_test(test_open_lying_header_corrupt),
        cmocka_unit_test(test_open_bad_lengths_fail),
        cmocka_unit_test(test_write_impossible_tensors_inval),
        cmocka_unit_test(test_write_no_room_keeps_the_old_file),
        cmocka_unit_test(test_no_memory_at_any_place_leaks_nothing),
        cmocka_unit_test(test_match_finds_what_would_train_in_silence),
        cmocka_unit_test(test_read_published_checkpoint),
        cmocka_unit_test(test_open_header_of_any_length),
        cmocka_unit_test(test_write_turned_from_a_file_and_rounded),
        cmocka_unit_test(test_write_refuses_what_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
