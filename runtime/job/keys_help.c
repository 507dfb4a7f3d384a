/*
 * keys_help.c -- the table of keys for people: the text of --help, and docs/MANIFEST.md. See job.h.
 */
#include <stdio.h>
#include <string.h>

#include "keys.h"
#include "nearest.h"

enum { WANTS_BYTES = 256, NAME_COLUMNS = 30, HELP_COLUMNS = 100, KEY_BYTES = 128 };

static void type_of(const struct aq_key *key, char *text, size_t bytes)
{
    static const char *const words[] = {[AQ_KEY_U32] = "whole number",
                                        [AQ_KEY_U64] = "whole number",
                                        [AQ_KEY_I32] = "whole number",
                                        [AQ_KEY_F32] = "number",
                                        [AQ_KEY_BOOL] = "true or false",
                                        [AQ_KEY_TEXT] = "text",
                                        [AQ_KEY_PATH] = "path",
                                        [AQ_KEY_PATHS] = "path or list",
                                        [AQ_KEY_ENUM] = "",
                                        [AQ_KEY_CHOICE] = "",
                                        [AQ_KEY_BYTES] = "size",
                                        [AQ_KEY_RATE] = "rate",
                                        [AQ_KEY_DURATION] = "duration",
                                        [AQ_KEY_EVERY] = "interval",
                                        [AQ_KEY_OFTEN] = "interval or duration",
                                        [AQ_KEY_COUNT] = "count or word",
                                        [AQ_KEY_WINDOW] = "count or word",
                                        [AQ_KEY_IN_FLIGHT] = "count or word",
                                        [AQ_KEY_SCALE] = "number or word",
                                        [AQ_KEY_FACTORS] = "list of numbers",
                                        [AQ_KEY_MAP] = "section",
                                        [AQ_KEY_LAYERS] = "range",
                                        [AQ_KEY_STAGES] = "count or list",
                                        [AQ_KEY_CODEC] = "section",
                                        [AQ_KEY_CODEC_FORWARD] = "section",
                                        [AQ_KEY_CODEC_BACKWARD] = "section",
                                        [AQ_KEY_EDGES] = "list"};
    if (!key->names) {
        snprintf(text, bytes, "%s", words[key->kind]);
        return;
    }
    size_t used = 0;
    text[0] = 0;
    for (const struct aq_key_name *name = key->names; name->name && used < bytes; name++) {
        if (name->value == AQ_KEY_NAME_INTERNAL) continue;
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", name->name);
    }
}

/* A limit in the unit a person writes it in. */
static void limit_text(const struct aq_key *key, double value, char *text, size_t bytes)
{
    const double seconds = value * 1e-9, days = seconds / 86400;
    if (key->kind == AQ_KEY_DURATION && days >= 2 && days == (double)(int64_t)days)
        snprintf(text, bytes, "%.0fd", days);
    else if (key->kind == AQ_KEY_DURATION)
        snprintf(text, bytes, "%gs", seconds);
    else
        snprintf(text, bytes, value < 1e7 && value == (double)(int64_t)value ? "%.0f" : "%g", value);
}

static bool range_of(const struct aq_key *key, char *text, size_t bytes)
{
    char low[32], high[32];
    const bool number = key->kind <= AQ_KEY_F32 || key->kind == AQ_KEY_BYTES || key->kind == AQ_KEY_RATE ||
                        key->kind == AQ_KEY_DURATION || key->kind == AQ_KEY_COUNT || key->kind == AQ_KEY_WINDOW ||
                        key->kind == AQ_KEY_IN_FLIGHT || key->kind == AQ_KEY_STAGES || key->kind == AQ_KEY_SCALE ||
                        key->kind == AQ_KEY_FACTORS;
    text[0] = 0;
    if (!number) return false;
    limit_text(key, key->min, low, sizeof low);
    limit_text(key, key->max, high, sizeof high);
    if (key->max > key->min)
        snprintf(text, bytes, "%s to %s", low, high);
    else
        snprintf(text, bytes, "%s or more", low);
    return true;
}

