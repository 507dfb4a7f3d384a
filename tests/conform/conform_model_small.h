/*
 * conform_model_small.h -- how small each model can be, and which configurations of one are models of their own for
 * conform_model.c; part of that file, which says how many tokens T a sample has.
 */
#ifndef CONFORM_MODEL_SMALL_H
#define CONFORM_MODEL_SMALL_H

static void gpt2_small(struct aq_model_config *model)
{
    model->blocks = 2;
    model->heads = 2;
    model->channels = 16;
    model->vocabulary = 37;
    model->context = T;
    model->tied = false;
}

/* Heads of keys that are shared, heads wider than channels / heads, an MLP of no round size. */
static void llama_small(struct aq_model_config *model)
{
    model->blocks = 2;
    model->heads = 4;
    model->kv_heads = 2;
    model->head_dim = 6;
    model->channels = 14;
    model->mlp = 22;
    model->vocabulary = 37;
    model->context = T;
    model->tied = false;
    model->rope_factor = 8;
    model->rope_original = T / 2;
}

/* Biases, one head of keys, part of a head that turns. */
static void llama_biased(struct aq_model_config *model)
{
    llama_small(model);
    model->kv_heads = 1;
    model->head_dim = 0;
    model->channels = 32;
    model->qkv_bias = true;
    model->rope_partial = 0.5f;
}

/* Norms of heads, and as many heads of keys as of queries. */
static void llama_normed(struct aq_model_config *model)
{
    llama_small(model);
    model->kv_heads = 4;
    model->qk_norm = true;
    model->rope_factor = 1;
    model->rope_original = 8192;
}

/* Caps within reach of small scores and logits; a window in one block of two. */
static void gemma2_small(struct aq_model_config *model)
{
    llama_small(model);
    model->rope_factor = 1;
    model->rope_original = 8192;
    model->window = 5;
    model->window_every = 2;
    model->query_scale = 9;
    model->score_cap = 2;
    model->logit_cap = 3;
}

/* Windows with frequencies of their own, in two blocks of three; scores by a scale. */
static void gemma3_small(struct aq_model_config *model)
{
    llama_small(model);
    model->blocks = 3;
    model->rope_factor = 1;
    model->rope_original = 8192;
    model->rope_theta = 100000;
    model->rope_local = 10000;
    model->rope_linear = 4;
    model->window = 5;
    model->window_every = 3;
    model->query_scale = 9;
}

/* Yarn, and biases of all products. */
static void llama_yarn(struct aq_model_config *model)
{
    llama_small(model);
    model->rope_factor = 1;
    model->rope_original = 2;
    model->rope_yarn = 4;
    model->rope_attention = 1.25f;
    model->qkv_bias = model->out_bias = model->mlp_bias = true;
}

static void mistral_small(struct aq_model_config *model)
{
    llama_small(model);
    model->window = 5;
}

/* Yarn, and a scale of queries that is 1 for so few tokens. */
static void ministral3_small(struct aq_model_config *model)
{
    llama_small(model);
    model->rope_factor = 1;
    model->rope_original = T;
    model->rope_yarn = 2;
    model->query_beta = 0.1f;
}

/* One block of two has no rotary embedding. */
static void smollm3_small(struct aq_model_config *model)
{
    llama_small(model);
    model->rope_every = 2;
}

/* Norms behind the branches, and of all heads at once. */
static void olmo2_small(struct aq_model_config *model)
{
    llama_small(model);
    model->kv_heads = 4;
}

/* The same with windows, which have their own frequencies. */
static void olmo3_small(struct aq_model_config *model)
{
    olmo2_small(model);
    model->rope_factor = 1;
    model->rope_original = 8192;
    model->rope_local = 100;
    model->rope_linear = 4;
    model->window = 5;
    model->window_every = 2;
}

/* Norms behind the branches, and of each head; rotary embeddings only in blocks with a window. */
static void exaone4_small(struct aq_model_config *model)
{
    llama_small(model);
    model->window = 5;
    model->window_every = 2;
}

static void granite_small(struct aq_model_config *model)
{
    llama_small(model);
    model->embedding_scale = 3;
    model->score_scale = 0.3f;
    model->residual_scale = 0.4f;
    model->logit_divisor = 2.5f;
}

/* Attention with gates in block 1; before it the delta rule, with two heads of values for each of keys. */
static void qwen3_5_small(struct aq_model_config *model)
{
    llama_small(model);
    model->rope_factor = 1;
    model->rope_original = 8192;
    model->head_dim = 8;
    model->own[0] = 2; /* attention in every second block */
    model->own[1] = 2; /* heads of keys            */
    model->own[2] = 4; /* heads of values          */
    model->own[3] = 5; /* channels of keys         */
    model->own[4] = 3; /* channels of values       */
    model->own[5] = 3; /* taps                     */
    model->init_std = 0.1f; /* gradients of rates and shifts are small: differences step far where weights are small */
}

/* A part of each head turns, with a divisor for each pair of columns: T is beyond the context before. */
static void phi3_small(struct aq_model_config *model)
{
    llama_small(model);
    model->head_dim = 8;
    model->rope_factor = 1;
    model->rope_partial = 0.5f;
    model->rope_original = 4;
    model->rope_short = (struct aq_factors){2, {1.0f, 1.5f}};
    model->rope_long = (struct aq_factors){2, {1.25f, 4.0f}};
    model->rope_attention = 1.19f;
}

/* A convolution in the first and the last block, and attention between them. */
static void lfm2_small(struct aq_model_config *model)
{
    llama_small(model);
    model->blocks = 3;
    model->attention_blocks = 2;
    model->attention_blocks_high = 0;
}

