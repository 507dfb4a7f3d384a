/*
 * test_model_folder.c -- published folders: config.json to a model, and every way in which one is refused, by file,
 * key, what was found and what was expected.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "data_files.h"
#include "stages/model_folder.h"

static char place[DATA_PATH_BYTES];

/* GPT-2 with `more` behind the usual keys; a key that comes twice there is the file's own error. */
static void write_gpt2(const char *more)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", \"n_layer\": 3, \"n_head\": 4, "
             "\"n_embd\": 32, \"vocab_size\": 37, \"use_cache\": true%s}",
             more);
    data_write_text(place, "config.json", text);
}

static void expect_refused(enum aq_status status, const char *says)
{
    struct aq_model_folder *folder;
    aq_error_clear();
    assert_int_equal(aq_model_folder_open(place, &folder), status);
    if (!strstr(aq_error_text(), says)) fail_msg("'%s' does not say '%s'", aq_error_text(), says);
    assert_non_null(strstr(aq_error_text(), "config.json"));
}

static void test_model_folder_gpt2_gives_every_size(void **state)
{
    struct aq_model_folder *folder;
    (void)state;
    write_gpt2(", \"n_positions\": 64, \"n_inner\": null, \"tie_word_embeddings\": false, \"resid_pdrop\": 0.1, "
               "\"activation_function\": \"gelu_new\", \"layer_norm_epsilon\": 1e-5, \"initializer_range\": 0.03");
    assert_true(aq_model_folder_is(place));
    assert_int_equal(aq_model_folder_open(place, &folder), AQ_OK);
    const struct aq_model_config *model = aq_model_folder_model(folder);
    assert_string_equal(model->kind, "gpt2");
    assert_int_equal(model->blocks, 3);
    assert_int_equal(model->heads, 4);
    assert_int_equal(model->channels, 32);
    assert_int_equal(model->vocabulary, 37);
    assert_int_equal(model->context, 64);
    assert_false(model->tied);
    assert_true(model->init_std == 0.03f && model->dropout == 0.0f); /* dropout is the job's */
    assert_string_equal(aq_model_folder_type(folder), "gpt2");
    assert_string_equal(aq_model_folder_architecture(folder), "GPT2LMHeadModel");
    aq_model_folder_close(folder);
    aq_model_folder_close(NULL);
}

static void test_model_folder_without_architectures_takes_the_first_of_its_type(void **state)
{
    struct aq_model_folder *folder;
    (void)state;
    data_write_text(place, "config.json",
                    "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 1, \"n_embd\": 8, \"vocab_size\": 9, "
                    "\"n_positions\": 4}");
    assert_int_equal(aq_model_folder_open(place, &folder), AQ_OK);
    assert_string_equal(aq_model_folder_architecture(folder), "GPT2LMHeadModel");
    assert_true(aq_model_folder_model(folder)->tied);
    aq_model_folder_close(folder);
}

static void test_model_folder_unknown_architecture_is_named_with_those_that_are_known(void **state)
{
    char known[512];
    (void)state;
    data_write_text(place, "config.json",
                    "{\"architectures\": [\"Qwen3NextForCausalLM\"], \"model_type\": \"qwen3_next\"}");
    expect_refused(AQ_MISMATCH, "Qwen3NextForCausalLM (qwen3_next) is not among");
    aq_model_folder_known(known, sizeof known);
    expect_refused(AQ_MISMATCH, known);
    assert_non_null(strstr(known, "gpt2, llama, "));
    aq_model_folder_known(known, 8);
    assert_true(strlen(known) < 8);
    data_write_text(place, "config.json", "{\"architectures\": [\"Evil\\u001b[2J\"], \"model_type\": \"gpt2\"}");
    expect_refused(AQ_MISMATCH, "(gpt2) is not among");
    assert_null(strchr(aq_error_text(), '\x1b'));
}

