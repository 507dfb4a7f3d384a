/*
 * yaml_tree.c -- builds the tree from libyaml's events, so that depth and size are bounded as they come. See
 * yaml_tree.h.
 */
#include "yaml_tree.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

enum { ERROR_BYTES = 1024, PLACE_BYTES = 512 };

void aq_yaml_place(const struct aq_yaml_node *node, char *text, size_t bytes)
{
    if (node->line)
        snprintf(text, bytes, "%s:%u:%u", node->source, node->line, node->column);
    else
        snprintf(text, bytes, "%s", node->source);
}

/* Before the key, as the source of a value of the command line. */
static const char set_source[] = "--set ";

void aq_yaml_error(struct aq_yaml_errors *errors, const struct aq_yaml_node *node, const char *format, ...)
{
    errors->count++;
    if (errors->count > errors->limit) return;
    char text[ERROR_BYTES], place[PLACE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    aq_yaml_place(node, place, sizeof place);
    /* "--set train.lr: train.lr: ..." names the key once. */
    const char *key = strncmp(place, set_source, sizeof set_source - 1) == 0 ? place + sizeof set_source - 1 : NULL;
    const size_t bytes = key ? strlen(key) : 0;
    if (key && strncmp(text, key, bytes) == 0 && text[bytes] == ':') place[sizeof set_source - 2] = 0;
    (void)aq_fail(AQ_INVAL, "manifest", "%s: %s", place, text);
}

struct reader {
    yaml_parser_t parser;
    struct aq_pool *pool;
    struct aq_yaml_errors *errors;
    const char *source;
    bool fixed_place;
    uint32_t nodes;
};

static struct aq_yaml_node mark_of(const struct reader *reader, yaml_mark_t mark)
{
    struct aq_yaml_node node = {.source = reader->source};
    if (!reader->fixed_place) {
        node.line = (uint32_t)mark.line + 1;
        node.column = (uint32_t)mark.column + 1;
    }
    return node;
}

static enum aq_status refuse(struct reader *reader, yaml_mark_t mark, const char *why)
{
    const struct aq_yaml_node at = mark_of(reader, mark);
    aq_yaml_error(reader->errors, &at, "%s", why);
    return AQ_INVAL;
}

static enum aq_status next_event(struct reader *reader, yaml_event_t *event)
{
    if (yaml_parser_parse(&reader->parser, event)) return AQ_OK;
    const yaml_parser_t *parser = &reader->parser;
    if (parser->error == YAML_MEMORY_ERROR) return aq_fail(AQ_NOMEM, "manifest", "no memory to read the manifest");
    const struct aq_yaml_node at =
        mark_of(reader, parser->error == YAML_READER_ERROR ? parser->mark : parser->problem_mark);
    const char *context = parser->context ? parser->context : "";
    const char *problem = parser->problem ? parser->problem : "unreadable";
    const char *remedy = "";
    if (strstr(context, "alias") || strstr(context, "anchor"))
        remedy = "; put a text that begins with * or & in quotes";
    else if (strstr(problem, "cannot start any token"))
        remedy = "; indent with spaces, not with tabs, and put a text that begins with @, ` or % in quotes";
    aq_yaml_error(reader->errors, &at, "not YAML: %s%s%s%s", context, *context ? ", " : "", problem, remedy);
    return AQ_INVAL;
}

static enum aq_status node_open(struct reader *reader, enum aq_yaml_kind kind, const yaml_event_t *event,
                                struct aq_yaml_node **out)
{
    if (++reader->nodes > AQ_YAML_NODES_MAX)
        return refuse(reader, event->start_mark, "too many values for a manifest (8192 are read)");
    void *memory = NULL;
    AQ_TRY(aq_pool_take(reader->pool, sizeof **out, &memory));
    *out = memory;
    **out = mark_of(reader, event->start_mark);
    (*out)->kind = kind;
    return AQ_OK;
}

static enum aq_status read_scalar(struct reader *reader, const yaml_event_t *event, struct aq_yaml_node **out)
{
    const char *text = (const char *)event->data.scalar.value;
    const size_t bytes = event->data.scalar.length;
    if (event->data.scalar.anchor)
        return refuse(reader, event->start_mark, "anchors (&name) are not supported: write the value out");
    if (event->data.scalar.tag)
        return refuse(reader, event->start_mark, "tags (!name) are not supported: leave the tag out");
    if (memchr(text, 0, bytes)) return refuse(reader, event->start_mark, "a text holds a zero byte");
    AQ_TRY(node_open(reader, AQ_YAML_SCALAR, event, out));
    (*out)->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    return aq_pool_text(reader->pool, text, bytes, &(*out)->text);
}

static enum aq_status read_node(struct reader *reader, const yaml_event_t *event, uint32_t depth,
                                struct aq_yaml_node **out);

/* One key and its value; *out NULL: the map ended. */
static enum aq_status read_pair(struct reader *reader, struct aq_yaml_node *map, uint32_t depth,
                                struct aq_yaml_node **out)
{
    yaml_event_t event;
    struct aq_yaml_node *key = NULL;
    *out = NULL;
    AQ_TRY(next_event(reader, &event));
    if (event.type == YAML_MAPPING_END_EVENT) {
        yaml_event_delete(&event);
        return AQ_OK;
    }
    enum aq_status status = event.type == YAML_SCALAR_EVENT
                                ? read_scalar(reader, &event, &key)
                                : refuse(reader, event.start_mark, "a key must be a plain text");
    yaml_event_delete(&event);
    if (status != AQ_OK) return status;
    const struct aq_yaml_node *before = aq_yaml_child(map, key->text, strlen(key->text));
    if (before)
        aq_yaml_error(reader->errors, key, "%s: given twice (first at line %u); keep one", key->text, before->line);
    AQ_TRY(next_event(reader, &event));
    status = read_node(reader, &event, depth, out);
    yaml_event_delete(&event);
    if (status != AQ_OK) return status;
    (*out)->key = key->text;
    (*out)->line = key->line;
    (*out)->column = key->column;
    return AQ_OK;
}

static enum aq_status read_map(struct reader *reader, struct aq_yaml_node *map, uint32_t depth)
{
    struct aq_yaml_node **tail = &map->first;
    for (;;) { /* ends: every pair takes two of AQ_YAML_NODES_MAX nodes */
        struct aq_yaml_node *child;
        AQ_TRY(read_pair(reader, map, depth, &child));
        if (!child) return AQ_OK;
        *tail = child;
        tail = &child->next;
    }
}

static enum aq_status read_list(struct reader *reader, struct aq_yaml_node *list, uint32_t depth)
{
    struct aq_yaml_node **tail = &list->first;
    for (;;) { /* ends: as read_map */
        yaml_event_t event;
        AQ_TRY(next_event(reader, &event));
        if (event.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&event);
            return AQ_OK;
        }
        struct aq_yaml_node *child = NULL;
        const enum aq_status status = read_node(reader, &event, depth, &child);
        yaml_event_delete(&event);
        if (status != AQ_OK) return status;
        *tail = child;
        tail = &child->next;
    }
}

