/*
 * layer.h -- the interface of a layer to stage.c; private to stages/.
 *
 * A model is a list of layers. A layer takes a (rows, columns) activation of each sample and gives another; the first
 * reads the batch, the last makes the loss. It names its tensors, places its memory, and computes its forward and its
 * backward. stage.c owns everything else: parameters and gradients, slots, recomputation, dropout's keys, the
 * gradient's way from layer to layer.
 *
 * Memory, by what it is for (enum layer_memory). A layer's place() takes the same from the arena whether it measures
 * (the arena has no base) or places.
 *
 *     KEPT   what backward reads of forward, without the layer's input; with recomputation, and for inference, all
 *            layers of a stage share one set in the workspace, and backward makes it again
 *     SLOT   what a micro-batch in flight has always
 *     HOST   the same in pinned memory, which the stream copies from and to
 *     WORK   scratch of one call; all layers share it
 *     STAGE  of the layer as long as the stage lives
 *
 * A layer whose backward turns the gradient of its output into that of its input in the same memory is `in_place`: a
 * residual stream. The layer above may compute, in the same pass, the first values that such a layer needs of that
 * gradient (rounded to the products' type, and summed over rows for a bias): its *ending* (struct layer_ending).
 *
 * If the stage splits backward (run.split), a layer's backward leaves the gradients of its products' weights to its
 * weights(). This runs later and reads both operands from the slot: the inputs, which forward kept, and the gradients
 * of the outputs, which backward keeps then. A tensor that two layers share is added to by the same half in both. A
 * layer without weights() does all in backward.
 *
 * In a stage for generation (config.extends), a forward may bring only the tokens behind those of the forward before it
 * (run->first): a layer that `extends` gives the result of a forward of all of them, and keeps in its slot what later
 * tokens need of earlier ones. A layer of which a token's row depends on later tokens cannot.
 *
 * A new kind is one file layer_<name>.c and one line in layers.def.
 */
#ifndef LAYER_H
#define LAYER_H

#include "aqsgd/device_math.h"
#include "stage_task.h"
#include "stages/stage.h"

enum {
    LAYER_TENSORS_MAX = 48,
    LAYER_LINEARS_MAX = 8,
    LAYER_NAME_MAX = 32,
    LAYER_STRUCT_MAX = 256,
    LAYER_NO_TENSOR = INT32_MAX
};

enum layer_memory { LAYER_KEPT, LAYER_SLOT, LAYER_HOST, LAYER_WORK, LAYER_STAGE };

struct layer_kind;
struct linear; /* linear.h */
struct decoder_form; /* decoder.h */

/* A layer as a model lists it. */
struct layer {
    const struct layer_kind *kind;
    const struct decoder_form *form; /* of a language model's                               */
    uint32_t number;                 /* the model's                                             */
    char name[LAYER_NAME_MAX];       /* for plan and errors: "block 3"                          */
    char prefix[LAYER_NAME_MAX];     /* of its tensors' names: "h.3."                           */
    struct aq_cut_shape in, out;     /* of one sample of T tokens; in 0 x 0: it reads the batch */
    uint32_t side;                   /* of the square images that it reads: a residual network's first layer */
    uint32_t inner; /* channels of a bottleneck between its two convolutions of 1 x 1; 0: a basic block */
    uint32_t groups;                 /* of its norms, where they are group norms; 0: they are batch norms       */
    bool onward; /* extends, but only behind the last token that it has computed: it cannot go back         */
    /* Of a layer of a stage (stage_layers.c), for training: */
    uint64_t trained; /* bit k: its tensor k, in the order that it named them, has a gradient              */
    bool passes;      /* something before it trains: so has its input                                      */
    bool transposed;  /* published files have its matrices as nn.Linear and nn.Conv2d do: (out, in), (N, C, K, K) */
    uint64_t adapted; /* bit k: its tensor k has an adapter, which trains                                  */
    uint8_t adapters[LAYER_TENSORS_MAX]; /* then: the number of the adapter's A; its B is the next, m behind it */
    uint32_t adapter_first;              /* the number of the first A                                      */
    uint16_t ranks[LAYER_TENSORS_MAX];   /* of tensor k's adapter                                          */
    float scales[LAYER_TENSORS_MAX];     /* the factor of its share (aq_lora_scale)                        */
};

