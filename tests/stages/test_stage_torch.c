/*
 * test_stage_torch.c -- outputs and gradients of every layer and of whole models against PyTorch in double precision.
 *
 * Relative error (Euclidean norm of the difference over that of the reference, tensor by tensor) at most 1e-4 in fp32,
 * at most 4e-2 where products are of bf16 (8 bits of mantissa, errors of a few products in a row add up), and 1e-2 of
 * fp16 (11 bits).
 * Arguments: the interpreter and torch_gpt2.py. Exits 77 where there is no interpreter with torch.
 */
#include "stage_help.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void write_file(const char *folder, const char *name, const void *data, size_t bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void read_file(const char *folder, const char *name, void *data, size_t bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(data, 1, bytes, file), bytes);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}

/* One process of Python serves all cases: importing torch takes longer than a case.
   It is sent a line for each case, and answers with a line. */
static FILE *answers;
static pid_t python;

static bool python_says(const char *expected)
{
    char line[64] = "";
    return fgets(line, sizeof line, answers) && strcmp(line, expected) == 0;
}

/* Its exit status. */
static int python_end(void)
{
    int status = 0;
    fclose(answers);
    assert_int_equal(waitpid(python, &status, 0), python);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void python_start(const char *interpreter, const char *script)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    python = fork();
    assert_true(python >= 0);
    if (python == 0) {
        unsetenv("OPENBLAS_CORETYPE"); /* names a processor that may not be this one */
        if (dup2(pair[1], STDIN_FILENO) == STDIN_FILENO && dup2(pair[1], STDOUT_FILENO) == STDOUT_FILENO)
            execl(interpreter, interpreter, script, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    answers = fdopen(pair[0], "r");
    assert_non_null(answers);
}

static void python_runs(const char *folder)
{
    char line[64];
    const int length = snprintf(line, sizeof line, "%s\n", folder);
    assert_int_equal(send(fileno(answers), line, (size_t)length, MSG_NOSIGNAL), length);
    assert_true(python_says("done\n"));
}

static void folder_remove(const char *folder)
{
    char command[600];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
}

struct batch {
    int32_t *tokens, *targets;
    float *x, *dy, *y, *dx;
    uint64_t rows, N;
    uint64_t ids[16];
};

static void case_write(const char *folder, const struct aq_stage_config *config, struct aq_stage *stage,
                       const struct batch *batch, uint32_t samples, float loss_scale)
{
    char text[16384];
    int at = snprintf(text, sizeof text,
                      "samples %u\nT %u\nC %u\nH %u\nL %u\nfirst %u\nend %u\nresidual_bf16 %d\nloss_scale %.9f\n",
                      samples, config->T, config->model.channels, config->model.heads, config->model.blocks,
                      config->layer_first, config->layer_end, config->residual_bf16, (double)loss_scale);
    for (uint32_t i = 0; i < aq_stage_tensor_count(stage); i++) {
        struct aq_tensor_info info;
        aq_stage_tensor(stage, i, &info);
        at += snprintf(text + at, sizeof text - (size_t)at, "tensor %s", info.name);
        for (uint32_t d = 0; d < info.dimensions; d++)
            at += snprintf(text + at, sizeof text - (size_t)at, " %llu", (unsigned long long)info.shape[d]);
        at += snprintf(text + at, sizeof text - (size_t)at, "\n");
        char name[128];
        snprintf(name, sizeof name, "%s.f32", info.name);
        write_file(folder, name, aq_stage_parameters(stage) + info.offset, info.count * sizeof(float));
    }
    write_file(folder, "case.txt", text, (size_t)at);
    write_file(folder, "tokens.i32", batch->tokens, batch->rows * sizeof(int32_t));
    write_file(folder, "targets.i32", batch->targets, batch->rows * sizeof(int32_t));
    write_file(folder, "x.f32", batch->x, batch->N * sizeof(float));
    write_file(folder, "dy.f32", batch->dy, batch->N * sizeof(float));
}

static void compare(const char *folder, const char *file, const float *mine, uint64_t count, double tolerance)
{
    float *reference = help_alloc(count * sizeof *reference);
    read_file(folder, file, reference, count * sizeof *reference);
    const double distance = help_distance(mine, reference, count);
    if (!(distance <= tolerance)) fail_msg("%s differs by %g, more than %g", file, distance, tolerance);
    aq_free(reference);
}

static void case_run(const struct aq_stage_config *config, uint32_t samples, double tolerance)
{
    const bool first = config->layer_first == 0, last = config->layer_end == config->model.blocks + 2;
    struct aq_device *device = help_device(2);
    struct aq_stage *stage = NULL;
    assert_int_equal(aq_stage_open(device, config, &stage), AQ_OK);
    help_init(stage, 5);
    struct batch batch = {.rows = (uint64_t)samples * config->T};
    batch.N = batch.rows * config->model.channels;
    batch.tokens = help_alloc(batch.rows * sizeof(int32_t));
    batch.targets = help_alloc(batch.rows * sizeof(int32_t));
    batch.x = help_alloc(batch.N * sizeof(float));
    batch.dy = help_alloc(batch.N * sizeof(float));
    batch.y = help_alloc(batch.N * sizeof(float));
    batch.dx = help_alloc(batch.N * sizeof(float));
    help_tokens(batch.tokens, batch.rows, 1, config->model.vocabulary);
    help_tokens(batch.targets, batch.rows, 2, config->model.vocabulary);
    batch.targets[1] = -1;
    help_normal(batch.x, batch.N, 3, 1.0f);
    help_normal(batch.dy, batch.N, 4, 1.0f);

    char folder[] = "/tmp/aq-torch-XXXXXX";
    assert_non_null(mkdtemp(folder));
    const float scale = 0.125f;
    case_write(folder, config, stage, &batch, samples, scale);
    python_runs(folder);

    const struct aq_batch of = help_batch(batch.tokens, batch.targets, batch.ids, samples, config->T);
    const struct aq_stage_input input = {.x = first ? NULL : batch.x, .batch = &of, .loss_factor = scale};
    struct aq_stage_loss loss = {0};
    assert_int_equal(aq_stage_forward(stage, 0, &input, last ? NULL : batch.y, last ? &loss : NULL, NULL), AQ_OK);
    assert_int_equal(aq_stage_backward(stage, 0, last ? NULL : batch.dy, first ? NULL : batch.dx, NULL), AQ_OK);
    if (last) {
        double reference = 0.0;
        read_file(folder, "loss.f64", &reference, sizeof reference);
        assert_int_equal(loss.targets, batch.rows - 1);
        if (!(fabs(loss.sum - reference) <= tolerance * fabs(reference)))
            fail_msg("loss %.9g, reference %.9g", loss.sum, reference);
    } else {
        compare(folder, "y.f32", batch.y, batch.N, tolerance);
    }
    if (!first) compare(folder, "dx.f32", batch.dx, batch.N, tolerance);
    for (uint32_t i = 0; i < aq_stage_tensor_count(stage); i++) {
        struct aq_tensor_info info;
        aq_stage_tensor(stage, i, &info);
        char name[128];
        snprintf(name, sizeof name, "%s.grad.f32", info.name);
        compare(folder, name, aq_stage_gradients(stage) + info.offset, info.count, tolerance);
    }
    folder_remove(folder);
    aq_free(batch.tokens);
    aq_free(batch.targets);
    aq_free(batch.x);
    aq_free(batch.dy);
    aq_free(batch.y);
    aq_free(batch.dx);
    aq_stage_close(stage);
    aq_device_close(device);
}

static void test_whole_model_matches_torch(void **state)
{
    (void)state;
    struct aq_stage_config config = help_config(3, 4, 96, 211, 3, 80);
    case_run(&config, 3, 1e-4);
    config.model.tied = false;
    config.recompute = true;
    case_run(&config, 2, 1e-4);
}

static void test_each_layer_matches_torch(void **state)
{
    (void)state;
    struct aq_stage_config config = help_config(2, 3, 48, 77, 2, 37);
    config.model.tied = false;
    for (uint32_t layer = 0; layer < 4; layer++) {
        config.layer_first = layer;
        config.layer_end = layer + 1;
        case_run(&config, 2, 1e-4);
    }
}

static void test_bf16_model_is_near_torch(void **state)
{
    (void)state;
    struct aq_stage_config config = help_config(2, 4, 128, 200, 2, 96);
    config.precision = AQ_STAGE_BF16;
    case_run(&config, 2, 4e-2);
}

/* Torch rounds the stream at the same places; layers one by one, too, with what crosses a cut. */
static void test_bf16_residual_stream_is_near_torch(void **state)
{
    (void)state;
    struct aq_stage_config config = help_config(2, 4, 128, 200, 2, 96);
    config.precision = AQ_STAGE_BF16;
    config.residual_bf16 = true;
    case_run(&config, 2, 4e-2);
    config.model.tied = false;
    for (uint32_t layer = 0; layer < 4; layer++) {
        config.layer_first = layer;
        config.layer_end = layer + 1;
        case_run(&config, 2, 4e-2);
    }
}

static void test_fp16_model_is_near_torch(void **state)
{
    (void)state;
    struct aq_stage_config config = help_config(2, 4, 128, 200, 2, 96);
    config.precision = AQ_STAGE_FP16;
    case_run(&config, 2, 1e-2);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        print_message("skip: usage: test_stage_torch INTERPRETER torch_gpt2.py; no interpreter was found\n");
        return 77;
    }
    python_start(argv[1], argv[2]);
    if (!python_says("ready\n")) {
        const int status = python_end();
        print_message("%s: ended with %d; 77: no torch, which apt-get install python3-torch brings\n", argv[1], status);
        return status == 77 ? 77 : 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_model_matches_torch),
        cmocka_unit_test(test_each_layer_matches_torch),
        cmocka_unit_test(test_bf16_model_is_near_torch),
        cmocka_unit_test(test_bf16_residual_stream_is_near_torch),
        cmocka_unit_test(test_fp16_model_is_near_torch),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return python_end() != 0 || failed;
}