static enum aq_status read_node(struct reader *reader, const yaml_event_t *event, uint32_t depth,
                                struct aq_yaml_node **out)
{
    if (depth > AQ_YAML_DEPTH_MAX) return refuse(reader, event->start_mark, "nested too deep for a manifest");
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return read_scalar(reader, event, out);
    case YAML_MAPPING_START_EVENT:
        if (event->data.mapping_start.anchor)
            return refuse(reader, event->start_mark, "anchors are not supported: write the value out");
        if (event->data.mapping_start.tag)
            return refuse(reader, event->start_mark, "tags are not supported: leave the tag out");
        AQ_TRY(node_open(reader, AQ_YAML_MAP, event, out));
        return read_map(reader, *out, depth + 1);
    case YAML_SEQUENCE_START_EVENT:
        if (event->data.sequence_start.anchor)
            return refuse(reader, event->start_mark, "anchors are not supported: write the value out");
        if (event->data.sequence_start.tag)
            return refuse(reader, event->start_mark, "tags are not supported: leave the tag out");
        AQ_TRY(node_open(reader, AQ_YAML_LIST, event, out));
        return read_list(reader, *out, depth + 1);
    case YAML_ALIAS_EVENT:
        return refuse(reader, event->start_mark, "aliases (*name) are not supported: write the value out");
    default:
        return refuse(reader, event->start_mark, "a value is missing");
    }
}

/* The event after `before` ends the stream, or there is a further document, which is refused. */
static enum aq_status read_end(struct reader *reader)
{
    yaml_event_t event;
    AQ_TRY(next_event(reader, &event));
    enum aq_status status = AQ_OK;
    if (event.type == YAML_DOCUMENT_END_EVENT) {
        yaml_event_delete(&event);
        AQ_TRY(next_event(reader, &event));
    }
    if (event.type != YAML_STREAM_END_EVENT)
        status = refuse(reader, event.start_mark, "a second document (---) starts here; a manifest is one document");
    yaml_event_delete(&event);
    return status;
}

