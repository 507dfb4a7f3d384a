/*
 * data_files.c -- files for the tests of the data room.
 */
#include "data_files.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "aqsgd/base.h"

void data_folder_open(char folder[DATA_PATH_BYTES])
{
    const char *parent = getenv("TMPDIR");
    snprintf(folder, DATA_PATH_BYTES, "%s/aq_data.XXXXXX", parent ? parent : "/tmp");
    AQ_ASSERT(mkdtemp(folder));
}

const char *data_path(const char *folder, const char *name, char path[DATA_PATH_BYTES])
{
    int length = snprintf(path, DATA_PATH_BYTES, "%s/%s", folder, name);
    AQ_ASSERT(length > 0 && length < DATA_PATH_BYTES);
    return path;
}

void data_folder_close(const char *folder)
{
    char path[DATA_PATH_BYTES];
    DIR *names = opendir(folder);
    AQ_ASSERT(names);
    for (struct dirent *entry; (entry = readdir(names));) {
        if (entry->d_name[0] != '.') unlink(data_path(folder, entry->d_name, path));
    }
    closedir(names);
    AQ_ASSERT(rmdir(folder) == 0);
}

void data_write(const char *folder, const char *name, const void *bytes, size_t count)
{
    char path[DATA_PATH_BYTES];
    FILE *file = fopen(data_path(folder, name, path), "wb");
    AQ_ASSERT(file);
    AQ_ASSERT(fwrite(bytes, 1, count, file) == count);
    AQ_ASSERT(fclose(file) == 0);
}

void data_write_text(const char *folder, const char *name, const char *text)
{
    data_write(folder, name, text, strlen(text));
}

static bool prints(unsigned byte)
{
    return (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
}

const char *data_writing(unsigned byte, char out[3])
{
    unsigned character = byte, hidden = 0;
    for (unsigned b = 0; b < byte; b++) hidden += !prints(b);
    if (!prints(byte)) character = 256 + hidden;
    memset(out, 0, 3);
    if (character < 0x80) {
        out[0] = (char)character;
    } else {
        out[0] = (char)(0xC0 | character >> 6);
        out[1] = (char)(0x80 | (character & 0x3F));
    }
    return out;
}

int data_byte_token(unsigned byte)
{
    int token = 0;
    for (unsigned b = 0; b < byte; b++) token += prints(b) == prints(byte);
    return prints(byte) ? token : token + 188; /* 188 of the 256 print and come first */
}

static const char *escape_of(unsigned byte)
{
    return byte == '"' || byte == '\\' ? "\\" : "";
}

void data_write_tokenizer_json(const char *folder, const char *head, const char *model, const char *const *merges,
                               size_t count)
{
    char path[DATA_PATH_BYTES], writing[3];
    FILE *file = fopen(data_path(folder, "tokenizer.json", path), "wb");
    AQ_ASSERT(file);
    fprintf(file, "{%s,\n\"model\": {\"type\": \"BPE\", %s\"vocab\": {", head, model);
    for (unsigned byte = 0; byte < 256; byte++)
        fprintf(file, "%s\"%s%s\": %d", byte ? ",\n" : "", escape_of(byte), data_writing(byte, writing),
                data_byte_token(byte));
    for (size_t i = 0; i < count; i++) {
        const char *space = strchr(merges[i], ' ');
        fprintf(file, ",\n\"%.*s%s\": %zu", (int)(space - merges[i]), merges[i], space + 1, 256 + i);
    }
    fprintf(file, "},\n\"merges\": [");
    for (size_t i = 0; i < count; i++) { /* both writings of a merge */
        const char *space = strchr(merges[i], ' ');
        fprintf(file, i % 2 ? "%s\"%.*s %s\"" : "%s[\"%.*s\", \"%s\"]", i ? ",\n" : "", (int)(space - merges[i]),
                merges[i], space + 1);
    }
    fprintf(file, "]}}\n");
    AQ_ASSERT(fclose(file) == 0);
}

void data_write_vocabulary(const char *folder, const char *const *merges, size_t count)
{
    char path[DATA_PATH_BYTES], writing[3];
    FILE *file = fopen(data_path(folder, "vocab.json", path), "wb");
    AQ_ASSERT(file);
    fprintf(file, "{\"<|endoftext|>\": %zu", 256 + count);
    for (unsigned byte = 0; byte < 256; byte++) {
        fprintf(file, ",\n\"%s%s\": %d", escape_of(byte), data_writing(byte, writing), data_byte_token(byte));
    }
    for (size_t i = 0; i < count; i++) {
        const char *space = strchr(merges[i], ' ');
        fprintf(file, ",\n\"%.*s%s\": %zu", (int)(space - merges[i]), merges[i], space + 1, 256 + i);
    }
    fprintf(file, "}\n");
    AQ_ASSERT(fclose(file) == 0);
    file = fopen(data_path(folder, "merges.txt", path), "wb");
    AQ_ASSERT(file);
    fprintf(file, "#version: 0.2\n");
    for (size_t i = 0; i < count; i++) fprintf(file, "%s\n", merges[i]);
    AQ_ASSERT(fclose(file) == 0);
}

/* A piece as ModelProto has it: text, score, type. */
static void write_piece(FILE *file, const char *text, float score, int type)
{
    const size_t bytes = strlen(text);
    AQ_ASSERT(bytes < 100);
    fprintf(file, "%c%c%c%c%s%c", 0x0A, (int)(2 + bytes + 5 + 2), 0x0A, (int)bytes, text, 0x15);
    AQ_ASSERT(fwrite(&score, 4, 1, file) == 1);
    fprintf(file, "%c%c", 0x18, type);
}

void data_write_spm(const char *folder, const char *const *pieces, size_t count)
{
    /* trainer_spec: model_type unigram, byte_fallback; normalizer_spec: no prefix, spaces stay, and become U+2581. */
    static const uint8_t specs[] = {0x12, 5, 0x18, 1, 0x98, 0x02, 1, 0x1A, 6, 0x18, 0, 0x20, 0, 0x28, 1};
    char path[DATA_PATH_BYTES], name[8];
    FILE *file = fopen(data_path(folder, "spm.model", path), "wb");
    AQ_ASSERT(file);
    write_piece(file, "<unk>", 0, 2);
    write_piece(file, "<s>", 0, 3);
    write_piece(file, "</s>", 0, 3);
    for (unsigned byte = 0; byte < 256; byte++) {
        snprintf(name, sizeof name, "<0x%02X>", byte);
        write_piece(file, name, 0, 6);
    }
    for (size_t i = 0; i < count; i++)
        write_piece(file, pieces[i], -1 - (float)i, 1);
    AQ_ASSERT(fwrite(specs, sizeof specs, 1, file) == 1);
    AQ_ASSERT(fclose(file) == 0);
}

bool data_shared(const char *name, char path[DATA_PATH_BYTES])
{
    const char *shared = getenv("AQ_SHARED");
    char wanted[DATA_PATH_BYTES];
    int length = snprintf(wanted, sizeof wanted, "data/%s", name);
    AQ_ASSERT(length > 0 && length < DATA_PATH_BYTES);
    data_path(shared ? shared : AQ_SOURCE_FOLDER "/../shared", wanted, path);
    if (access(path, R_OK) == 0) return true;
    printf("skipped: %s is not there (AQ_SHARED names the folder of shared data)\n", path);
    return false;
}

static void drop_line(int level, const char *line, void *context)
{
    (void)level, (void)line, (void)context;
}

void data_be_quiet(void)
{
    aq_log_sink(drop_line, NULL);
}
