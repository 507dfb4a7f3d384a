/* xml_text.c -- see the header. */
#include "xml_text.h"

#include <string.h>

void aq_text_xml(struct aq_text *text, const char *from)
{
    static const char steering[] = "&<>\"'";
    static const char *const instead[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    size_t left = from ? strlen(from) : 0;
    char piece[256];
    while (left > 0) {
        const size_t used = aq_printable(from, left, false, piece, sizeof piece);
        for (const char *c = piece; *c;) {
            const size_t plain = strcspn(c, steering);
            aq_text_bytes(text, c, plain);
            c += plain;
            if (*c) aq_text_add(text, "%s", instead[strchr(steering, *c++) - steering]);
        }
        from += used;
        left -= used;
    }
}