static enum aq_status read_document(struct reader *reader, struct aq_yaml_node **out)
{
    yaml_event_t event;
    AQ_TRY(next_event(reader, &event)); /* STREAM-START */
    yaml_event_delete(&event);
    AQ_TRY(next_event(reader, &event));
    if (event.type == YAML_STREAM_END_EVENT) {
        const enum aq_status status = node_open(reader, AQ_YAML_MAP, &event, out);
        yaml_event_delete(&event);
        return status;
    }
    yaml_event_delete(&event); /* DOCUMENT-START */
    AQ_TRY(next_event(reader, &event));
    const enum aq_status status = read_node(reader, &event, 1, out);
    yaml_event_delete(&event);
    if (status != AQ_OK) return status;
    return read_end(reader);
}

enum aq_status aq_yaml_parse(struct aq_pool *pool, const char *text, size_t bytes, const char *source, bool fixed_place,
                             struct aq_yaml_errors *errors, struct aq_yaml_node **out)
{
    struct reader reader = {.pool = pool, .errors = errors, .source = source, .fixed_place = fixed_place};
    struct aq_yaml_node *root = NULL;
    if (bytes > AQ_YAML_BYTES_MAX)
        return refuse(&reader, (yaml_mark_t){0}, "longer than 256 KiB: this is not a manifest");
    if (!yaml_parser_initialize(&reader.parser)) return aq_fail(AQ_NOMEM, "manifest", "no memory to read %s", source);
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, bytes);
    const uint32_t before = errors->count;
    enum aq_status status = read_document(&reader, &root);
    yaml_parser_delete(&reader.parser);
    if (status != AQ_OK) return status;
    *out = root; /* with doubled keys, too: the rest may have more errors */
    return errors->count == before ? AQ_OK : AQ_INVAL;
}

struct aq_yaml_node *aq_yaml_child(const struct aq_yaml_node *node, const char *key, size_t bytes)
{
    uint64_t number = 0;
    if (node->kind == AQ_YAML_LIST) {
        if (bytes == 0 || bytes > 6) return NULL;
        for (size_t i = 0; i < bytes; i++) {
            if (key[i] < '0' || key[i] > '9') return NULL;
            number = number * 10 + (uint64_t)(key[i] - '0');
        }
    }
    for (struct aq_yaml_node *child = node->first; child; child = child->next) {
        if (node->kind == AQ_YAML_LIST ? number-- == 0
                                       : strlen(child->key) == bytes && memcmp(child->key, key, bytes) == 0)
            return child;
    }
    return NULL;
}

static size_t word_bytes(const char *path)
{
    return strcspn(path, ".");
}

struct aq_yaml_node *aq_yaml_find(struct aq_yaml_node *root, const char *path)
{
    struct aq_yaml_node *node = root;
    while (node && *path) {
        const size_t bytes = word_bytes(path);
        node = aq_yaml_child(node, path, bytes);
        path += bytes + (path[bytes] == '.');
    }
    return node;
}

static void list_append(struct aq_yaml_node *map, struct aq_yaml_node *child)
{
    struct aq_yaml_node **tail = &map->first;
    while (*tail)
        tail = &(*tail)->next;
    *tail = child;
}

enum aq_status aq_yaml_graft(struct aq_pool *pool, struct aq_yaml_node *root, const char *path,
                             struct aq_yaml_node *value, struct aq_yaml_errors *errors)
{
    struct aq_yaml_node *node = root;
    const char *rest = path;
    for (uint32_t depth = 0; depth < AQ_YAML_DEPTH_MAX; depth++) {
        const size_t bytes = word_bytes(rest);
        const bool last = rest[bytes] == 0;
        if (node->kind ==
            AQ_YAML_SCALAR) { /* a scalar gives way: pipeline.stages.0.threads over stages: 4 fails later */
            aq_yaml_error(errors, value,
                          "%s: %s is one value, not a list or section: write all of it as a list or section first",
                          path, node->key);
            return AQ_INVAL;
        }
        struct aq_yaml_node *child = aq_yaml_child(node, rest, bytes);
        if (!child && node->kind == AQ_YAML_LIST) {
            aq_yaml_error(errors, value, "%s: the list has no entry %.*s (they count from 0)", path, (int)bytes, rest);
            return AQ_INVAL;
        }
        if (last && child) { /* the new value takes the place of the old */
            struct aq_yaml_node *next = child->next;
            const char *key = child->key;
            *child = *value;
            child->next = next;
            child->key = key;
            return AQ_OK;
        }
        if (!child) {
            void *memory = NULL;
            AQ_TRY(aq_pool_take(pool, sizeof *child, &memory));
            child = memory;
            *child = last ? *value : (struct aq_yaml_node){.kind = AQ_YAML_MAP, .source = value->source};
            child->next = NULL;
            AQ_TRY(aq_pool_text(pool, rest, bytes, &child->key));
            list_append(node, child);
            if (last) return AQ_OK;
        }
        node = child;
        rest += bytes + 1;
    }
    aq_yaml_error(errors, value, "%s: too many dots", path);
    return AQ_INVAL;
}
