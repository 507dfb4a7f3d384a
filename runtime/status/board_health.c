/* board_health.c -- what of a view is not well, with its remedy: the one list that page, JSON and OpenMetrics have. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "board.h"

enum { SILENT_S = 30 };                            /* a daemon reports its workers at least every 10 s */
static const double c_q_max = 0.70710678118654752; /* sqrt(1/2): AQ-SGD's theorem needs less (docs/GUIDE.md)    */
static const double link_wait_share_max = 0.5;

struct list {
    struct aq_board_finding *of;
    uint32_t count;
};

static void add(struct list *list, bool bad, const char *remedy, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void add(struct list *list, bool bad, const char *remedy, const char *format, ...)
{
    if (list->count == AQ_BOARD_FINDINGS_MAX) return;
    struct aq_board_finding *finding = &list->of[list->count++];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding->text, sizeof finding->text, format, arguments);
    va_end(arguments);
    finding->bad = bad;
    finding->remedy = remedy;
}

static void of_ranks(const struct aq_board_view *view, struct list *list)
{
    char name[AQ_BOARD_NAME_BYTES];
    double waits = 0, all = 0;
    for (uint32_t r = 0; r < view->ranks; r++) {
        const struct aq_board_rank *rank = &view->rank[r];
        if (rank->lives && rank->silent_s > SILENT_S)
            add(list, true, "is its process or its machine stopped? After control.silence_max the job restarts",
                "%s (pid %d) has been silent for %.0f s", aq_board_rank_name(view, r, name), rank->pid, rank->silent_s);
        if (rank->away_s > 0)
            add(list, true,
                "start aqpiped there (over ssh the launcher does), or mend the network: its replica returns by itself",
                "the daemon of %s has been out of reach for %.0f s", aq_board_rank_name(view, r, name), rank->away_s);
        if (rank->gauges[AQ_BOARD_CQ] > c_q_max)
            add(list, false, "more bits for this cut (edges.list), or edges.guard: true",
                "c_Q of what %s sends is %.3f: above 0.707 the codec's loop need not contract",
                aq_board_rank_name(view, r, name), rank->gauges[AQ_BOARD_CQ]);
        if (rank->gauges[AQ_BOARD_GRADIENT_ERROR] > c_q_max)
            add(list, false, "more bits backward (edges.backward), or edges.guard: true",
                "the error of the gradients that %s sends is %.3f of their size: the theorem needs less than 0.707 of "
                "them, too",
                aq_board_rank_name(view, r, name), rank->gauges[AQ_BOARD_GRADIENT_ERROR]);
        if (rank->seconds > 0 && isfinite(rank->parts[AQ_BOARD_LINK_WAIT])) {
            waits += rank->parts[AQ_BOARD_LINK_WAIT];
            all += rank->seconds;
        }
    }
    if (all > 0 && waits / all > link_wait_share_max)
        add(list, false, "fewer bits, more micro-batches, or `aqpipe doctor JOB` to see what the links carry",
            "stages wait for links %.0f %% of the time", waits / all * 100);
}

uint32_t aq_board_findings(const struct aq_board_view *view, struct aq_board_finding out[AQ_BOARD_FINDINGS_MAX])
{
    struct list list = {.of = out};
    if (view->state == AQ_BOARD_FAILED) add(&list, true, view->remedy, "the job failed: %.200s", view->cause);
    if (view->step > 0 && view->state == AQ_BOARD_RUNNING && !isfinite(view->loss) && isfinite(view->seconds))
        add(&list, true, "a smaller train.lr, or train.clip", "the loss of step %llu is not a number",
            (unsigned long long)view->step);
    if (view->restarts > 0)
        add(&list, false, "`aqpipe logs RUN` shows the stages' last words",
            "restarted %llu times; the last cause: %.180s", (unsigned long long)view->restarts, view->cause);
    if (view->skipped > 0)
        add(&list, false, "a few are usual while the loss scale is searched; many: a smaller train.lr",
            "%llu steps were skipped, because their gradients were not finite", (unsigned long long)view->skipped);
    for (uint32_t i = 0; i < view->notices; i++)
        add(&list, false, view->notice[i].remedy, "%s", view->notice[i].text);
    of_ranks(view, &list);
    return list.count;
}