/*
 * Backward goes through a layer's tensors from the last that it named to the first: does anything before tensor k need
 * a gradient? k 0: the input. An adapter has its tensor's place in this order, though its number is behind all of them.
 */
static inline bool layer_goes_on(const struct layer *layer, uint32_t k)
{
    return layer->passes || ((layer->trained | layer->adapted) & ((UINT64_C(1) << k) - 1)) != 0;
}

/* Has it any backward? Those of a stage that have none are its first. */
static inline bool layer_learns(const struct layer *layer)
{
    return layer->passes || layer->trained != 0;
}

/* A tensor as a layer names it, and its initial values: normal numbers of a deviation, or (0) a constant. */
struct layer_tensor {
    struct aq_tensor_info info;
    float std, value;
};

struct layer_list; /* stage.c's */

/* Names the layer's next tensor; rows 0: a vector. std and value: its initial values. Weight decay is of matrices. */
void layer_list_add(struct layer_list *list, const char *name, uint64_t rows, uint64_t columns, float std, float value);
/*
 * The same of a matrix that published files have the other way round, as nn.Linear has it: (out, in); or, with K not 0,
 * of a convolution (in: K K C), as nn.Conv2d has it: (out, C, K, K).
 */
void layer_list_add_linear(struct layer_list *list, const char *name, uint64_t in, uint64_t out, uint32_t K, float std);
/* The same of one that starts with another tensor's numbers, and may be read as that one if a file lacks it. */
void layer_list_add_as(struct layer_list *list, const char *name, const char *begins_as, uint64_t rows,
                       uint64_t columns, float std, float value);
/* The same of a tensor of three dimensions. */
void layer_list_add_cube(struct layer_list *list, const char *name, const uint64_t shape[3], float std);
/*
 * Of the layer's next tensor only these floats ever have a gradient, and stages that have none of its first layer hold
 * copies of it under its own name, kept equal to it: their gradients are one sum (aq_stage_shared).
 */
void layer_list_shared(struct layer_list *list, uint64_t first, uint64_t count);
/* The layer's next number is of no tensor: what comes behind has the same number in every configuration. */
void layer_list_skip(struct layer_list *list);
/* The layer's next tensor is a copy of the first layer's tensor `of`, which another stage trains (info.copy). */
void layer_list_copy(struct layer_list *list, const char *name, const char *of, uint64_t rows, uint64_t columns,
                     float std);
/* The layer's next tensor is no parameter: statistics, saved and never trained. */
void layer_list_buffer(struct layer_list *list, const char *name, uint64_t columns, float value);
/*
 * The layer's next tensor is one of the first layer's, of the full name `of`. A file may have it again, as `name`: then
 * it must be the same, or the error prints the hint. NULL: no file has it twice.
 */
void layer_list_alias(struct layer_list *list, const char *name, const char *of, const char *hint);
/*
 * Products of the layer reach so many values past the end of a tensor: they multiply what lies there by 0 or use no
 * result of it, and add 0 to the gradients there. Mostly that is the next tensor; behind the last one the stage has
 * that much room.
 */
void layer_list_room(struct layer_list *list, uint64_t values);

/* A frozen weight that is kept in fewer bits: its parts (stages/frozen/frozen_store.h), on the device. */
struct layer_packed {
    const uint8_t *parts[4]; /* FROZEN_PARTS */
};

/* Of what a layer of a stage does now. */
struct layer_run {
    struct aq_stage *stage;
    struct aq_device *device;
    const struct aq_stage_config *config;
    const struct layer *layer;
    const struct aq_task *task;
    float *const *w, *const *g; /* its tensors in the order that it named them, and their gradients (NULL: frozen) */
    const struct layer_packed *packed; /* of those whose w is NULL: as they are kept (config->frozen_store)       */
    void *state, *slot;         /* its structs: of the stage, of the slot                                        */
    uint32_t slot_index;
    uint32_t samples, tokens; /* of this micro-batch                                                             */
    uint32_t first;           /* where the layer extends: earlier tokens, of which it kept what it needs; else 0 */
    uint64_t rows_in, rows_out;
    float loss_factor;
    bool train;                    /* a backward follows                                                         */
    bool compares;                 /* the batch has what the task compares with: a loss is wanted                */
    bool again;                    /* forward for a backward: the statistics have been taken, y may be NULL      */
    bool dropped;                  /* dropout is on                                                              */
    bool split;                    /* backward leaves the weights of products to weights()                       */
    bool made;                     /* backward: the layer above has made this one's ending                       */
    const struct aq_rng_key *keys; /* dropout: (site, B), device                                                 */
    const struct aq_rng_key *adapter_keys; /* of adapters' masks: (adapter, 2, B), device; NULL: no masks        */
    const uint32_t *lengths;       /* tokens of each sample that are real, device; NULL: all                     */
    const uint32_t *host_lengths;  /* the same on the host; NULL: all                                            */
    const uint32_t *starts;        /* (samples, tokens): start of each token's part, device; NULL: one part      */
    struct aq_stream *stream;
};