void aq_key_wants(const struct aq_key *key, char *text, size_t bytes)
{
    char type[128], range[80];
    type_of(key, type, sizeof type);
    const bool ranged = range_of(key, range, sizeof range);
    const bool every = key->kind == AQ_KEY_EVERY || key->kind == AQ_KEY_OFTEN;
    const char *hint = key->kind == AQ_KEY_BYTES       ? ", as in 64MiB"
                       : key->kind == AQ_KEY_RATE      ? ", as in 100mbit"
                       : key->kind == AQ_KEY_DURATION  ? ", as in 30s, 20min"
                       : key->kind == AQ_KEY_EVERY     ? ", as in '1 epoch' or '200 steps'"
                       : key->kind == AQ_KEY_OFTEN     ? ", as in '1 epoch', '200 steps' or '30min'"
                       : key->kind == AQ_KEY_IN_FLIGHT ? ", 'auto', 'default' or 'classic'"
                       : key->kind == AQ_KEY_SCALE     ? ", or 'auto'"
                       : key->kind == AQ_KEY_FACTORS   ? ", as in '1 1.25', or 'none'"
                       : key->kind == AQ_KEY_COUNT     ? ", or 'auto'"
                       : key->kind == AQ_KEY_WINDOW    ? ", or 'auto'"
                       : strcmp(key->unit, "ms") == 0  ? ", as in 20ms, 0.1s"
                                                       : "";
    snprintf(text, bytes, "%s%s%s%s%s%s%s",
             key->names                 ? "one of "
             : key->kind == AQ_KEY_BOOL ? ""
             : every                    ? "an "
                                        : "a ",
             type, ranged ? ", " : "", range, *key->unit && !every ? " " : "", every ? "" : key->unit, hint);
}

/* The version in which a key appeared. */
static const char *since_text(const struct aq_key *key)
{
    static const char *const versions[] = {[AQ_SINCE_FIRST] = "0.1", [AQ_SINCE_V0_1] = "0.1"};
    return versions[key->since];
}

/* Words with blanks between, with another separator. */
static void add_words(struct aq_text *text, const char *words, const char *separator)
{
    for (size_t bytes; *words; words += bytes + (words[bytes] == ' ')) {
        bytes = strcspn(words, " ");
        aq_text_bytes(text, words, bytes);
        if (words[bytes]) aq_text_add(text, "%s", separator);
    }
}

/* "; auto excludes train.staleness" */
static void add_rules(struct aq_text *text, const struct aq_key_rule *rule, const char *verb, const char *separator)
{
    for (; rule && rule->other; rule++) {
        if (text->used) aq_text_add(text, "; ");
        if (rule->when) add_words(text, rule->when, " or ");
        aq_text_add(text, "%s%s ", rule->when ? " " : "", verb);
        add_words(text, rule->other, separator);
        if (rule->values) aq_text_add(text, ": ");
        if (rule->values) add_words(text, rule->values, " or ");
        if (rule->where && rule->where[0] == '!')
            aq_text_add(text, " without %s", rule->where + 1);
        else if (rule->where)
            aq_text_add(text, " with %s", rule->where);
    }
}

/* "; excluded by edges.bits: auto": the conflicts of other keys with this one. */
static void add_excluders(struct aq_text *text, const char *name)
{
    const struct aq_key_table keys = aq_keys_job();
    for (uint32_t i = 0; i < keys.count; i++)
        for (const struct aq_key_rule *rule = keys.keys[i].conflicts; rule && rule->other; rule++) {
            if (!aq_word_listed(rule->other, name, strlen(name))) continue;
            if (text->used) aq_text_add(text, "; ");
            if (rule->values) add_words(text, rule->values, " or ");
            aq_text_add(text, "%sexcluded by %s", rule->values ? " " : "", keys.keys[i].name);
            if (rule->when) aq_text_add(text, ": ");
            if (rule->when) add_words(text, rule->when, " or ");
        }
}

