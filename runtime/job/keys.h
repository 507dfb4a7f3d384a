/*
 * keys.h -- the table of manifest keys as data, and how one value is read from text and written back.
 *
 * Locking: pure functions over constant tables.
 */
#ifndef RUNTIME_KEYS_H
#define RUNTIME_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "job.h"
#include "runtime_text.h"

enum aq_key_kind {
    AQ_KEY_U32,       /* uint32_t                                                                 */
    AQ_KEY_U64,       /* uint64_t                                                                 */
    AQ_KEY_I32,       /* int32_t                                                                  */
    AQ_KEY_F32,       /* float                                                                    */
    AQ_KEY_BOOL,      /* bool: true, false, yes, no, on, off                                      */
    AQ_KEY_TEXT,      /* const char *, "" is NULL                                                 */
    AQ_KEY_PATH,      /* const char *, made absolute; "" is NULL                                  */
    AQ_KEY_PATHS,     /* const char *const * and, next to it, uint32_t                            */
    AQ_KEY_ENUM,      /* an enum, by names                                                        */
    AQ_KEY_CHOICE,    /* const char *, one of names                                               */
    AQ_KEY_BYTES,     /* uint64_t, "64MiB", "1GB"                                                 */
    AQ_KEY_RATE,      /* double of Mbit/s, "100mbit", "1gbit"                                     */
    AQ_KEY_DURATION,  /* uint64_t of nanoseconds, "30s", "500ms"; plain: seconds                  */
    AQ_KEY_EVERY,     /* struct aq_job_every                                                      */
    AQ_KEY_OFTEN,     /* struct aq_job_every, which may be a time: "30min"                        */
    AQ_KEY_COUNT,     /* uint32_t, "auto" is 0                                                    */
    AQ_KEY_WINDOW,    /* uint32_t, "auto" is AQ_WINDOW_AUTO, for 0 is a count                             */
    AQ_KEY_IN_FLIGHT, /* uint32_t, "auto", "default", "classic"                                   */
    AQ_KEY_SCALE,     /* float, "auto" is 0                                                        */
    AQ_KEY_FACTORS,   /* struct aq_factors: numbers with blanks or commas between them, "none": none */
    AQ_KEY_MAP,       /* const char *, the map as a JSON object; none is NULL                      */
    /* Read by manifest.c itself: */
    AQ_KEY_OF_MODEL, /* only in keys.def: the models' own keys take its place */
    AQ_KEY_LAYERS,
    AQ_KEY_STAGES,
    AQ_KEY_CODEC,
    AQ_KEY_CODEC_FORWARD,
    AQ_KEY_CODEC_BACKWARD,
    AQ_KEY_EDGES
};

/* The value of a name that programs write for each other: it is read, but help and errors do not offer it. */
enum { AQ_KEY_NAME_INTERNAL = -1 };

struct aq_key_name {
    const char *name; /* NULL: end of the list */
    int value;
};

/* Which digests of a plan read a key (keys.def): each also reads what those of a larger scope read. */
enum aq_key_scope { AQ_SCOPE_NONE, AQ_SCOPE_PLAN, AQ_SCOPE_RANK, AQ_SCOPE_RESUME };

/* The version that brought a key (keys.def); keys_help.c has their names. */
enum aq_key_since { AQ_SINCE_FIRST, AQ_SINCE_V0_1 };

/*
 * A key that needs, or excludes, another one. Where the key has one of the values `when`, and `where` holds:
 * needs: at least one of the keys `other` has one of `values`; conflicts: none of them has.
 *
 * Lists are words with blanks between. A value is a word as the manifest has it; "none": no text; "time": a time in
 * place of a count. NULL in place of values: any but the default.
 */
struct aq_key_rule {
    const char *when;
    const char *other; /* names of keys; NULL: end of the rules */
    const char *values;
    const char *where; /* a key that must be set, too, or "!" and one that must not be; NULL: the rule always holds */
    const char *text;  /* the error at the key: the cause, and the remedy */
};

struct aq_key {
    const char *name; /* "train.batch"; of stage, edge and codec keys only the last word */
    enum aq_key_kind kind;
    size_t offset; /* in struct aq_job, aq_job_stage, aq_job_edge or aq_codec_config */
    const struct aq_key_name *names;
    const char *unit;
    double min, max; /* base unit; max 0: no limit */
    const char *fallback;
    enum aq_key_scope scope;
    enum aq_key_since since;
    const struct aq_key_rule *needs, *conflicts; /* NULL: none */
    const char *help;
    bool of_model; /* one of those that models bring: see aq_key_applies */
};

struct aq_key_section {
    const char *name, *help;
};

struct aq_key_table {
    const struct aq_key *keys;
    uint32_t count;
};

struct aq_key_table aq_keys_job(void);
struct aq_key_table aq_keys_stage(void);
struct aq_key_table aq_keys_codec(void);
struct aq_key_table aq_keys_edge(void);
const struct aq_key_section *aq_keys_sections(uint32_t *count);

/* Has a job with such a model this key? */
bool aq_key_applies(const struct aq_key *key, const char *model_kind);

const struct aq_key *aq_key_find(struct aq_key_table table, const char *name); /* NULL */

/* Is it read and written by aq_key_read and aq_key_write (one scalar)? PATHS and what manifest.c reads are not. */
bool aq_key_is_scalar(const struct aq_key *key);

/* The values that a scalar may have, as text of messages: "a whole number, 1 to 8 (bits)". */
void aq_key_wants(const struct aq_key *key, char *text, size_t bytes);

/*
 * Read a scalar into the struct at `base`. Texts are borrowed: they must outlive the job; PATH is left as it is
 * written. AQ_INVAL (not logged): ill-typed or out of range; aq_key_wants has the valid values.
 */
enum aq_status aq_key_read(const struct aq_key *key, const char *text, bool quoted, void *base);

/* Write the value at `base` as a text that aq_key_read reads to the same bits; false: it has none (NULL, no such name).
 */
bool aq_key_write(const struct aq_key *key, const void *base, struct aq_text *out);

/* A YAML scalar in double quotes, with escapes where needed. */
void aq_key_quote(const char *text, struct aq_text *out);

/* Is a word of so many bytes in a list of words with blanks between (struct aq_key_rule)? */
bool aq_word_listed(const char *list, const char *word, size_t bytes);

/* The key whose name is nearest to `name` and near enough to be meant, or NULL. */
const char *aq_key_nearest(struct aq_key_table table, const char *name);

#endif