static void test_model_folder_wrong_values_are_told_by_key_found_and_expected(void **state)
{
    static const struct {
        const char *more, *says;
    } cases[] = {
        {"", "n_positions: found nothing, expected a whole number from 1 to 131072"},
        {", \"n_positions\": 0", "n_positions: found 0, expected a whole number from 1 to 131072"},
        {", \"n_positions\": \"64\"", "n_positions: found \"64\", expected a whole number"},
        {", \"n_positions\": 6.5", "n_positions: found 6.5, expected a whole number"},
        {", \"n_positions\": 9223372036854775807", "n_positions: found 9223372036854775807, expected"},
        {", \"n_positions\": 64, \"n_inner\": 100", "n_inner: found 100, expected null or 128, 4 n_embd"},
        {", \"n_positions\": 64, \"activation_function\": \"relu\"",
         "activation_function: found \"relu\", expected gelu_new|gelu_pytorch_tanh"},
        {", \"n_positions\": 64, \"activation_function\": \"gelu\"", "activation_function: found \"gelu\""},
        {", \"n_positions\": 64, \"activation_function\": [1, 2]", "activation_function: found [1,2], expected a text"},
        {", \"n_positions\": 64, \"layer_norm_epsilon\": 1e-6", "layer_norm_epsilon: found 1e-6, expected 1e-05"},
        {", \"n_positions\": 64, \"scale_attn_by_inverse_layer_idx\": true",
         "scale_attn_by_inverse_layer_idx: found true, expected false"},
        {", \"n_positions\": 64, \"scale_attn_weights\": false", "scale_attn_weights: found false, expected true"},
        {", \"n_positions\": 64, \"tie_word_embeddings\": 1", "tie_word_embeddings: found 1, expected true or false"},
        {", \"n_positions\": 64, \"initializer_range\": -1", "initializer_range: found -1, expected a number from"},
        {", \"n_positions\": 64, \"quantization_config\": {\"bits\": 4}",
         "quantization_config: found {\"bits\":4}, expected no such key"},
        {", \"n_positions\": 64, \"n_head\": 5", "duplicate object key"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_gpt2(cases[i].more);
        expect_refused(i + 1 == sizeof cases / sizeof cases[0] ? AQ_CORRUPT : AQ_MISMATCH, cases[i].says);
    }
    data_write_text(place, "config.json",
                    "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 3, \"n_embd\": 8, \"vocab_size\": 9, "
                    "\"n_positions\": 4}");
    struct aq_model_folder *folder;
    assert_int_equal(aq_model_folder_open(place, &folder), AQ_MISMATCH); /* 3 heads of 8 channels */
}

static void write_decoder(const char *type, const char *class, const char *more)
{
    char text[1024];
    snprintf(
        text, sizeof text,
        "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"hidden_size\": 32, \"intermediate_size\": 64, \"vocab_size\": 37, "
        "\"max_position_embeddings\": 64%s}",
        class, type, more);
    data_write_text(place, "config.json", text);
}

/* As transformers 5 reads them: rope_scaling before rope_parameters, switches that the family has alone. */
static void test_model_folder_precedence_is_that_of_transformers(void **state)
{
#define LLAMA            "llama", "LlamaForCausalLM"
#define QWEN2            "qwen2", "Qwen2ForCausalLM"
#define QWEN3            "qwen3", "Qwen3ForCausalLM"
#define GEMMA            "gemma3_text", "Gemma3ForCausalLM"
#define GEMMA2           "gemma2", "Gemma2ForCausalLM"
#define PHI3             "phi3", "Phi3ForCausalLM"
#define SCALING(text)    ", \"rope_scaling\": {" text "}"
#define PARAMETERS(text) ", \"rope_parameters\": {" text "}"
#define DEFAULT          "\"rope_type\": \"default\", \"rope_theta\": 5000.0"
#define LINEAR           "\"rope_type\": \"linear\", \"factor\": 4.0"
#define LONG(name, list) "\"type\": \"" name "\", \"short_factor\": [1, 1, 1, 1], \"long_factor\": " list
#define YARN             "\"rope_type\": \"yarn\", \"factor\": 4.0"
    static const struct {
        const char *type, *class, *more, *refusal; /* refusal NULL: it is read */
        float theta, linear, partial;
    } cases[] = {
        {LLAMA, PARAMETERS(DEFAULT) SCALING(LINEAR), NULL, 10000, 4, 1},
        {LLAMA, ", \"rope_theta\": 7.0" PARAMETERS(DEFAULT) SCALING(LINEAR), NULL, 7, 4, 1},
        {LLAMA, PARAMETERS(DEFAULT) SCALING(""), NULL, 5000, 1, 1},
        {LLAMA, PARAMETERS(DEFAULT) ", \"rope_scaling\": null", NULL, 5000, 1, 1},
        {QWEN3, PARAMETERS(DEFAULT) SCALING(YARN), NULL, 10000, 1, 1},
        {QWEN3, SCALING("\"rope_type\": \"dynamic\""), "rope_scaling.rope_type: found \"dynamic\"", 0, 0, 0},
        {GEMMA, SCALING(YARN), "rope_scaling.rope_type: found \"yarn\"", 0, 0, 0},
        {LLAMA, ", \"partial_rotary_factor\": 0.5" PARAMETERS(DEFAULT), NULL, 5000, 1, 1},
        {LLAMA, ", \"partial_rotary_factor\": 0.5" SCALING(LINEAR), "partial_rotary_factor: found 0.5", 0, 0, 0},
        {LLAMA, ", \"aqpipe_partial_rotary_factor\": 0.5", NULL, 10000, 1, 0.5f},
        {LLAMA, ", \"attention_bias\": true, \"mlp_bias\": true", NULL, 10000, 1, 1},
        {LLAMA, ", \"attention_bias\": 1", "attention_bias: found 1", 0, 0, 0},
        {QWEN2, ", \"attention_bias\": false, \"mlp_bias\": true", NULL, 10000, 1, 1},
        {QWEN3, ", \"mlp_bias\": true", NULL, 10000, 1, 1},
        {GEMMA, ", \"attention_bias\": true", "attention_bias: found true", 0, 0, 0},
        {GEMMA, PARAMETERS("\"full_attention\": {" DEFAULT "}") SCALING(LINEAR), NULL, 5000, 4, 1},
        {GEMMA, SCALING(LINEAR), NULL, 1e6f, 4, 1},
        {PHI3, ", \"partial_rotary_factor\": 0.5", NULL, 10000, 1, 0.5f},
        {PHI3, ", \"partial_rotary_factor\": 1" PARAMETERS(DEFAULT ", \"partial_rotary_factor\": 0.25"), NULL, 5000, 1,
         0.25f},
        {PHI3, SCALING(LONG("su", "[1, 1, 1, 2]")), NULL, 10000, 1, 1},
        {PHI3, SCALING(LONG("yarn", "[1, 1, 1, 2]")), NULL, 10000, 1, 1},
        {PHI3, SCALING(LONG("longrope", "[1, 1, 1]")), "rope_scaling.long_factor: found [1,1,1], expected 4 numbers", 0,
         0, 0},
        {PHI3, SCALING(LONG("longrope", "[1, 1, 0, 1]")), "expected 4 numbers from 1e-6 to 1e6, one per pair", 0, 0, 0},
        {PHI3, ", \"head_dim\": 258" SCALING(LONG("longrope", "[1, 1, 1, 1]")),
         "rope_scaling.short_factor: found [1,1,1,1], expected at most 128 numbers: 129 pairs of columns turn", 0, 0,
         0},
        {PHI3, SCALING(LONG("longrope", "4")), "rope_scaling.long_factor: found 4, expected 4 numbers", 0, 0, 0},
        {PHI3, SCALING("\"type\": \"longrope\""), "rope_scaling.short_factor: found nothing", 0, 0, 0},
        {PHI3, SCALING(LINEAR), "found \"linear\", expected default|longrope|su|yarn", 0, 0, 0},
        {LLAMA, SCALING("\"type\": \"longrope\""), "rope_scaling.type: found \"longrope\"", 0, 0, 0},
        {LLAMA, ", \"limits\": [Infinity, -Infinity, NaN], \"many\": 1000000000000000000000000000000", NULL, 10000, 1,
         1},
        {LLAMA, ", \"rms_norm_eps\": NaN", "rms_norm_eps: found NaN, expected a number", 0, 0, 0},
    };
    struct aq_model_folder *folder;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_decoder(cases[i].type, cases[i].class, cases[i].more);
        if (cases[i].refusal) {
            expect_refused(AQ_MISMATCH, cases[i].refusal);
            continue;
        }
        assert_int_equal(aq_model_folder_open(place, &folder), AQ_OK);
        const struct aq_model_config *model = aq_model_folder_model(folder);
        assert_true(model->rope_theta == cases[i].theta && model->rope_linear == cases[i].linear);
        if (strcmp(model->kind, "llama") == 0 || strcmp(model->kind, "phi3") == 0)
            assert_true(model->rope_partial == cases[i].partial);
        assert_int_equal(model->rope_short.count, strstr(cases[i].more, "short_factor") ? 4 : 0);
        aq_model_folder_close(folder);
    }
}