/* What the key means, and in brackets what it needs and excludes: the columns of keys.def. */
static void add_meaning(struct aq_text *text, const struct aq_key *key)
{
    struct aq_text rules = {0};
    add_rules(&rules, key->needs, "needs", " or ");
    add_rules(&rules, key->conflicts, "excludes", ", ");
    add_excluders(&rules, key->name);
    aq_text_add(text, rules.used ? "%s [%s]" : "%s", key->help, aq_text_of(&rules));
    if (text->status == AQ_OK) text->status = rules.status;
    aq_text_deinit(&rules);
}

/* "  prefix.name   what it can be; default X", and below it what it means, both folded. */
static void help_line(struct aq_text *text, const char *prefix, const struct aq_key *key)
{
    struct aq_text line = {0};
    char wants[WANTS_BYTES];
    aq_key_wants(key, wants, sizeof wants);
    const int used = (int)(strlen(prefix) + strlen(key->name));
    aq_text_add(&line, "  %s%s%*s%s", prefix, key->name, used < NAME_COLUMNS ? NAME_COLUMNS - used : 1, "", wants);
    if (*key->fallback) aq_text_add(&line, "; default %s", key->fallback);
    aq_text_add(&line, "; since %s", since_text(key));
    aq_text_fold(text, aq_text_of(&line), HELP_COLUMNS);
    aq_text_deinit(&line);
    aq_text_add(&line, "    ");
    add_meaning(&line, key);
    aq_text_add(text, "\n");
    aq_text_fold(text, aq_text_of(&line), HELP_COLUMNS);
    aq_text_add(text, "\n");
    aq_text_deinit(&line);
}

static bool in_section(const struct aq_key *key, const char *section)
{
    const size_t bytes = strlen(section);
    return strncmp(key->name, section, bytes) == 0 && key->name[bytes] == '.';
}

/* The tables of keys, and the prefix of each table's names as people write them. */
static struct aq_key_table table_of(int i, const char **prefix)
{
    static const char *const prefixes[] = {"", "pipeline.stages.N.", "edges.forward.", "edges.list.N."};
    *prefix = prefixes[i];
    return i == 0 ? aq_keys_job() : i == 1 ? aq_keys_stage() : i == 2 ? aq_keys_codec() : aq_keys_edge();
}

enum { TABLES = 4 };

/* "edges.forward.bits" and "edges.backward.bits", "pipeline.stages.0.threads" are names of `whole`: a number is N. */
static bool same_key(const char *about, const char *whole)
{
    static const char forward[] = "edges.forward.", backward[] = "edges.backward.";
    if (strncmp(about, backward, sizeof backward - 1) == 0 && strncmp(whole, forward, sizeof forward - 1) == 0)
        return strcmp(about + sizeof backward - 1, whole + sizeof forward - 1) == 0;
    while (*about && *whole) {
        if (*whole == 'N' && *about >= '0' && *about <= '9') {
            about += strspn(about, "0123456789");
            whole++;
        } else if (*about++ != *whole++) {
            return false;
        }
    }
    return *about == *whole;
}

enum match { MATCH_SECTION, MATCH_KEY, MATCH_LAST_WORD, MATCH_PART, MATCHES };

static bool matches(enum match match, const char *about, const char *whole)
{
    const char *dot = strrchr(whole, '.');
    const size_t bytes = strlen(about);
    switch (match) {
    case MATCH_SECTION:
        return strncmp(whole, about, bytes) == 0 && whole[bytes] == '.';
    case MATCH_KEY:
        return same_key(about, whole);
    case MATCH_LAST_WORD:
        return dot && strcmp(dot + 1, about) == 0;
    default:
        return strstr(whole, about) != NULL;
    }
}

