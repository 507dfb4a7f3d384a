/* kept_errors.c -- see the header. */
#include "kept_errors.h"

#include <stdio.h>
#include <string.h>

#include "aqsgd/base.h"

void aq_kept_errors_take(int level, const char *line, void *context)
{
    struct aq_kept_errors *errors = context;
    if (level > 0)
        fprintf(stderr, "%s\n", line);
    else if (errors->count < AQ_ERRORS_KEPT)
        snprintf(errors->lines[errors->count++], AQ_KEPT_ERROR_BYTES, "%s", line);
}

void aq_kept_errors_show(struct aq_kept_errors *errors, const char *cause)
{
    aq_log_sink(NULL, NULL);
    for (int i = 0; i < errors->count; i++) {
        const char *line = errors->lines[i], *text = strstr(line, ": ");
        text = text ? strstr(text + 2, ": ") : NULL; /* "aqpipe: error: area: text" */
        text = text ? strstr(text + 2, ": ") : NULL;
        if (!text || !strstr(cause, text + 2)) fprintf(stderr, "%s\n", line);
    }
    errors->count = 0;
}