/* Only convolutions, with biases, longer than most parts. */
static void lfm2_biased(struct aq_model_config *model)
{
    lfm2_small(model);
    model->blocks = 2;
    model->attention_blocks = 0;
    model->conv_taps = 5;
    model->conv_bias = true;
}

static void pyramid_small(struct aq_model_config *model)
{
    model->own[0] = 4; /* width  */
    model->own[1] = 3; /* levels */
    model->vocabulary = 7;
}

static void resnet_small(struct aq_model_config *model)
{
    model->own[3] = 10; /* depth   */
    model->own[4] = 4;  /* filters */
    model->vocabulary = 7;
}

static void resnet_grouped(struct aq_model_config *model)
{
    resnet_small(model);
    model->own[5] = 2; /* groups of its norms */
}

static void deberta_small(struct aq_model_config *model)
{
    model->blocks = 2;
    model->heads = 2;
    model->channels = 16;
    model->vocabulary = 37;
    model->context = 9;   /* distances from there on share a position */
    model->own[3] = 24;   /* inner     */
    model->own[4] = 6;    /* buckets   */
    model->types = 2;
    model->own[6] = 3;    /* kernel    */
    model->own[7] = 12;   /* embedding */
    model->tied = false;
    model->init_std = 0.5f; /* the table's norm is no line where its rows are small */
}

/* An odd number of channels a head, which no head rotates. */
static void bert_small(struct aq_model_config *model)
{
    model->blocks = 2;
    model->heads = 2;
    model->channels = 18;
    model->mlp = 22;
    model->vocabulary = 37;
    model->context = T + 1;
    model->types = 3;
    model->init_std = 0.2f;
}

/* Positions from the fifth row on. */
static void roberta_small(struct aq_model_config *model)
{
    bert_small(model);
    model->channels = 16;
    model->types = 1;
    model->position_first = 4;
}

static void xlm_roberta_small(struct aq_model_config *model)
{
    roberta_small(model);
    model->position_first = 2;
}

static void eurobert_small(struct aq_model_config *model)
{
    llama_small(model);
    model->init_std = 0.2f;
    model->pool_mean = true;
}

static void eurobert_late(struct aq_model_config *model)
{
    eurobert_small(model);
    model->pool_mean = false;
    model->pool_late = true;
    model->qkv_bias = model->out_bias = model->mlp_bias = true;
}

/* Windows on both sides in three blocks of four; the first has no norm before attention, which sees all. */
static void modernbert_small(struct aq_model_config *model)
{
    model->blocks = 4;
    model->heads = 2;
    model->channels = 16;
    model->mlp = 22;
    model->vocabulary = 37;
    model->context = T;
    model->rope_local = 100;
    model->window = 3;
    model->window_every = 3;
    model->init_std = 0.2f;
}

static void modernbert_mean(struct aq_model_config *model)
{
    modernbert_small(model);
    model->pool_mean = true;
}

struct kind {
    const char *name;
    void (*small)(struct aq_model_config *model);
    const char *task; /* NULL: the model's own */
};

/* Models that generate, but only behind the last token that they have computed. */
static bool small_onward(const char *name)
{
    return strcmp(name, "qwen3_5") == 0;
}

static const struct kind models[] = {
#define STAGE_MODEL(name) {#name, name##_small, NULL},
#include "models.def"
#undef STAGE_MODEL
    {"llama", llama_biased, NULL},
    {"llama", llama_normed, NULL},
    {"llama", llama_yarn, NULL},
    {"lfm2", lfm2_biased, NULL},
    {"modernbert", modernbert_mean, NULL},
    {"eurobert", eurobert_late, NULL},
    {"resnet", resnet_grouped, NULL},
};

/* A part of the names of what goes into a model's ReLUs, where many lie one behind the other; NULL: there are few. */
static const char *raised_of(const struct kind *kind)
{
    return strcmp(kind->name, "resnet") == 0 ? ".bias" : NULL;
}

/* How many tensors have the name, or it as their last parts: "norm.weight" is in "layers.0.linear_attn.norm.weight". */
static uint32_t tensors_ending(const struct aq_stage *stage, const char *name)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < aq_stage_tensor_count(stage); i++) {
        struct aq_tensor_info info;
        aq_stage_tensor(stage, i, &info);
        const size_t all = strlen(info.name), own = strlen(name);
        const bool ends = all >= own && strcmp(info.name + all - own, name) == 0;
        count += ends && (all == own || info.name[all - own - 1] == '.');
    }
    return count;
}

enum { MODELS = sizeof models / sizeof models[0] };

/* The gradient of such a tensor is what rounding leaves of 0: a bias of keys, if no head rotates, moves all scores of a
 * query alike. */
static bool is_idle(const char *name)
{
    return strstr(name, "self.key.bias") != NULL;
}

static struct kind kinds[KINDS_MAX];
static int KINDS;

/* Every model, and with every task of whole samples that it can learn. */
static void kinds_fill(void)
{
    const char *task;
    for (int m = 0; m < MODELS; m++) {
        kinds[KINDS++] = models[m];
        for (uint32_t t = 0; (task = aq_task_name(t)) != NULL; t++) {
            struct aq_model_config model;
            aq_model_config_default(&model, models[m].name);
            aq_model_use_task(&model, task, LABELS);
            if (!model.labels || strcmp(task, aq_model_task(models[m].name)) == 0) continue;
            assert_true(KINDS < KINDS_MAX);
            kinds[KINDS] = models[m];
            kinds[KINDS++].task = task;
        }
    }
}

#endif