static void help_section(struct aq_text *text, const struct aq_key_section *section)
{
    struct aq_text line = {0};
    aq_text_add(&line, "%s: %s\n", section->name, section->help);
    aq_text_fold(text, aq_text_of(&line), HELP_COLUMNS);
    aq_text_deinit(&line);
}

/* Every key that matches; *nearest learns the names. Answers how many there are. */
static uint32_t help_matches(struct aq_text *text, enum match match, const char *about, struct aq_nearest *nearest)
{
    uint32_t found = 0, sections;
    char whole[KEY_BYTES];
    const struct aq_key_section *section = aq_keys_sections(&sections);
    for (uint32_t s = 0; match == MATCH_SECTION && s < sections; s++) {
        aq_nearest_try(nearest, section[s].name);
        if (strcmp(section[s].name, about) == 0) help_section(text, &section[s]);
    }
    for (int i = 0; i < TABLES; i++) {
        const char *prefix;
        const struct aq_key_table table = table_of(i, &prefix);
        for (uint32_t k = 0; k < table.count; k++) {
            snprintf(whole, sizeof whole, "%s%s", prefix, table.keys[k].name);
            if (match == MATCH_KEY && i == 0) aq_nearest_try(nearest, table.keys[k].name);
            if (!matches(match, about, whole)) continue;
            help_line(text, prefix, &table.keys[k]);
            found++;
        }
    }
    return found;
}

static void help_all(struct aq_text *text)
{
    uint32_t count;
    const struct aq_key_section *sections = aq_keys_sections(&count);
    struct aq_nearest unused = {.word = ""};
    aq_text_add(
        text, "Keys of a manifest; any of them also as --set key=value. A relative path is relative to the folder\nof "
              "the manifest, one of --set to the current folder. `aqpipe help keys SECTION` or KEY prints a\npart "
              "of this list.\n");
    for (uint32_t s = 0; s < count; s++) {
        aq_text_add(text, "\n");
        (void)help_matches(text, MATCH_SECTION, sections[s].name, &unused);
    }
}

