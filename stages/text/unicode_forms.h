/*
 * unicode_forms.h -- Unicode's normalization forms, lower case, classes of characters and grapheme clusters, by
 * utf8proc; its one place.
 *
 * Most text is in form C already: a table of the characters that stay as they are, whatever their neighbours, lets it
 * pass without a copy.
 *
 * Locking: a table does not change after open; any thread.
 */
#ifndef STAGES_UNICODE_FORMS_H
#define STAGES_UNICODE_FORMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"

enum aq_unicode_form { AQ_UNICODE_NFC, AQ_UNICODE_NFD, AQ_UNICODE_NFKC, AQ_UNICODE_NFKD };

/* The library's version (each knows one Unicode): the forms follow from it. */
const char *aq_unicode_library(void);

struct aq_unicode_forms;
enum aq_status aq_unicode_forms_open(struct aq_unicode_forms **out); /* AQ_NOMEM */
void aq_unicode_forms_close(struct aq_unicode_forms *forms);         /* NULL is fine */

/*
 * The first segment of valid UTF-8 at or behind `from` that may change in this form: the text before it stays; the text
 * behind it does not affect it. False: all of it stays.
 */
bool aq_unicode_segment(const struct aq_unicode_forms *forms, enum aq_unicode_form form, const uint8_t *text,
                        size_t bytes, size_t from, size_t *start, size_t *end);
/* The segment in its form, in memory of aq_alloc. AQ_NOMEM. */
enum aq_status aq_unicode_form(enum aq_unicode_form form, const uint8_t *text, size_t bytes, uint8_t **out,
                               size_t *count);

/* Is it UTF-8 (RFC 3629)? */
bool aq_unicode_valid(const uint8_t *text, size_t bytes);
/* The end of the extended grapheme cluster (UAX 29) that starts at `at` of valid UTF-8; at < bytes. */
size_t aq_unicode_cluster(const uint8_t *text, size_t bytes, size_t at);
/* One valid character; its bytes. */
size_t aq_unicode_read(const uint8_t *text, uint32_t *character);
/* Its lower case, as UTF-8 (at most 8 bytes); how many bytes. */
size_t aq_unicode_lower(uint32_t character, uint8_t out[8]);
/* Is it of a word (a letter, a mark, a digit, a connector)? A space (White_Space)? */
bool aq_unicode_is_word(uint32_t character);
bool aq_unicode_is_space(uint32_t character);
/* Is it a control, format or private-use character? A non-spacing mark (Mn)? */
bool aq_unicode_is_control(uint32_t character);
bool aq_unicode_is_nonspacing_mark(uint32_t character);

#endif