/* Of the columns of a head an even number turns; and the factor of cosines and sines is finite. */
static void test_model_folder_rotary_that_cannot_be_computed_is_refused(void **state)
{
    (void)state;
    write_decoder(PHI3, ", \"partial_rotary_factor\": 0.375");
    expect_refused(AQ_MISMATCH, "model.rope_partial: 3 of 8 columns turn, and an odd one has no partner");
    write_decoder(LLAMA, ", \"aqpipe_partial_rotary_factor\": 0.9");
    expect_refused(AQ_MISMATCH, "model.rope_partial: 7 of 8 columns turn");
    /* With one position the factor is a quotient by log 1. */
    write_decoder(PHI3, ", \"original_max_position_embeddings\": 1" SCALING(LONG("longrope", "[1, 1, 1, 2]")));
    expect_refused(AQ_MISMATCH, "model.rope_attention is inf: 0 to 1e+06");
}

/* A cap that is missing is the type's own, and null is none. */
static void test_model_folder_caps_may_be_missing_or_null(void **state)
{
    static const struct {
        const char *more, *refusal;
        float score, logit;
    } cases[] = {
        {"", NULL, 50, 30},
        {", \"attn_logit_softcapping\": null", NULL, 0, 30},
        {", \"final_logit_softcapping\": null, \"attn_logit_softcapping\": 7.5", NULL, 7.5f, 0},
        {", \"attn_logit_softcapping\": 0", "attn_logit_softcapping: found 0, expected a number from 0.001", 0, 0},
        {", \"final_logit_softcapping\": \"30\"", "final_logit_softcapping: found \"30\", expected a number", 0, 0},
        {", \"use_bidirectional_attention\": true", "use_bidirectional_attention: found true", 0, 0},
        {", \"attention_bias\": true", "attention_bias: found true", 0, 0},
        {", \"hidden_activation\": \"silu\"", "hidden_activation: found \"silu\"", 0, 0},
        {", \"layer_types\": [\"full_attention\", \"chunked\"]", "layer_types: ", 0, 0},
    };
    struct aq_model_folder *folder;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_decoder(GEMMA2, cases[i].more);
        if (cases[i].refusal) {
            expect_refused(AQ_MISMATCH, cases[i].refusal);
            continue;
        }
        assert_int_equal(aq_model_folder_open(place, &folder), AQ_OK);
        const struct aq_model_config *model = aq_model_folder_model(folder);
        assert_true(model->score_cap == cases[i].score && model->logit_cap == cases[i].logit);
        assert_true(model->window == 4096 && model->window_every == 2);
        aq_model_folder_close(folder);
    }
}

