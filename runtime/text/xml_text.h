/*
 * xml_text.h -- the only way of text that others wrote (names of jobs, folders, causes) into HTML or SVG.
 *
 * Characters of markup (& < > " ') become references, so that it is text in elements and in quoted attributes alike. It
 * is made printable first (aqsgd/base/printable.h): control characters, invisible ones and broken UTF-8 become \xNN.
 *
 * Locking: pure functions.
 */
#ifndef RUNTIME_XML_TEXT_H
#define RUNTIME_XML_TEXT_H

#include "runtime_text.h"

/* NULL is "". Texts of any length. */
void aq_text_xml(struct aq_text *text, const char *from);

#endif
