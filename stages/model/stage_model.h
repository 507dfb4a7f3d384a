/*
 * stage_model.h -- the interface of a model to stage.c; private to stages/.
 *
 * A model is a const table: its configuration, and the list of layers that follows from it (layer/layer.h). A new model
 * is a file model_<name>.c and one line in models.def, and a new kind of layer where none serves.
 */
#ifndef STAGE_MODEL_H
#define STAGE_MODEL_H

#include <assert.h>

#include "config_json.h"
#include "frozen_store.h"
#include "layer.h"

static_assert(sizeof((struct layer_packed *)0)->parts / sizeof(uint8_t *) == FROZEN_PARTS, "a place for each part");

/* Identifies a published config.json that a model can read: its model_type, and one of its architectures. */
struct stage_published {
    const char *type, *architecture; /* "gpt2", "GPT2LMHeadModel" */
};

enum { PUBLISHED_CONFIG_BYTES = 4 << 20 }; /* 65536 labels with names and numbers take 3.5 million */

struct decoder_family; /* model_family.h */
struct aq_graph;       /* aqsgd/device_graph.h */

struct stage_model {
    const char *kind;
    const struct decoder_family *family; /* of a decoder that is a row of data; NULL: the functions have it all */
    const char *task;  /* its default                                     */
    const char *input; /* the field of a batch that its first layer reads */
    bool sequences;    /* has a classifier of whole samples, too: labels  */
    const struct aq_model_key *keys;
    uint32_t key_count;
    uint32_t tokens; /* of a sample, if the model fixes them; 0: the job does */
    uint32_t (*side)(const struct aq_model_config *model); /* of the square images that it reads; NULL: it reads none */
    void (*describe)(const struct aq_model_config *model, char *text, size_t bytes);
    void (*identity)(const struct aq_model_config *model, char *text, size_t bytes);
    bool (*problem)(const struct aq_model_config *model, uint32_t T, uint32_t index, const char **key, char *text,
                    size_t bytes); /* NULL: none */
    void (*config_default)(struct aq_model_config *out); /* NULL: the family has it */
    enum aq_status (*config_check)(const struct aq_model_config *model);
    uint32_t (*layers)(const struct aq_model_config *model);
    /* Layer `index` of samples of T tokens; *out is zero except its number. */
    void (*layer)(const struct aq_model_config *model, uint32_t T, uint32_t index, struct layer *out);
    /*
     * The published folders that it reads (stages/model_folder.h), ended by a row of NULLs; NULL: none. The first
     * architecture of a type is the one of a config.json that names none.
     */
    const struct stage_published *published;
    /* The prefix of its tensors' names in files of a model with a head, and not in those without: "model.". */
    const char *base;
    /*
     * *out holds the kind's defaults: set sizes and arithmetic from config.json, and refuse what is not computed
     * (config_json.h). The job's choices (dropout) stay. The caller checks the result with config_check. NULL where
     * `published` is.
     */
    enum aq_status (*read_config)(const struct config_json *config, struct aq_model_config *out);
    /* Is a tensor of a published file (its name without `base`) no parameter and of no use? NULL: none is. */
    bool (*ignores)(const char *name);
    /* Why a tensor that only the file has proves that the file is of another model; NULL: it does not. */
    const char *(*refuses)(const struct aq_model_config *model, const char *name);
    /*
     * As stages/publish.h; json has room for PUBLISHED_CONFIG_BYTES, *count are used. publish_name NULL: the names of
     * the family's heads stay, and all others have `base` in front.
     */
    void (*publish_name)(const char *tensor, char *out, size_t bytes);
    enum aq_status (*publish_config)(const struct aq_model_config *model, bool tied, int32_t end_of_text, char *json,
                                     size_t *count);
};

/* The model of that kind, or NULL. */
const struct stage_model *stage_model_find(const char *kind);
/* Model `index` of the table; NULL behind the last. */
const struct stage_model *stage_model_at(uint32_t index);

/* stage_layers.c: a layer of the model; the configuration is one that was checked. */
void stage_layer(const struct aq_model_config *model, uint32_t T, uint32_t index, struct layer *out);

/* stage_freeze.c: does the list (NULL: none) name a tensor of a layer of that name, its last pattern without "!"? */
bool stage_named(const char *list, const char *layer, const char *tensor);
/* The rate of the last pattern of a list of rates that names the tensor; 0: none does. */
float stage_rate(const char *list, const char *layer, const char *tensor);

enum { STAGE_WORDS_BYTES = LAYER_NAME_MAX + LAYER_TENSORS_MAX * AQ_TENSOR_NAME_MAX };