/* The values that a layer needs first of its output's gradient. */
struct layer_ending {
    float *sums;       /* += its sums over rows, or NULL            */
    uint16_t *rounded; /* the gradient in 16 bits, or NULL          */
    enum aq_element type;
};

/* Of a micro-batch of B samples: 2 a multiply-add. */
struct layer_flops {
    double forward, backward;
    double weights; /* of backward, what weights() does */
};

struct layer_kind {
    const char *name;
    bool in_place;                    /* see above                                                                  */
    bool makes_ending;                /* of the layer below, in its backward                                        */
    bool extends;                     /* see below: forward knows run->first                                        */
    bool parts;                       /* forward and backward know run->starts, or tokens do not meet in it         */
    bool bf16_stream;                 /* its input and output may be bf16 (config.residual_bf16): see layer_stream  */
    uint32_t fresh;                   /* bit k: its tensor k starts untrained, and trains with adapters             */
    uint32_t sites;                   /* dropout masks                                                              */
    uint32_t state_bytes, slot_bytes; /* of its structs on the host; at most LAYER_STRUCT_MAX                    */
    void (*tensors)(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list);
    /* Those of its products that may have adapters, LAYER_LINEARS_MAX at most; how many. NULL: none. */
    uint32_t (*linears)(const struct layer *layer, const struct aq_stage_config *config, struct linear *out);
    /* to: the slot's struct, or the stage's (WORK, STAGE). */
    void (*place)(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to);
    /* Once, when its memory is there: fills what it has of the STAGE's. NULL: nothing. */
    enum aq_status (*open)(const struct layer_run *run);
    /* Of backward, what it does where so much is trained. */
    void (*flops)(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out);
    /* First and last: is what it reads of the batch in range? Then: to the device. */
    enum aq_status (*check)(const struct layer *layer, const struct aq_stage_config *config,
                            const struct aq_batch *batch, uint32_t tokens_used);
    enum aq_status (*take)(const struct layer_run *run, const struct aq_batch *batch, uint32_t tokens_used);
    /* x, y: fp32; of a layer that is `bf16_stream`, of layer_stream's type. */
    enum aq_status (*forward)(const struct layer_run *run, const void *x, void *y);
    /*
     * dx written, not added to; in_place: dx is dy, and may hold anything afterwards where the layer does not pass a
     * gradient on. Else dx is NULL there. below: what to make for the layer below, or NULL. Called where layer_learns.
     */
    enum aq_status (*backward)(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below);
    /* The weight half of a split backward: += . NULL: nothing. */
    enum aq_status (*weights)(const struct layer_run *run, const void *x);
    void (*ending)(const struct layer_run *run, struct layer_ending *out);
    /* Last: adds what the stream has passed to *out; the output of one row of sample 0. */
    void (*count)(const struct layer_run *run, struct aq_stage_loss *out);
    enum aq_status (*output)(const struct layer_run *run, uint32_t row, float *values);
};

/* layers.def: the kinds. */
#define AQ_LAYER(name) extern const struct layer_kind layer_##name;
#include "layers.def"
#undef AQ_LAYER

/* The type of values between a stage's products, and the type in which products compute. */
static inline enum aq_element stage_type(enum aq_stage_precision precision)
{
    return precision == AQ_STAGE_BF16 ? AQ_BF16 : precision == AQ_STAGE_FP16 ? AQ_F16 : AQ_F32;
}