/* Where a file has no max_position_embeddings, the context is what transformers takes for the type. */
static void test_model_folder_context_is_that_of_the_type(void **state)
{
    static const struct {
        const char *type, *class;
        uint32_t context;
    } cases[] = {
        {LLAMA, 2048},
        {QWEN2, 32768},
        {QWEN3, 32768},
        {GEMMA, 131072},
        {"mistral", "MistralForCausalLM", 131072},
        {"ministral3", "Ministral3ForCausalLM", 262144},
        {"smollm3", "SmolLM3ForCausalLM", 32768},
        {"olmo2", "Olmo2ForCausalLM", 2048},
        {"olmo3", "Olmo3ForCausalLM", 2048},
        {"exaone4", "Exaone4ForCausalLM", 2048},
        {"granite", "GraniteForCausalLM", 2048},
        {PHI3, 4096},
        {GEMMA2, 8192},
        {"lfm2", "Lfm2ForCausalLM", 128000},
    };
    struct aq_model_folder *folder;
    char text[1024];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(text, sizeof text,
                 "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"num_hidden_layers\": 4, "
                 "\"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"hidden_size\": 32, "
                 "\"intermediate_size\": 64, \"vocab_size\": 37, \"rope_parameters\": {\"rope_theta\": 5000.0}}",
                 cases[i].class, cases[i].type);
        data_write_text(place, "config.json", text);
        assert_int_equal(aq_model_folder_open(place, &folder), AQ_OK);
        assert_int_equal(aq_model_folder_model(folder)->context, cases[i].context);
        aq_model_folder_close(folder);
    }
}