/* The parameters of one layer, as patterns may name them. */
struct stage_layer_names {
    char name[LAYER_NAME_MAX], tensors[LAYER_TENSORS_MAX][AQ_TENSOR_NAME_MAX];
    bool copies[LAYER_TENSORS_MAX]; /* of another layer's, in a tied model: frozen as that one is */
    bool linears[LAYER_TENSORS_MAX]; /* the weight of a product that may have an adapter */
    uint32_t count;
};

/* stage_layers.c: those of layer `index`, wherever the model is cut; the configuration is one that was checked. */
void stage_layer_names(const struct aq_model_config *model, uint32_t T, uint32_t index, struct stage_layer_names *out);

/*
 * stage_layers.c: the tensors of a stage, parameters first, then buffers, then what is frozen, into memory of aq_alloc.
 * The configuration is one that was checked. uses: NULL, or for each layer of the stage which tensors are its own
 * (LAYER_TENSORS_MAX of them). AQ_NOMEM.
 */
enum aq_status stage_tensors(const struct aq_stage_config *config, struct layer_tensor **tensors, uint32_t *count,
                             uint32_t (*uses)[LAYER_TENSORS_MAX]);

/* A tensor that a layer shares with the first, as a file may have it again; texts are constants. */
struct stage_alias {
    const char *name, *of, *hint;
};

/* stage_layers.c: those of a stage, at most `most`; how many. */
uint32_t stage_aliases(const struct aq_stage_config *config, struct stage_alias *out, uint32_t most);

/* The parameters' newest version is 0, the one before it 1; gradients take turns. */
enum { STAGE_VERSIONS = 2 };

/* One micro-batch in flight. */
struct stage_slot {
    void **x;    /* of each layer of the stage: its input                                        */
    void **kept; /* of each layer: its struct                                                    */
    struct aq_rng_key *keys, *host_keys; /* (site of the stage, B): dropout                       */
    uint32_t *lengths, *host_lengths;    /* B: tokens of each sample that are real                */
    uint32_t *starts, *host_starts;      /* (B, T): where parts begin                             */
    struct aq_event *copied;             /* what the host has written for this slot               */
    uint32_t samples, tokens;            /* tokens: of a sample, that the last forward computed   */
    uint32_t first;                      /* behind so many                                        */
    float loss_factor;
    bool train, dropped, compares, shorter; /* shorter: samples have lengths */
    bool parted;                            /* samples have parts            */
    bool adapters_dropped;                  /* what adapters read is         */
    bool forwarded; /* a backward may follow */
    bool halved;    /* a weight half may follow: split */
};

/* The help of a key that several kinds of models have. */
#define MODEL_TYPES_HELP "token types; 0: deberta none, bert 2, roberta and xlm_roberta 1"

/* The buffer of what a tied head's gradient has lost so far, which no published file has. */
#define STAGE_RESIDUAL "optimizer.tied_residual"

/*
 * The gradient of a tied table that comes from the embedding (stage_tied.c), of each set of gradients: rows of it in
 * the order in which the step's batches name them first.
 */
struct stage_tied {
    float *table, *gradient[STAGE_VERSIONS]; /* of the stage's tensor, or its copy                             */
    float *residual;                         /* or NULL                                                        */
    float *rows[STAGE_VERSIONS];                             /* device; NULL: the stage has no embedding       */
    int32_t *tokens[STAGE_VERSIONS];                         /* pinned: whose rows they are                    */
    int32_t *named;                                          /* device: `tokens`, while they are added         */
    uint32_t *row_of[STAGE_VERSIONS];                        /* pinned: 1 + the row of each token; 0: none     */
    uint32_t count[STAGE_VERSIONS];
};

/* A layer of a stage. */
struct stage_layer {
    struct layer layer;
    float *w[STAGE_VERSIONS][LAYER_TENSORS_MAX], *g[STAGE_VERSIONS][LAYER_TENSORS_MAX];
    struct layer_packed *packed; /* LAYER_TENSORS_MAX, of those whose w is NULL; NULL: the stage has none */
    void *state;
    uint32_t site; /* its first row of keys                                                      */
    uint32_t adapter_site; /* of its adapters' keys                                              */
    uint32_t flow; /* backward: where the gradient of its input goes (enum stage_flow)           */
    uint64_t in_bytes;
    bool again; /* with recomputation, its forward is made again                              */
};

/* The caller's memory, or one of the stage's two. */
enum stage_flow { STAGE_FLOW_OUT, STAGE_FLOW_A, STAGE_FLOW_B, STAGE_FLOWS };

