/*
 * fuzz_import.c -- `aqpipe import` of a whole folder, each of whose files may be anything.
 *
 * The first byte chooses the options. Then come the files in the order of the table below, with 0x01 between them (JSON
 * has none): an empty one is not there. Of a safetensors file the input has the header; its values are zeroes. Whatever
 * comes: the command ends with 0 or 1, and with 1 it says why.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "fuzz.h"

enum { BYTES_MAX = 1 << 14, MARK = 1, VALUES_BYTES = 4096, WORDS_MAX = 8 };

bool __wrap_aq_out_text(const char *text);
bool __wrap_aq_out_raw(const char *text);

static bool printed;

bool __wrap_aq_out_text(const char *text)
{
    printed = text[0] != 0;
    return true;
}

bool __wrap_aq_out_raw(const char *text)
{
    return __wrap_aq_out_text(text);
}

static const struct {
    const char *name;
    bool tensors;
} files[] = {{"model/config.json", false},
             {"model/model.safetensors", true},
             {"model/tokenizer.json", false},
             {"model/model.safetensors.index.json", false},
             {"model/tokenizer_config.json", false},
             {"model/generation_config.json", false},
             {"model/vocab.json", false},
             {"model/merges.txt", false},
             {"adapter/adapter_config.json", false},
             {"adapter/adapter_model.safetensors", true}};

static void put(const char *name, struct fuzz_piece piece, bool tensors)
{
    static uint8_t bytes[8 + BYTES_MAX + VALUES_BYTES];
    if (piece.count == 0) {
        (void)unlink(fuzz_path(name));
        return;
    }
    if (!tensors) {
        fuzz_write(name, piece.bytes, piece.count);
        return;
    }
    const uint64_t head = piece.count;
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, piece.bytes, piece.count);
    memset(bytes + sizeof head + piece.count, 0, VALUES_BYTES);
    fuzz_write(name, bytes, sizeof head + piece.count + VALUES_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool made;
    struct fuzz_piece rest = {data, size};
    static char model[512], adapter[512];
    char *words[WORDS_MAX] = {(char *)(uintptr_t) "import", model};
    int count = 2;
    if (size > BYTES_MAX) return 0;
    fuzz_quiet();
    if (!made) fuzz_make_folder("model");
    if (!made) fuzz_make_folder("adapter");
    made = true;
    snprintf(model, sizeof model, "%s", fuzz_path("model"));
    snprintf(adapter, sizeof adapter, "%s", fuzz_path("adapter"));
    const uint8_t asked = fuzz_byte(&rest);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        put(files[i].name, fuzz_cut(&rest, MARK), files[i].tensors);
    if (asked & 1) words[count++] = (char *)(uintptr_t) "--json";
    if (asked & 2) words[count++] = (char *)(uintptr_t) "--values";
    if (asked & 4) words[count++] = (char *)(uintptr_t) "--manifest";
    if (asked & 8) words[count++] = (char *)(uintptr_t) "--adapter";
    if (asked & 8) words[count++] = adapter;
    printed = false;
    aq_error_clear();
    const int code = aq_command_import(count, words);
    AQ_ASSERT(code == AQ_EXIT_DONE || code == AQ_EXIT_FAILED || code == AQ_EXIT_USAGE);
    AQ_ASSERT(printed || (code != AQ_EXIT_DONE && aq_error_text()[0]));
    fuzz_told(code == AQ_EXIT_DONE);
    return 0;
}
