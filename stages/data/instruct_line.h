/*
 * instruct_line.h -- one object of an instruct data set as what is learnt of it: a prompt and its response, or messages
 * for a chat template. See data_roles.h for the layouts.
 *
 *     layout                  with a chat template            without one
 *     messages                messages                        refused
 *     prompt and response     texts as they are; lists of messages: messages, and the response's answers are learnt
 *     instruction and output  a user's message, an answer     Alpaca's published prompt, as a text
 */
#ifndef INSTRUCT_LINE_H
#define INSTRUCT_LINE_H

#include "data_roles.h"

struct instruct_line {
    json_t *messages; /* an object with "messages"; NULL: prompt and response are texts */
    uint32_t earlier; /* the first that many of its answers are not learnt */
    const char *prompt, *response;
    size_t prompt_bytes, response_bytes;
    char *text; /* of aq_alloc, that prompt points into; or NULL */
};

/*
 * object is borrowed, and must outlive `out`. chats: there is a chat template. place: "file:line". AQ_CORRUPT: it has
 * no layout, or a part is of another type; names the remedy.
 */
enum aq_status instruct_line_of(const struct data_roles *roles, json_t *object, const char *place, bool chats,
                                struct instruct_line *out);
void instruct_line_free(struct instruct_line *line);

#endif