static inline enum aq_element stage_compute(enum aq_stage_precision precision)
{
    return precision == AQ_STAGE_TF32 ? AQ_TF32 : stage_type(precision);
}

/* The type of the residual stream: what one layer gives the next, inside a stage. Its gradient is fp32. */
static inline enum aq_element layer_stream(const struct aq_stage_config *config)
{
    return config->residual_bf16 ? AQ_BF16 : AQ_F32;
}

/* layer_common.c: copies the first row of each sample of x to `first`; back: `first` to those rows of x. */
enum aq_status layer_first_rows(const struct layer_run *run, float *x, float *first, bool back);

/* layer_common.c: the dropout of one of a layer's sites. */
struct aq_dropout layer_dropout(const struct layer_run *run, uint32_t site);

/* A bias' gradient: sums += the columns of a matrix of the stage's type; nothing where sums is NULL. */
enum aq_status layer_column_sum(const struct layer_run *run, const void *x, uint64_t rows, uint64_t columns,
                                float *sums);
/* Weights as products read them: fp32, or the device's copy in 16 bits. */
const void *layer_operand(const struct layer_run *run, const float *weights, enum aq_element *type);
/* Do products of such a stage on such a device read bf16 weights as they are kept? Else they are unpacked first. */
bool layer_reads_bf16(const struct layer_run *run);
/* Memory of one product's weights that are packed otherwise than products read them: of the widest. */
void *layer_unpacked(const struct aq_stage *stage);
/* stage_packed.c: are packed weights bf16 values? And y = such a weight of `count` values, as `type`. */
bool layer_packs_bf16(const struct layer_run *run);
enum aq_status layer_unpack(const struct layer_run *run, const struct layer_packed *packed, uint64_t count, void *y,
                            enum aq_element type);
/*
 * stage_tied.c: the row of the tied table's gradient that a token has in this step, named now if need be; UINT32_MAX:
 * more tokens than config->tied_rows. And the memory of the rows: gradients of tokens go there by row. NULL: into g.
 */
uint32_t layer_tied_row(struct aq_stage *stage, int32_t token);
float *layer_tied_rows(const struct aq_stage *stage);
/* Memory of the residual stream's gradient in the stage's type, for endings. */
void *layer_rounded(const struct aq_stage *stage);
/*
 * Memory of one product's adapters: a row of rank values, and one as wide as its input or its output, for each row;
 * with dropout its input once more, or that one's gradient.
 */
struct layer_adapter_memory {
    float *low, *sum;
    void *dropped;
    float *v;  /* with magnitudes (linear_magnitude.c): of the widest matrix, V; */
    void *own; /* and W', or the gradient of V                                   */
};
struct layer_adapter_memory layer_adapter_memory(const struct aq_stage *stage);
/* Targets and results of a last layer with one row per sample: the first member of its slot. */
struct layer_verdict {
    float *losses;
    int32_t *targets, *guesses; /* of a task of numbers floats lie there, in host memory as well */
    float *host_losses;
    int32_t *host_targets, *host_guesses;
};
/* Its memory of `what` (LAYER_SLOT, LAYER_HOST; none else). */
void layer_verdict_place(const struct aq_stage_config *config, enum layer_memory what, struct aq_arena *arena,
                         struct layer_verdict *verdict);
/* The batch's targets: classes below the layer's outputs, or numbers, of a layer with one. AQ_INVAL. */
enum aq_status layer_verdict_check(const struct layer *layer, const struct aq_stage_config *config,
                                   const struct aq_batch *batch, uint32_t tokens_used);
enum aq_status layer_verdict_take(const struct layer_run *run, const struct aq_batch *batch, uint32_t tokens_used);
/* Guesses, losses and, where gradient is not NULL, the gradient of (samples, outputs) in that type. */
enum aq_status layer_verdict_make(const struct layer_run *run, float *outputs, void *gradient, enum aq_element type);
void layer_verdict_count(const struct layer_run *run, struct aq_stage_loss *out);

/* A batch's int32 field: `count` of each sample, each -1 (where that may be) or 0 to below `bound`. AQ_INVAL. */
enum aq_status layer_check_field(const struct aq_batch *batch, const char *name, uint32_t count, uint32_t used,
                                 int32_t least, uint32_t bound);

#endif
