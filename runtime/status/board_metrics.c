/*
 * board_metrics.c -- a view in the text format of OpenMetrics 1.0, for Prometheus and other readers of the format.
 *
 * Families come whole, one after the other; unknown figures are left out; counters end with _total and start at the
 * launch. Labels are job, replica, stage and others of a family; values of labels are escaped as the format requires.
 */
#include <math.h>
#include <string.h>

#include "board_text.h"

enum { LABELS_BYTES = 1200 };

struct page {
    const struct aq_board_view *view;
    struct aq_text *out;
    char job[LABELS_BYTES]; /* job="NAME" */
};

/* A label's value: backslash, quote and newline escaped; what is not printable is \xNN already. */
static void label_of(const char *job, char out[LABELS_BYTES])
{
    char clean[512];
    size_t at = 5;
    memcpy(out, "job=\"", 5);
    for (const char *c = aq_printable_text(job, clean, sizeof clean); *c && at + 4 < LABELS_BYTES; c++) {
        if (*c == '"' || *c == '\\') out[at++] = '\\';
        out[at++] = *c;
    }
    out[at++] = '"';
    out[at] = 0;
}

static void family(const struct page *page, const char *name, const char *type, const char *help)
{
    aq_text_add(page->out, "# TYPE aqpipe_%s %s\n# HELP aqpipe_%s %s\n", name, type, name, help);
}

/* A gauge of the job as a whole. */
static void gauge(const struct page *page, const char *name, double value, const char *help)
{
    if (!isfinite(value)) return;
    family(page, name, "gauge", help);
    aq_text_add(page->out, "aqpipe_%s{%s} %.9g\n", name, page->job, value);
}

static void counter(const struct page *page, const char *name, double value, const char *help)
{
    family(page, name, "counter", help);
    aq_text_add(page->out, "aqpipe_%s_total{%s} %.15g\n", name, page->job, value);
}

static void of_rank(const struct page *page, const char *name, uint32_t rank, const char *label, const char *which,
                    double value)
{
    const uint32_t P = page->view->stages;
    if (!isfinite(value)) return;
    aq_text_add(page->out, "aqpipe_%s{%s,replica=\"%u\",stage=\"%u\"", name, page->job, rank / P, rank % P);
    if (label) aq_text_add(page->out, ",%s=\"%s\"", label, which);
    aq_text_add(page->out, "} %.15g\n", value);
}

static void of_ranks(const struct page *page)
{
    const struct aq_board_view *view = page->view;
    family(page, "stage_up", "gauge", "1: the worker of this stage lives");
    for (uint32_t r = 0; r < view->ranks; r++)
        of_rank(page, "stage_up", r, NULL, NULL, view->rank[r].lives);
    family(page, "stage_silent_seconds", "gauge", "since the last word of this stage");
    for (uint32_t r = 0; r < view->ranks; r++)
        if (view->rank[r].lives) of_rank(page, "stage_silent_seconds", r, NULL, NULL, view->rank[r].silent_s);
    family(page, "stage_step_seconds", "gauge",
           "of the last step, by what the stage did; wait includes link_wait and cache_wait");
    for (uint32_t r = 0; r < view->ranks; r++)
        for (int i = 0; i < AQ_BOARD_PARTS; i++)
            of_rank(page, "stage_step_seconds", r, "part", aq_board_part_name((enum aq_board_part)i),
                    view->rank[r].parts[i]);
    family(page, "cut_ratio", "gauge",
           "of what a stage sends: contraction is c_Q of the theorem, which needs less than 0.707");
    for (uint32_t r = 0; r < view->ranks; r++)
        for (int i = 0; i < AQ_BOARD_GAUGES; i++)
            of_rank(page, "cut_ratio", r, "ratio", aq_board_gauge_name((enum aq_board_gauge)i),
                    view->rank[r].gauges[i]);
    family(page, "sent_bytes", "counter", "that links carried since the launch, after packing");
    for (uint32_t r = 0; r < view->ranks; r++)
        for (int i = 0; i < AQ_BOARD_WAYS; i++)
            of_rank(page, "sent_bytes_total", r, "way", aq_board_way_name((enum aq_board_way)i),
                    view->rank[r].bytes_all[i]);
}

struct figure {
    const char *name, *help;
    bool counts;
    double value;
};

enum { CLIENT_FIGURES = 12 };