/* The MLP's width, and which blocks have attention, as transformers has both. */
static void test_model_folder_convolutions_are_those_of_transformers(void **state)
{
#define BLOCKS(text) ", \"layer_types\": [" text "]"
    static const struct {
        const char *more, *refusal;
        uint32_t mlp, attention, taps; /* intermediate_size is 64 */
        bool tied;
    } cases[] = {
        {"", NULL, 256, 3, 3, true},
        {BLOCKS("\"conv\", \"full_attention\""), NULL, 256, 2, 3, true},
        {BLOCKS("\"full_attention\", \"conv\"") ", \"full_attn_idxs\": [1]", NULL, 256, 1, 3, true},
        {", \"full_attn_idxs\": [1, 7, -1]", NULL, 256, 2, 3, true},
        {", \"full_attn_idxs\": []", NULL, 256, 0, 3, true},
        {", \"block_auto_adjust_ff_dim\": false, \"conv_L_cache\": 5", NULL, 64, 3, 5, true},
        {", \"block_multiple_of\": 8, \"tie_embedding\": false", NULL, 48, 3, 3, false},
        {", \"block_ff_dim\": 100, \"block_ffn_dim_multiplier\": 1.3, \"block_multiple_of\": 1, \"hidden_act\": 7",
         NULL, 85, 3, 3, true},
        {", \"block_ffn_dim_multiplier\": null, \"tie_word_embeddings\": false", NULL, 42, 3, 3, false},
        {BLOCKS("\"conv\""), "layer_types: found [\"conv\"], expected full_attention or conv for each of 2 blocks", 0,
         0, 0, false},
        {BLOCKS("\"conv\", \"sliding_attention\""), "expected full_attention or conv for each of 2 blocks", 0, 0, 0,
         false},
        {", \"full_attn_idxs\": [\"1\"]", "full_attn_idxs: found [\"1\"], expected a list of numbers of blocks", 0, 0,
         0, false},
        {", \"conv_L_cache\": 17", "conv_L_cache: found 17, expected a whole number from 1 to 16", 0, 0, 0, false},
        {", \"conv_bias\": 1", "conv_bias: found 1, expected true or false", 0, 0, 0, false},
        {", \"block_ffn_dim_multiplier\": 0", "block_ffn_dim_multiplier: found 0, expected an MLP of 1 to", 0, 0, 0,
         false},
        {", \"block_ffn_dim_multiplier\": 1000, \"block_ff_dim\": 1000000", "expected an MLP of 1 to", 0, 0, 0, false},
    };
    struct aq_model_folder *folder;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_decoder("lfm2", "Lfm2ForCausalLM", cases[i].more);
        if (cases[i].refusal) {
            expect_refused(AQ_MISMATCH, cases[i].refusal);
            continue;
        }
        assert_int_equal(aq_model_folder_open(place, &folder), AQ_OK);
        const struct aq_model_config *model = aq_model_folder_model(folder);
        assert_string_equal(model->kind, "lfm2");
        assert_int_equal(model->mlp, cases[i].mlp);
        assert_int_equal(model->attention_blocks, cases[i].attention);
        assert_int_equal(model->attention_blocks_high, 0);
        assert_int_equal(model->conv_taps, cases[i].taps);
        assert_int_equal(model->tied != AQ_TIED_NO, cases[i].tied);
        aq_model_folder_close(folder);
    }
