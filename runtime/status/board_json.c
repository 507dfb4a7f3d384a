/* board_json.c -- a view as one JSON object. */
#include <math.h>

#include "board_text.h"
#include "control.h"
#include "json_text.h"

static json_t *text_of(const char *text)
{
    char clean[2048];
    return json_string(aq_printable_text(text, clean, sizeof clean));
}

static json_t *rank_of(const struct aq_board_view *view, uint32_t r)
{
    const struct aq_board_rank *rank = &view->rank[r];
    const uint32_t P = view->stages;
    json_t *parts = json_object(), *gauges = json_object(), *bytes = json_object(), *all = json_object();
    for (int i = 0; i < AQ_BOARD_PARTS; i++)
        json_object_set_new(parts, aq_board_part_name((enum aq_board_part)i), aq_control_number(rank->parts[i]));
    for (int i = 0; i < AQ_BOARD_GAUGES; i++)
        json_object_set_new(gauges, aq_board_gauge_name((enum aq_board_gauge)i), aq_control_number(rank->gauges[i]));
    for (int i = 0; i < AQ_BOARD_WAYS; i++) {
        json_object_set_new(bytes, aq_board_way_name((enum aq_board_way)i), aq_control_number(rank->bytes[i]));
        json_object_set_new(all, aq_board_way_name((enum aq_board_way)i), aq_control_number(rank->bytes_all[i]));
    }
    return json_pack("{s:i, s:i, s:b, s:i, s:s, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "replica", (int)(r / P),
                     "stage", (int)(r % P), "lives", (int)rank->lives, "pid", rank->pid, "doing", aq_board_does(rank),
                     "doing_seconds", aq_control_number(rank->phase_s), "silent_seconds",
                     aq_control_number(rank->silent_s), "step", (json_int_t)rank->step, "checkpoint",
                     (json_int_t)rank->mark, "seconds", aq_control_number(rank->seconds), "parts", parts, "cut", gauges,
                     "step_bytes", bytes, "bytes", all);
}

static json_t *with_waits(const struct aq_board_rank *rank, json_t *out)
{
    json_object_set_new(out, "host", *rank->host ? text_of(rank->host) : json_null());
    json_object_set_new(out, "waits_for_link_before", aq_control_number(aq_board_link_wait(rank, true)));
    json_object_set_new(out, "waits_for_link_behind", aq_control_number(aq_board_link_wait(rank, false)));
    return out;
}

json_t *aq_board_split_json(const struct aq_board_split *split)
{
    json_t *clients = json_array();
    for (uint32_t i = 0; i < split->clients; i++) {
        const struct aq_board_client *client = &split->client[i];
        json_array_append_new(
            clients,
            json_pack("{s:o, s:b, s:b, s:b, s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "name",
                      text_of(client->name), "here", (int)client->here, "trains", (int)client->trains, "awaited",
                      (int)client->awaited, "does", text_of(client->does), "turns", (json_int_t)client->turns, "missed",
                      (json_int_t)client->missed, "late", (json_int_t)client->late, "step", (json_int_t)client->step,
                      "samples", (json_int_t)client->samples, "sent_bytes", aq_control_number(client->bytes), "loss",
                      aq_control_number(client->loss), "accuracy", aq_control_number(client->accuracy), "epsilon",
                      aq_control_number(client->epsilon), "delta", aq_control_number(client->delta)));
    }
    return json_pack("{s:s, s:I, s:I, s:o}", "mode", split->mode, "round", (json_int_t)split->round, "rounds",
                     (json_int_t)split->rounds, "clients", clients);
}

void aq_board_json(const struct aq_board_view *view, struct aq_text *out)
{
    struct aq_board_finding findings[AQ_BOARD_FINDINGS_MAX];
    const uint32_t count = aq_board_findings(view, findings);
    json_t *ranks = json_array(), *found = json_array();
    for (uint32_t r = 0; r < view->ranks; r++)
        json_array_append_new(ranks, with_waits(&view->rank[r], rank_of(view, r)));
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(found, json_pack("{s:s, s:o, s:s}", "grade", findings[i].bad ? "bad" : "doubtful", "text",
                                               text_of(findings[i].text), "remedy", findings[i].remedy));
    json_t *all =
        json_pack("{s:o, s:o, s:s, s:s, s:o, s:o, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "job", text_of(view->job),
                  "codec", text_of(view->codec), "version", AQ_VERSION, "state", aq_board_state_text(view->state),
                  "waits_for", text_of(view->waits), "waits_seconds", aq_control_number(view->waits_s), "remedy",
                  view->remedy, "cause", text_of(view->cause), "step", (json_int_t)view->step, "steps",
                  (json_int_t)view->steps, "epoch", (json_int_t)view->epoch, "checkpoint", (json_int_t)view->mark,
                  "restarts", (json_int_t)view->restarts, "skipped", (json_int_t)view->skipped);
    const struct {
        const char *name;
        double value;
    } training[] = {{"loss", view->loss},
                    {"heldout_loss", view->heldout},
                    {"lr", view->lr},
                    {"grad_norm", view->grad_norm}},
      figures[] = {{"step_seconds", view->seconds},
                   {"sequences_per_second", view->speed},
                   {"seconds", view->time},
                   {"left_seconds", view->left_s},
                   {"up_seconds", view->up_s},
                   {"sent_bytes", aq_board_sent(view)},
                   {"stage_hours", aq_board_stage_hours(view)}};
    for (size_t i = 0; i < sizeof training / sizeof *training; i++)
        json_object_set_new(all, training[i].name, aq_control_number(training[i].value));
    for (int i = 0; i < AQ_STEP_FIGURES; i++)
        json_object_set_new(all, aq_step_figure(i)->name, aq_control_number(view->figures[i]));
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        json_object_set_new(all, figures[i].name, aq_control_number(figures[i].value));
    json_object_set_new(all, "findings", found);
    json_object_set_new(all, "ranks", ranks);
    if (view->split.rounds > 0) json_object_set_new(all, "split", aq_board_split_json(&view->split));
    if (aq_json_text(all, JSON_COMPACT | JSON_REAL_PRECISION(9), out) == AQ_OK) aq_text_add(out, "\n");
    json_decref(all);
}