enum aq_status aq_keys_help(const char *about, char **out)
{
    struct aq_text text = {0};
    struct aq_nearest nearest = {.word = about};
    uint32_t found = 0;
    if (!about) {
        help_all(&text);
        return aq_text_take(&text, out);
    }
    for (int match = MATCH_SECTION; match < MATCHES && found == 0 && *about; match++)
        found = help_matches(&text, (enum match)match, about, &nearest);
    if (found > 0) return aq_text_take(&text, out);
    aq_text_deinit(&text);
    const char *meant = aq_nearest_of(&nearest);
    return aq_fail(AQ_NOTFOUND, "help", "there is no section or key '%.80s'%s%s%s; `aqpipe help keys` lists them all",
                   about, meant ? "; did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
}

static void page_row(struct aq_text *text, const struct aq_key *key)
{
    char type[128], range[80];
    struct aq_text meaning = {0};
    type_of(key, type, sizeof type);
    (void)range_of(key, range, sizeof range);
    aq_text_add(text, "| `%s` | ", key->name);
    aq_text_cell(text, type);
    aq_text_add(text, " | %s | %s | %s%s%s | %s | ", key->unit, range, *key->fallback ? "`" : "", key->fallback,
                *key->fallback ? "`" : "", since_text(key));
    add_meaning(&meaning, key);
    aq_text_cell(text, aq_text_of(&meaning));
    aq_text_add(text, " |\n");
    if (text->status == AQ_OK) text->status = meaning.status;
    aq_text_deinit(&meaning);
}

static void page_head(struct aq_text *text)
{
    aq_text_add(text, "\n| key | type | unit | range | default | since | meaning |\n|---|---|---|---|---|---|---|\n");
}

static void page_table(struct aq_text *text, const char *title, struct aq_key_table table)
{
    aq_text_add(text, "\n### %s\n", title);
    page_head(text);
    for (uint32_t i = 0; i < table.count; i++)
        page_row(text, &table.keys[i]);
}

/* Keys that most jobs need: the first table of the page. */
static const char *const COMMON[] = {
    "job.name", "model.weights", "model.task", "model.precision", "lora.rank", "lora.alpha", "data.kind",
    "data.train", "data.heldout", "data.tokenizer", "train.T", "train.batch", "train.micro_batch",
    "train.epochs", "train.lr", "train.clip", "train.evaluate_every", "pipeline.stages", "pipeline.replicas",
    "edges.forward", "edges.backward", "link.rtt_ms", "checkpoint.every", "security.keys", "output.path",
};

/* Keys that the programs write for each other. The owner of a split-server may set two of the facts. */
static bool internal(const struct aq_key *key)
{
    if (strcmp(key->name, "facts.vocabulary") == 0 || strcmp(key->name, "facts.labels") == 0) return false;
    return strncmp(key->name, "facts.", 6) == 0 || strcmp(key->name, "split.client") == 0;
}

static void page_common(struct aq_text *text, struct aq_key_table keys)
{
    aq_text_add(text, "\n## Common keys\n\nMost jobs need only these; each is in its section below, too.\n");
    page_head(text);
    for (size_t c = 0; c < sizeof COMMON / sizeof *COMMON; c++)
        for (uint32_t i = 0; i < keys.count; i++)
            if (strcmp(keys.keys[i].name, COMMON[c]) == 0) page_row(text, &keys.keys[i]);
}

enum aq_status aq_keys_markdown(char **out)
{
    struct aq_text text = {0};
    uint32_t count;
    const struct aq_key_section *sections = aq_keys_sections(&count);
    const struct aq_key_table keys = aq_keys_job();
    aq_text_add(&text,
                "# The manifest\n\n"
                "Made from `runtime/job/keys.def` by `aqpipe help keys --markdown`; a test checks that it is up "
                "to date.\n\n"
                "A manifest is one YAML document of sections and keys. Every key can be given on the command "
                "line, too, and wins there:\n`--set train.batch=16`, `--set \"data.train=[a.txt, b.txt]\"`, "
                "`--set pipeline.stages.1.threads=2` (entries count from 0).\nA relative path in the "
                "manifest is relative to the manifest's folder, one on the command line (`--set`, `--run`) to the "
                "current folder.\nSizes take kB, MB, GB, KiB, MiB, GiB; rates kbit, mbit, gbit; durations and "
                "milliseconds ns,\nus, ms, s, min, h, d. Anchors, aliases and tags are refused, and so is a key given "
                "twice.\n");
    page_common(&text, keys);
    for (uint32_t s = 0; s < count; s++) {
        aq_text_add(&text, "\n## %s\n\n%s\n", sections[s].name, sections[s].help);
        page_head(&text);
        for (uint32_t i = 0; i < keys.count; i++)
            if (in_section(&keys.keys[i], sections[s].name) && !internal(&keys.keys[i])) page_row(&text, &keys.keys[i]);
        if (strcmp(sections[s].name, "pipeline") == 0)
            page_table(&text, "An entry of `pipeline.stages`", aq_keys_stage());
        if (strcmp(sections[s].name, "edges") != 0) continue;
        aq_text_add(&text, "\nA job that names no key of a codec has `{codec: ec, rate: 2.5, rounding: half_dither, "
                           "keyframe: ec}` forward and `{codec: ec, rate: 4}` backward.\nThe defaults of the next "
                           "table hold as soon as a job names one of its keys (docs/CODECS.md).\n");
        page_table(&text, "A codec: `edges.forward`, `edges.backward` and those of `edges.list`", aq_keys_codec());
        page_table(&text, "An entry of `edges.list`, beside `edge`, `forward` and `backward`", aq_keys_edge());
    }
    return aq_text_take(&text, out);
}
