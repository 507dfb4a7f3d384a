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

void data_write_vocabulary(const char *folder, const char *const *merges, size_t count)
{
    char path[DATA_PATH_BYTES], writing[3];
    FILE *file = fopen(data_path(folder, "vocab.json", path), "wb");
    AQ_ASSERT(file);
    fprintf(file, "{\"<|endoftext|>\": %zu", 256 + count);
    for (unsigned byte = 0; byte < 256; byte++) {
        const char *escape = byte == '"' || byte == '\\' ? "\\" : "";
        fprintf(file, ",\n\"%s%s\": %d", escape, data_writing(byte, writing), data_byte_token(byte));
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
