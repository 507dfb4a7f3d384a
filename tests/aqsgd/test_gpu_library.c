/*
 * test_gpu_library.c -- CUDA's libraries are found at run time: the order of folders, what is refused and with which
 * words, and the functions of gpu_functions.def, over libraries that stand in for NVIDIA's (gpu_stand/stand.c).
 */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "aqsgd/gpu_library.h"
#include "gpu_search.h"

/* The functions themselves, in this program. */
#include "cuda_cublaslt.c"

static char folder[256];

static void make(const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s/%s", folder, path);
    for (char *at = whole + strlen(folder) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = 0;
        (void)mkdir(whole, 0700);
        *at = '/';
    }
    FILE *file = fopen(whole, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void environment(const char *libraries, const char *venv, const char *conda)
{
    const char *const names[] = {"AQ_CUDA_LIBRARIES", "VIRTUAL_ENV", "CONDA_PREFIX"};
    const char *const values[] = {libraries, venv, conda};
    for (int i = 0; i < 3; i++)
        assert_int_equal(values[i] ? setenv(names[i], values[i], 1) : unsetenv(names[i]), 0);
}

static int begin(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/aqpipe-gpu-library-%ld", (long)getpid());
    return mkdir(folder, 0700);
}

static int end(void **state)
{
    char command[300];
    (void)state;
    environment(NULL, NULL, NULL);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

struct visits {
    char text[8192];
};

static bool visit_note(void *context, const char *path)
{
    struct visits *visits = context;
    const size_t used = strlen(visits->text), own = strlen(folder);
    if (path && strncmp(path, folder, own) == 0) path += own;
    snprintf(visits->text + used, sizeof visits->text - used, "%s|", path ? path : "loader");
    return false;
}

static void test_folders_are_searched_in_order(void **state)
{
    struct visits visits = {""};
    char libraries[600], venv[300], conda[300];
    (void)state;
    make("venv/lib/python3.11/site-packages/nvidia/cu13/lib/x", "");
    make("venv/lib/python3.11/site-packages/nvidia/nccl/lib/x", "");
    snprintf(libraries, sizeof libraries, "%s/first:relative::%s/second", folder, folder);
    snprintf(venv, sizeof venv, "%s/venv", folder);
    snprintf(conda, sizeof conda, "%s/conda", folder);
    environment(libraries, venv, conda);
    assert_false(gpu_folders_visit(AQ_GPU_NCCL, visit_note, &visits));
    assert_string_equal(visits.text,
                        "/first|/second|loader|/venv/lib/python3.11/site-packages/nvidia/cu13/lib|"
                        "/venv/lib/python3.11/site-packages/nvidia/nccl/lib|"
                        "/conda/lib/python3*/site-packages/nvidia/cu13/lib|"
                        "/conda/lib/python3*/site-packages/nvidia/nccl/lib|/conda/lib|/usr/local/cuda/lib64|"
                        "/usr/local/cuda-13/lib64|/opt/cuda/lib64|");
}

/* A name with characters that mean something in a pattern: the folder itself is searched, and no other. */
static void test_environment_with_a_pattern_in_its_name(void **state)
{
    struct visits visits = {""};
    char venv[300], conda[300];
    (void)state;
    make("a[b]*/lib/python3.11/site-packages/nvidia/nccl/lib/x", "");
    make("ab-other/lib/python3.11/site-packages/nvidia/nccl/lib/x", "");
    snprintf(venv, sizeof venv, "%s/a[b]*", folder);
    snprintf(conda, sizeof conda, "%s/*", folder);
    environment(NULL, venv, conda);
    assert_false(gpu_folders_visit(AQ_GPU_NCCL, visit_note, &visits));
    assert_non_null(strstr(visits.text, "|/a[b]*/lib/python3.11/site-packages/nvidia/nccl/lib|"));
    assert_null(strstr(visits.text, "ab-other"));
    assert_null(strstr(visits.text, "/venv/"));
}

/* Only a Python installation's neighbours are searched: the folder around a program elsewhere may be any user's. */
static void test_folders_beside_the_program(void **state)
{
    static const char *const places[] = {"lib/python3.11/site-packages", "lib/python3/dist-packages", "tmp",
                                         "site-packages-of-others"};
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct visits visits = {""};
        char path[200], program[600], wanted[300];
        snprintf(path, sizeof path, "%s/nvidia/cu13/lib/x", places[i]);
        make(path, "");
        snprintf(path, sizeof path, "%s/nvidia/nccl/lib/x", places[i]);
        make(path, "");
        snprintf(program, sizeof program, "%s/%s/aqpipe/bin/aqpipe", folder, places[i]);
        snprintf(wanted, sizeof wanted, "/%s/nvidia/cu13/lib|/%s/nvidia/nccl/lib|", places[i], places[i]);
        assert_false(gpu_beside_visit(program, AQ_GPU_NCCL, visit_note, &visits));
        assert_string_equal(visits.text, i < 2 ? wanted : "");
    }
    struct visits visits = {""};
    assert_false(gpu_beside_visit("/aqpipe", AQ_GPU_NCCL, visit_note, &visits));
    assert_false(
        gpu_beside_visit("/site-packages/aqpipe/bin/aqpipe", AQ_GPU_NCCL, visit_note, &visits)); /* no nvidia */
    assert_string_equal(visits.text, "");
}

static bool visit_stop(void *context, const char *path)
{
    ++*(int *)context;
    return path == NULL;
}

static void test_search_stops_where_it_is_told(void **state)
{
    int visited = 0;
    (void)state;
    environment("/first", NULL, NULL);
    assert_true(gpu_folders_visit(AQ_GPU_CUBLASLT, visit_stop, &visited));
    assert_int_equal(visited, 2); /* the folder, then the loader */
}

static void test_functions_before_loading_fail(void **state)
{
    (void)state;
    assert_int_equal(cublasLtCreate(NULL), CUBLAS_STATUS_NOT_INITIALIZED);
    assert_int_equal(cublasLtGetVersion(), 0);
    assert_string_equal(cublasLtGetStatusName(CUBLAS_STATUS_SUCCESS), "cuBLASLt is not loaded");
}

/* An old library and a broken file stand before the one that has all functions. */
static void test_first_whole_library_is_taken(void **state)
{
    char libraries[1200], text[AQ_ERROR_BYTES];
    (void)state;
    make("broken/libcublasLt.so.13", "this is no library\n");
    snprintf(libraries, sizeof libraries, "%s/broken:%s:%s", folder, STAND_OLD_FOLDER, STAND_FOLDER);
    environment(libraries, NULL, NULL);
    assert_int_equal(cuda_cublaslt_open(), AQ_OK);
    assert_int_equal(cublasLtGetVersion(), 1); /* the number of its row */
    assert_int_equal(cublasLtCreate(NULL), 3);
    assert_int_equal(
        cublasLtMatmul(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL),
        FUNCTIONS);
    snprintf(libraries, sizeof libraries, "%s", STAND_FOLDER);
    environment(libraries, NULL, NULL);
    assert_true(aq_gpu_library_look(AQ_GPU_CUBLASLT, text, sizeof text));
    assert_non_null(strstr(text, "cuBLASLt 0.0.1 (" STAND_FOLDER "/libcublasLt.so.13)"));
    assert_true(aq_gpu_library_look(AQ_GPU_NCCL, text, sizeof text));
    assert_non_null(strstr(text, "NCCL 0.0.0 (" STAND_FOLDER "/libnccl.so.2)"));
}

/* No library has this function, so that the answer is the same where CUDA is installed. */
static void test_absent_library_names_what_was_tried_and_the_remedy(void **state)
{
    static const char *const names[] = {"cublasLtGetVersion", "aq_no_such_function"};
    struct aq_error_hold hold;
    char libraries[1200];
    void *found[2] = {&hold, &hold};
    (void)state;
    snprintf(libraries, sizeof libraries, "%s/broken:%s/nowhere:%s", folder, folder, STAND_OLD_FOLDER);
    environment(libraries, NULL, NULL);
    aq_error_hold(&hold);
    assert_int_equal(aq_gpu_library_open(AQ_GPU_CUBLASLT, names, found, 2), AQ_NODEV);
    aq_error_release(&hold);
    assert_ptr_equal(found[0], &hold); /* written on success only */
    const char *const parts[] = {"cuBLASLt is not on this machine (libcublasLt.so.13)",
                                 "/broken/libcublasLt.so.13",
                                 "/nowhere",
                                 "too old: it has no aq_no_such_function",
                                 "pip install nvidia-cublas",
                                 "AQ_CUDA_LIBRARIES"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(hold.text, parts[i])) fail_msg("\"%s\" is not in: %s", parts[i], hold.text);
}

/* "(type *name, type name[], ...)" has the names of "(name, name, ...)", in that order; "(void)" has none. */
static bool agree(const char *parameters, const char *arguments)
{
    const char *argument = arguments + 1;
    for (const char *at = parameters + 1; *at; at++) {
        if (*at != ',' && *at != ')') continue;
        const char *last = at;
        while (!isalnum((unsigned char)last[-1]) && last[-1] != '_')
            last--;
        const char *first = last;
        while (isalnum((unsigned char)first[-1]) || first[-1] == '_')
            first--;
        const size_t bytes = (size_t)(last - first);
        if (strcmp(parameters, "(void)") == 0) return strcmp(arguments, "()") == 0;
        if (strncmp(argument, first, bytes) != 0) return false;
        argument += bytes;
        if (*argument != *at) return false;
        argument += strspn(argument, ", ");
    }
    return *argument == ')';
}

static void test_table_passes_parameters_in_order(void **state)
{
    static const struct {
        const char *name, *parameters, *arguments;
    } rows[] = {
#define AQ_GPU_FUNCTIONS_NCCL
#undef AQ_GPU_FUNCTION
#define AQ_GPU_FUNCTION(type, name, parameters, arguments, otherwise) {#name, #parameters, #arguments},
#include "aqsgd/gpu_functions.def"
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!agree(rows[i].parameters, rows[i].arguments))
            fail_msg("%s: %s is passed as %s", rows[i].name, rows[i].parameters, rows[i].arguments);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(rows[i].name, rows[j].name);
    }
    assert_false(agree("(int a, int *b)", "(b, a)"));
    assert_false(agree("(int a, int b)", "(a)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folders_are_searched_in_order),
        cmocka_unit_test(test_environment_with_a_pattern_in_its_name),
        cmocka_unit_test(test_folders_beside_the_program),
        cmocka_unit_test(test_search_stops_where_it_is_told),
        cmocka_unit_test(test_functions_before_loading_fail),
        cmocka_unit_test(test_first_whole_library_is_taken),
        cmocka_unit_test(test_absent_library_names_what_was_tried_and_the_remedy),
        cmocka_unit_test(test_table_passes_parameters_in_order),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
