/*
 * board_text.h -- a view of the board as text: a page for people, JSON and OpenMetrics for programs.
 *
 * Locking: pure functions of a view.
 */
#ifndef RUNTIME_BOARD_TEXT_H
#define RUNTIME_BOARD_TEXT_H

#include "board.h"
#include "runtime_text.h"

/* The content of <main> of the page. */
void aq_board_body(const struct aq_board_view *view, struct aq_text *out);
/* The whole page around it; nothing in it comes from another place. */
void aq_board_page(const struct aq_board_view *view, struct aq_text *out);
extern const char aq_board_css[], aq_board_js[];

/* One object (docs/STATUS.md). */
void aq_board_json(const struct aq_board_view *view, struct aq_text *out);

/* OpenMetrics 1.0, with "# EOF" (docs/STATUS.md). */
void aq_board_metrics(const struct aq_board_view *view, struct aq_text *out);

#endif