/* The figures of a client, one family each. */
static void client_figures(const struct aq_board_client *client, struct figure out[CLIENT_FIGURES])
{
    const struct figure figures[CLIENT_FIGURES] = {
        {"here", "1: it is connected", false, client->here},
        {"trains", "1: its turn is under way", false, client->trains},
        {"awaited", "1: the server or another client waits for it", false, client->awaited},
        {"turns", "that it has trained", true, client->turns},
        {"turns_missed", "that it has not", true, client->missed},
        {"late", "rounds in which it was waited for, or that ended before its turn", true, client->late},
        {"samples", "that it trains on", false, (double)client->samples},
        {"sent_bytes", "of all its turns, both ways", true, client->bytes},
        {"heldout_loss", "of its held-out samples after its last turn", false, client->loss},
        {"accuracy", "of its held-out samples after its last turn", false, client->accuracy},
        {"epsilon", "of what its cuts have sent of one sample, as it says", false, client->epsilon},
        {"delta", "of its epsilon", false, client->delta}};
    memcpy(out, figures, sizeof figures);
}

static void of_clients(const struct page *page)
{
    struct figure figures[CLIENT_FIGURES];
    const struct aq_board_split *split = &page->view->split;
    client_figures(&split->client[0], figures);
    for (int f = 0; f < CLIENT_FIGURES; f++) {
        char name[64];
        snprintf(name, sizeof name, "split_client_%s", figures[f].name);
        family(page, name, figures[f].counts ? "counter" : "gauge", figures[f].help);
        for (uint32_t i = 0; i < split->clients; i++) { /* a site's name needs no escape */
            client_figures(&split->client[i], figures);
            if (isfinite(figures[f].value))
                aq_text_add(page->out, "aqpipe_%s%s{%s,client=\"%s\"} %.15g\n", name, figures[f].counts ? "_total" : "",
                            page->job, split->client[i].name, figures[f].value);
        }
    }
}

static void of_split(const struct page *page)
{
    const struct aq_board_split *split = &page->view->split;
    uint32_t here = 0, turns = 0, missed = 0;
    for (uint32_t i = 0; i < split->clients; i++) {
        here += split->client[i].here;
        turns += split->client[i].turns;
        missed += split->client[i].missed;
    }
    gauge(page, "split_round", split->round, "the round under way; 0: clients are gathering");
    gauge(page, "split_rounds_planned", split->rounds, "of the whole job");
    gauge(page, "split_clients", split->clients, "that have joined");
    gauge(page, "split_clients_here", here, "that are connected");
    counter(page, "split_turns", turns, "that were trained");
    counter(page, "split_turns_missed", missed, "that were not");
    of_clients(page);
}

void aq_board_metrics(const struct aq_board_view *view, struct aq_text *out)
{
    struct page page = {.view = view, .out = out};
    struct aq_board_finding findings[AQ_BOARD_FINDINGS_MAX];
    const uint32_t found = aq_board_findings(view, findings);
    uint32_t bad = 0;
    for (uint32_t i = 0; i < found; i++)
        bad += findings[i].bad;
    label_of(view->job, page.job);
    family(&page, "build", "info", "the program");
    aq_text_add(out, "aqpipe_build_info{version=\"" AQ_VERSION "\"} 1\n");
    family(&page, "state", "stateset", "what the launch is doing");
    for (int s = 0; s < AQ_BOARD_STATES; s++)
        aq_text_add(out, "aqpipe_state{%s,aqpipe_state=\"%s\"} %d\n", page.job,
                    aq_board_state_text((enum aq_board_state)s), (int)(s == (int)view->state));
    gauge(&page, "waiting_seconds", view->state == AQ_BOARD_RUNNING && !*view->waits ? 0 : view->waits_s,
          "for so long the launch has been doing what it does between two steps");
    gauge(&page, "step", (double)view->step, "the last step that every stage has done");
    gauge(&page, "steps_planned", (double)view->steps, "of the whole run");
    gauge(&page, "epoch", (double)view->epoch, "from 0");
    gauge(&page, "checkpoint_step", (double)view->mark,
          "the newest step that every stage has a checkpoint of; 0: none");
    gauge(&page, "loss", view->loss, "of the last step");
    gauge(&page, "heldout_loss", view->heldout, "of the last evaluation");
    gauge(&page, "learning_rate", view->lr, "of the last step");
    gauge(&page, "gradient_norm", view->grad_norm, "of the last step, before clipping");
    gauge(&page, "step_seconds", view->seconds, "of the last step");
    gauge(&page, "sequences_per_second", view->speed, "of the last step");
    gauge(&page, "training_seconds", view->time, "of the run, over all its starts");
    gauge(&page, "left_seconds", view->left_s, "until the last step, by the mean of the last ones");
    counter(&page, "restarts", (double)view->restarts, "from the last checkpoint, in this launch");
    counter(&page, "skipped_steps", (double)view->skipped, "whose gradients were not finite");
    gauge(&page, "findings_bad", bad, "number of problems; the page and status.json describe them");
    gauge(&page, "findings_doubtful", found - bad, "what is doubtful");
    if (view->ranks > 0) of_ranks(&page);
    if (view->split.rounds > 0) of_split(&page);
    aq_text_add(out, "# EOF\n");
}
