/*
 * local_model.h -- a model folder in this process, on its CPU: for commands that ask a model instead of training it.
 *
 *     struct aq_local_asked asked = {.path = "run"};              options of the command line go here
 *     struct aq_local *local;
 *     AQ_TRY(aq_local_open(&asked, &local));                      config.json, the run's manifest where it is a run's
 *     AQ_TRY(aq_local_load(local, &(struct aq_asked_size){.task = task, .B = 1, .T = 128}));
 *     ... aq_local_forward(local, &input, &loss)
 *     aq_local_close(local);
 *
 * The whole model is one stage for inference, in one process, without a codec: the weights as the folder has them. A
 * run's folder is one too once the run has ended, and has its manifest.yaml. With the codec on, the model is the run's
 * stages, and the values at its cuts go through their forward codecs (runtime/edge/edge_cut.h).
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_LOCAL_MODEL_H
#define RUNTIME_LOCAL_MODEL_H

#include "aqsgd/device.h"
#include "asked.h"
#include "edge_cut.h"
#include "job.h"
#include "options.h"
#include "run_folder.h"
#include "stages/dataset.h"
#include "stages/model_folder.h"
#include "stages/stage.h"

/* Options that the commands share. */
struct aq_local_asked {
    const char *path;                       /* of the folder                                                */
    const char *tokenizer, *tokenizer_path; /* NULL: the folder's, else the run's                           */
    enum aq_stage_precision precision;      /* 0: the run's, else fp32                                      */
    uint32_t threads;                       /* 0: every core                                                */
    const char *adapter;                    /* PEFT's folder, added to the weights; NULL: none              */
    bool codec;                             /* what crosses the run's cuts is coded                         */
    bool pipeline; /* the run's stages compute, as processes (through.h): the plan is made, nothing loaded */
};

/* Rows for the command's table of options; member: its struct aq_local_asked. */
#define AQ_LOCAL_OPTIONS(type, member)                                                                                 \
    AQ_ROW(TEXT, type, member.tokenizer, "tokenizer", "KIND",                                                          \
           "where the folder has none (aqpipe help keys data.tokenizer)"),                                             \
        AQ_ROW(TEXT, type, member.tokenizer_path, "tokenizer-path", "DIR", "its files; default: MODEL"),               \
        AQ_ROW_READ(aq_local_precision_read, type, member.precision, "precision", "TYPE",                              \
                    "of products: fp32, bf16 or fp16; default: the run's, else fp32"),                                 \
        AQ_ROW_READ(aq_local_codec_read, type, member.codec, "codec", "on|off",                                        \
                    "on: activations cross a run's cuts by its forward codec (off)"),                                  \
        AQ_ROW(TEXT, type, member.adapter, "adapter", "FOLDER", "adapters of PEFT, added to the model's weights"),     \
        AQ_ROW_RANGE(U32, type, member.threads, "threads", "N", 1, 1024, "default: every core")

/* A READ of "fp32", "bf16" or "fp16" into an enum aq_stage_precision. */
const char *aq_local_precision_read(const char *value, void *to);

/* A READ of "on" or "off" into a bool. */
const char *aq_local_codec_read(const char *value, void *to);

struct aq_local {
    struct aq_local_asked asked;
    char hub[AQ_RUN_PATH_BYTES]; /* the folder of hf://ORG/NAME */
    struct aq_job *job;          /* of the run whose folder it is; NULL: it is no run's      */
    struct aq_model_folder *folder;
    struct aq_model_config model;                /* from config.json; after load as it is computed       */
    const char *tokenizer_kind, *tokenizer_path; /* kind NULL: not set                                   */
    struct aq_plan *plan; /* with the codec, or its stages as processes: the run's; else NULL            */
    struct aq_device *device;
    /* After load: */
    struct aq_stage *stages[AQ_JOB_STAGES_MAX], *stage; /* stage: the last one                         */
    uint32_t stage_count;
    struct aq_cut *cuts[AQ_JOB_STAGES_MAX]; /* behind each stage but the last                             */
    struct aq_cut_shape shapes[AQ_JOB_STAGES_MAX];
    float *values[2]; /* what crosses them, in turn                                                        */
};

/*
 * asked is copied, its texts are borrowed until close. AQ_NOTFOUND: no folder, or a run that has not ended (names the
 * remedy). As aq_model_folder_open and aq_job_load.
 */
enum aq_status aq_local_open(const struct aq_local_asked *asked, struct aq_local **out);
void aq_local_close(struct aq_local *local); /* NULL is fine */

/* AQ_NOTFOUND: the folder has none and no option names one (prints the remedy); AQ_MISMATCH: it has more tokens than
 * the model. */
enum aq_status aq_local_tokenizer(const struct aq_local *local, struct aq_tokenizer **out);

/* Opens device and stages, and reads the weights: as aq_asked_stage_open. */
enum aq_status aq_local_load(struct aq_local *local, const struct aq_asked_size *size);

/* Through all stages: as aq_stage_forward of slot 0. The logits are local->stage's. */
enum aq_status aq_local_forward(struct aq_local *local, const struct aq_stage_input *input, struct aq_stage_loss *loss);

/* "off", or "on, 2 cuts": for people. */
void aq_local_codec_text(const struct aq_local *local, char *text, size_t bytes);

#endif