#undef BLOCKS
}

static void test_model_folder_long_value_is_cut(void **state)
{
    char more[512];
    (void)state;
    memset(more, 'x', sizeof more);
    memcpy(more, ", \"n_positions\": \"", 18);
    memcpy(more + 300, "\"", 2);
    write_gpt2(more);
    expect_refused(AQ_MISMATCH, "xxxx..., expected a whole number");
}

static void test_model_folder_without_a_config_is_refused(void **state)
{
    struct aq_model_folder *folder;
    char empty[DATA_PATH_BYTES], path[DATA_PATH_BYTES];
    (void)state;
    data_folder_open(empty);
    assert_int_equal(aq_model_folder_open(empty, &folder), AQ_NOTFOUND);
    assert_int_equal(aq_model_folder_open(data_path(empty, "nowhere", path), &folder), AQ_NOTFOUND);
    assert_false(aq_model_folder_is(path));
    data_folder_close(empty);
    data_write_text(place, "config.json", "[1, 2]");
    expect_refused(AQ_CORRUPT, "is not a JSON object");
    data_write_text(place, "config.json", "{\"model_type\": ");
    expect_refused(AQ_CORRUPT, "config.json:1:");
    data_write_text(place, "config.json", "{\"n_layer\": 3}");
    expect_refused(AQ_MISMATCH, "model_type: found nothing, expected the model's type");
    data_write_text(place, "config.json", "{\"model_type\": \"gpt2\", \"architectures\": [3]}");
    expect_refused(AQ_MISMATCH, "architectures: found [3], expected a list of names");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_folder_gpt2_gives_every_size),
        cmocka_unit_test(test_model_folder_without_architectures_takes_the_first_of_its_type),
        cmocka_unit_test(test_model_folder_unknown_architecture_is_named_with_those_that_are_known),
        cmocka_unit_test(test_model_folder_wrong_values_are_told_by_key_found_and_expected),
        cmocka_unit_test(test_model_folder_precedence_is_that_of_transformers),
        cmocka_unit_test(test_model_folder_rotary_that_cannot_be_computed_is_refused),
        cmocka_unit_test(test_model_folder_caps_may_be_missing_or_null),
        cmocka_unit_test(test_model_folder_context_is_that_of_the_type),
        cmocka_unit_test(test_model_folder_convolutions_are_those_of_transformers),
        cmocka_unit_test(test_model_folder_long_value_is_cut),
        cmocka_unit_test(test_model_folder_without_a_config_is_refused),
    };
    data_be_quiet();
    data_folder_open(place);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    data_folder_close(place);
    return failed;
}