struct aq_stage {
    struct aq_device *device;
    const struct aq_task *task;
    struct aq_stage_config config;
    struct aq_stage_size size;
    struct layer_tensor *tensors;
    uint32_t tensor_count, saved_count, all_count; /* parameters; with buffers; with what is frozen */
    struct stage_tied tied;
    struct aq_range *spans;        /* where each parameter tensor lies */
    double *squares;               /* of each tensor's gradient, between the device's sums and theirs */
    float *parameters, *previous;    /* flat; previous: only trained ones, or NULL */
    float *gradients[STAGE_VERSIONS]; /* flat; NULL for inference, and where nothing is trained   */
    uint8_t *packed;                   /* frozen weights in fewer bits (stage_packed.c), or NULL              */
    struct layer_packed *packed_of;    /* then: of each layer, on the host                                    */
    uint16_t *rounded[STAGE_VERSIONS]; /* in 16 bits if the device needs them; [0]: and what is frozen       */
    bool one_type;                     /* products of the device need both operands in one type               */
    uint32_t version, gradient;        /* in use                                                              */
    void *slots_memory;            /* config.slots times size.slot_bytes */
    void *workspace;
    struct stage_layer *layers;
    uint32_t layer_count;
    struct stage_slot *slots;
    float *flow[STAGE_FLOWS]; /* of the gradient, in the workspace */
    void *ending;             /* the gradient in the stage's type, for endings */
    void *edge;               /* what the last layer gives, of the stream's type; NULL: it is fp32, or a loss */
    void *unpacked;           /* weights of one product, in the stage's type; NULL: none are packed */
    struct layer_adapter_memory adapters;
    void *host;               /* pinned: what slots have there, and behind them `shared` */
    float *shared;            /* size.shared floats: sums of shared gradients; then as many of this stage's own */
    void *structs;            /* the host structs of layers and slots */
    struct aq_graph *graph;   /* of passes that repeat; NULL: the device has none */
};

/* stage_stream.c: can its residual stream be what it has? AQ_INVAL. */
enum aq_status stage_stream_check(const struct aq_stage_config *config);
/* Bytes of aq_stage.edge, of a stage whose last layer this is. */
uint64_t stage_stream_edge(const struct aq_stage_config *config, const struct layer *last);
/* y = `count` values of x, of types that may differ. */
enum aq_status stage_stream_copy(const struct layer_run *run, const void *x, enum aq_element x_type, uint64_t count,
                                 void *y, enum aq_element y_type);

/* stage_packed.c: its initial values: those of aq_stage_init_tensor for one that is not packed, rounded. */
enum aq_status stage_packed_init(struct aq_stage *stage, const struct layer_tensor *tensor, uint64_t seed);
/*
 * The place of packed tensor `index` of the stage's list in the memory of packed ones, or the end of it all (the list's
 * length): bytes from the start, also for each of its parts.
 */
uint64_t stage_packed_place(const struct layer_tensor *tensors, uint32_t count, enum aq_frozen_store store,
                            uint32_t index, uint64_t parts[FROZEN_PARTS]);

/* stage_tied.c: memory of the stage's, to `tied` or (NULL) only measured. */
struct stage_tied_place {
    uint32_t versions, rows, vocabulary;
    uint64_t columns;
};
void stage_tied_work(const struct stage_tied_place *of, struct aq_arena *arena, struct stage_tied *tied);
void stage_tied_host(const struct stage_tied_place *of, struct aq_arena *arena, struct stage_tied *tied);
/* When the tensors, gradients and memory of a stage are there. */
enum aq_status stage_tied_open(struct aq_stage *stage);
/* Gradients are cleared: so are the rows of the set in use. */
enum aq_status stage_tied_clear(struct aq_stage *stage, struct aq_stream *stream);

/* stage_layers.c: what one slot and the workspace take; of a configuration that was checked. AQ_NOMEM. */
enum aq_status stage_layers_measure(const struct aq_stage_config *config, struct aq_stage_size *size);

/* stage_layers.c: the layers, their structs and their memory; parameters and gradients are there. */
enum aq_status stage_layers_open(struct aq_stage *stage);
void stage_layers_close(struct aq_stage *stage);

/* stage_run.c: each layer fills what memory of the stage it has. */
enum aq_status stage_layers_fill(struct aq_stage *stage);

/* Bytes up to the next multiple of AQ_ALIGN. */
static inline uint64_t stage_line_bytes(uint64_t bytes)
{
    return (bytes + AQ_ALIGN - 1) / AQ_ALIGN * AQ_ALIGN;
}

#define STAGE_MODEL(name) extern const struct stage_model stage_model_##name;
#include "models.def"
#undef STAGE_MODEL

#endif
