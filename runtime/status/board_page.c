/*
 * board_page.c -- a view as a page for people: state, figures, problems, curves, stages' time, links.
 *
 * The page works without scripts (it then reloads itself); with its own small one it fetches the content of <main>.
 * Every text that others wrote goes through aq_text_xml.
 */
#include <math.h>
#include <stdio.h>

#include "board_text.h"
#include "plot.h"
#include "xml_text.h"

enum { PLOT_WIDTH = 720, PLOT_HEIGHT = 320, BAR_WIDTH = 1000, TRACKS_MAX = 32 };

#define LINK_BUSY  0.3 /* of a step that a stage waits for a link: as much as this is the first thing to mend */
#define LINK_DOUBT 0.1

static const struct {
    enum aq_board_part part;
    const char *name, *colour;
} bar_parts[] = {{AQ_BOARD_COMPUTE, "compute", "c0"},
                 {AQ_BOARD_CODEC, "codec", "c1"},
                 {AQ_BOARD_OPTIMIZER, "optimizer", "c2"},
                 {AQ_BOARD_REDUCE, "reduce", "c3"},
                 {AQ_BOARD_LINK_WAIT, "waits for links", "c4"},
                 {AQ_BOARD_CACHE_WAIT, "waits for the cache", "c5"},
                 {AQ_BOARD_WAIT, "other idle", "c6"}};
enum { BAR_PARTS = sizeof bar_parts / sizeof *bar_parts };

/* With so many significant digits. */
static void figure(struct aq_text *out, const char *name, int digits, double value)
{
    if (isfinite(value))
        aq_text_add(out, "<div><dt>%s</dt><dd>%.*g</dd></div>", name, digits, value);
    else
        aq_text_add(out, "<div><dt>%s</dt><dd>&ndash;</dd></div>", name);
}

/* "2.1 s", "3 min 05 s", "2 h 07 min" */
static const char *span(double seconds, char out[AQ_TEXT_NUMBER])
{
    if (!(seconds >= 0 && seconds < 1e9)) return "&ndash;";
    const unsigned s = (unsigned)(seconds + 0.5);
    if (seconds < 100)
        snprintf(out, AQ_TEXT_NUMBER, "%.1f s", seconds);
    else if (s < 3600)
        snprintf(out, AQ_TEXT_NUMBER, "%u min %02u s", s / 60, s % 60);
    else
        snprintf(out, AQ_TEXT_NUMBER, "%u h %02u min", s / 3600, s / 60 % 60);
    return out;
}

static void duration(struct aq_text *out, const char *name, double seconds)
{
    char text[AQ_TEXT_NUMBER];
    aq_text_add(out, "<div><dt>%s</dt><dd>%s</dd></div>", name, span(seconds, text));
}

/* The job, its state, what it waits for, and how far it is (0 to 1). */
static void head_of(const struct aq_board_view *view, double share, struct aq_text *out)
{
    char since[AQ_TEXT_NUMBER];
    const char *state = aq_board_state_text(view->state);
    aq_text_add(out, "<header><h1>");
    aq_text_xml(out, view->job);
    aq_text_add(out, "</h1><p class=\"state %s\">%s</p><p>", state, state);
    if (*view->waits) {
        aq_text_xml(out, view->waits);
        if (view->waits_s >= 1) aq_text_add(out, " for %s", span(view->waits_s, since));
    }
    if (view->state == AQ_BOARD_FAILED || view->state == AQ_BOARD_RESTARTING) {
        aq_text_add(out, "%s", *view->waits ? "; " : "");
        aq_text_xml(out, view->cause);
    }
    if (*view->remedy) {
        aq_text_add(out, "<br><small>");
        aq_text_xml(out, view->remedy);
        aq_text_add(out, "</small>");
    }
    aq_text_add(out, "</p><progress max=\"1\" value=\"%.4f\"></progress></header>\n<dl>", share);
}

static void head(const struct aq_board_view *view, struct aq_text *out)
{
    char sent[AQ_TEXT_NUMBER];
    head_of(view, view->steps ? (double)view->step / (double)view->steps : 0, out);
    aq_text_add(out, "<div><dt>step</dt><dd>%llu / %llu</dd></div>", (unsigned long long)view->step,
                (unsigned long long)view->steps);
    figure(out, "loss", 5, view->loss);
    figure(out, "held-out loss", 5, view->heldout);
    figure(out, "sequences/s", 4, view->speed);
    figure(out, "s a step", 3, view->seconds);
    figure(out, "learning rate", 3, view->lr);
    figure(out, "gradient norm", 3, view->grad_norm);
    duration(out, "trained", view->time);
    duration(out, "left", view->left_s);
    aq_text_add(out, "<div><dt>sent, all links</dt><dd>%s</dd></div>",
                aq_text_size((uint64_t)aq_board_sent(view), sent));
    figure(out, "stage hours", 3, aq_board_stage_hours(view));
    aq_text_add(out, "<div><dt>checkpoint</dt><dd>%llu</dd></div><div class=\"long\"><dt>codec</dt><dd>",
                (unsigned long long)view->mark);
    aq_text_xml(out, view->codec);
    aq_text_add(out, "</dd></div></dl>\n");
}

static void health(const struct aq_board_view *view, struct aq_text *out)
{
    struct aq_board_finding findings[AQ_BOARD_FINDINGS_MAX];
    const uint32_t count = aq_board_findings(view, findings);
    aq_text_add(out, "<section><h2>Health</h2><ul class=\"health\">");
    for (uint32_t i = 0; i < count; i++) {
        aq_text_add(out, "<li class=\"%s\">", findings[i].bad ? "bad" : "doubtful");
        aq_text_xml(out, findings[i].text);
        aq_text_add(out, "<br><small>");
        aq_text_xml(out, findings[i].remedy);
        aq_text_add(out, "</small></li>");
    }
    aq_text_add(out, "%s</ul></section>\n", count ? "" : "<li class=\"well\">no problem found</li>");
}

static void curve(const struct aq_board_view *view, enum aq_curve_y y, const char *title, struct aq_text *out)
{
    const struct aq_plot plot = {
        .x = AQ_CURVE_STEP, .y = y, .title = title, .width = PLOT_WIDTH, .height = PLOT_HEIGHT, .inside = true};
    const struct aq_curve *const runs[] = {&view->curve};
    if (!aq_plot_has(&view->curve, y)) return;
    aq_text_add(out, "<section class=\"plot\">");
    (void)aq_plot_svg(&plot, runs, 1, out);
    aq_text_add(out, "</section>\n");
}

/* Seconds of one colour in a rank's step; 0: it has none of that. */
static double part_of(double link_wait, double cache_wait, double value, enum aq_board_part part)
{
    if (!isfinite(value)) return 0;
    if (part != AQ_BOARD_WAIT) return value;
    return value - fmax(link_wait, 0) - fmax(cache_wait, 0); /* those two have their own colours */
}

/* Of a rank's step as a bar: what is not in it is other work (data, copies). */
static void bar(const struct aq_board_rank *rank, struct aq_text *out)
{
    double at = 0;
    aq_text_add(out, "<svg class=\"bar\" viewBox=\"0 0 %d 20\" preserveAspectRatio=\"none\" role=\"img\">", BAR_WIDTH);
    for (int i = 0; rank->seconds > 0 && i < BAR_PARTS; i++) {
        const double value = part_of(rank->parts[AQ_BOARD_LINK_WAIT], rank->parts[AQ_BOARD_CACHE_WAIT],
                                     rank->parts[bar_parts[i].part], bar_parts[i].part);
        const double left = BAR_WIDTH - at, width = fmin(value / rank->seconds * BAR_WIDTH, left);
        if (!(width > 0)) continue;
        aq_text_add(out, "<rect class=\"%s\" x=\"%.1f\" width=\"%.1f\" height=\"20\"><title>%s %.0f %%</title></rect>",
                    bar_parts[i].colour, at, width, bar_parts[i].name, width / BAR_WIDTH * 100);
        at += width;
    }
    aq_text_add(out, "</svg>");
}

/* The last steps of a rank, one behind the other, to scale; in each the parts in the order of the key. */
static void track(const struct aq_board_view *view, uint32_t r, uint64_t first, double all, struct aq_text *out)
{
    double begin = 0;
    aq_text_add(out, "<svg class=\"bar\" viewBox=\"0 0 %d 20\" preserveAspectRatio=\"none\" role=\"img\">", BAR_WIDTH);
    for (uint64_t step = first; step <= view->step; step++) {
        const uint32_t place = (uint32_t)(step % AQ_BOARD_STEPS);
        const struct aq_board_past *past = &view->rank[r].past[place];
        const double end = begin + view->past[place].seconds / all * BAR_WIDTH;
        double at = begin;
        for (int i = 0; i < BAR_PARTS; i++) {
            const double value =
                part_of((double)past->parts[AQ_BOARD_LINK_WAIT], (double)past->parts[AQ_BOARD_CACHE_WAIT],
                        (double)past->parts[bar_parts[i].part], bar_parts[i].part);
            const double width = fmin(value / all * BAR_WIDTH, end - at);
            if (!(width >= 0.05)) continue;
            aq_text_add(out, "<rect class=\"%s\" x=\"%.1f\" width=\"%.1f\" height=\"20\"/>", bar_parts[i].colour, at,
                        width);
            at += width;
        }
        aq_text_add(out, "<path class=\"edge\" d=\"M%.1f 0v20\"><title>step %llu: %.4g s</title></path>", end,
                    (unsigned long long)step, view->past[place].seconds);
        begin = end;
    }
    aq_text_add(out, "</svg>");
}

static void timeline(const struct aq_board_view *view, struct aq_text *out)
{
    char name[AQ_BOARD_NAME_BYTES], length[AQ_TEXT_NUMBER];
    double all = 0;
    uint64_t first = view->step + 1;
    for (; first > 1 && view->step + 2 - first <= AQ_BOARD_STEPS; first--) {
        const uint32_t place = (uint32_t)((first - 1) % AQ_BOARD_STEPS);
        if (view->past[place].step != first - 1 || !(view->past[place].seconds > 0)) break;
        all += view->past[place].seconds;
    }
    if (!(all > 0)) return;
    const uint32_t rows = view->ranks < TRACKS_MAX ? view->ranks : TRACKS_MAX;
    aq_text_add(out,
                "<section><h2>Steps %llu to %llu <small>%s; within a step by kind, not by time</small></h2>"
                "<table class=\"tracks\">",
                (unsigned long long)first, (unsigned long long)view->step, span(all, length));
    for (uint32_t r = 0; r < rows; r++) {
        aq_text_add(out, "<tr><td>%s</td><td>", aq_board_rank_name(view, r, name));
        track(view, r, first, all, out);
        aq_text_add(out, "</td></tr>\n");
    }
    aq_text_add(out, "</table>");
    if (rows < view->ranks) aq_text_add(out, "<small>the first %u of %u stages</small>", rows, view->ranks);
    aq_text_add(out, "</section>\n");
}

/* One way over a link: what it carried in the last step. */
static void way(struct aq_text *out, const char *class, const char *name, double bytes, double seconds)
{
    if (bytes > 0 && seconds > 0)
        aq_text_add(out, "<span class=\"%s\">%s %.3g Mbit/s</span>", class, name, bytes * 8e-6 / seconds);
    else
        aq_text_add(out, "<span class=\"%s\">%s &ndash;</span>", class, name);
}

/* The link from rank r to the next one, and which of its two stages waits longer for it. */
static void map_link(const struct aq_board_view *view, uint32_t r, struct aq_text *out)
{
    const struct aq_board_rank *from = &view->rank[r], *to = &view->rank[r + 1];
    const double before = aq_board_link_wait(from, false), behind = aq_board_link_wait(to, true);
    const bool second = !(before > behind);
    const double share = second ? behind : before;
    const uint32_t P = view->stages;
    aq_text_add(out, "<div class=\"link%s\">", share > LINK_BUSY ? " busy" : share > LINK_DOUBT ? " doubtful" : "");
    way(out, "f", "forward", from->bytes[AQ_BOARD_FORWARD], from->seconds);
    way(out, "b", "backward", to->bytes[AQ_BOARD_BACKWARD], to->seconds);
    if (share >= 0.005)
        aq_text_add(out, "<small>stage %u waits for it %.0f %%</small>", (r + second) % P, share * 100);
    else if (isfinite(share))
        aq_text_add(out, "<small>no stage waits for it</small>");
    aq_text_add(out, "</div>");
}

static void map(const struct aq_board_view *view, struct aq_text *out)
{
    char name[AQ_BOARD_NAME_BYTES];
    if (view->stages < 2) return;
    const uint32_t rows = view->ranks < TRACKS_MAX ? view->ranks : TRACKS_MAX;
    aq_text_add(out, "<section><h2>Links' map</h2>");
    for (uint32_t r = 0; r < rows; r++) {
        const struct aq_board_rank *rank = &view->rank[r];
        const double works = rank->parts[AQ_BOARD_COMPUTE] / rank->seconds;
        if (r % view->stages == 0) aq_text_add(out, "%s<div class=\"map\">", r > 0 ? "</div>\n" : "");
        aq_text_add(out, "<div class=\"node\"><b>%s</b>", aq_board_rank_name(view, r, name));
        if (*rank->host) {
            aq_text_add(out, "<span>");
            aq_text_xml(out, rank->host);
            aq_text_add(out, "</span>");
        }
        aq_text_add(out, "<small>%s</small>", aq_board_does(rank));
        if (isfinite(works)) aq_text_add(out, "<small>computes %.0f %%</small>", fmin(works, 1) * 100);
        aq_text_add(out, "</div>");
        if (r % view->stages + 1 < view->stages && r + 1 < view->ranks) map_link(view, r, out);
    }
    aq_text_add(out, "</div>");
    if (rows < view->ranks) aq_text_add(out, "<small>the first %u of %u stages</small>", rows, view->ranks);
    aq_text_add(out, "</section>\n");
}

static void stages(const struct aq_board_view *view, struct aq_text *out)
{
    char name[AQ_BOARD_NAME_BYTES], since[AQ_TEXT_NUMBER];
    aq_text_add(out, "<section><h2>Stages</h2><p class=\"key\">");
    for (int i = 0; i < BAR_PARTS; i++)
        aq_text_add(out, "<span class=\"%s\">%s</span> ", bar_parts[i].colour, bar_parts[i].name);
    aq_text_add(out,
                "</p><div class=\"wide\"><table><tr><th>stage</th><th class=\"barhead l\">the last step's time</th>"
                "<th class=\"l\">does</th><th>since</th><th>step</th><th>process</th></tr>\n");
    for (uint32_t r = 0; r < view->ranks; r++) {
        const struct aq_board_rank *rank = &view->rank[r];
        aq_text_add(out, "<tr><td>%s</td><td>", aq_board_rank_name(view, r, name));
        bar(rank, out);
        aq_text_add(out, "</td><td class=\"l\">%s</td><td>%s</td><td>%llu</td><td>", aq_board_does(rank),
                    rank->lives ? span(rank->phase_s, since) : "&ndash;", (unsigned long long)rank->step);
        if (rank->pid > 0)
            aq_text_add(out, "%d</td></tr>\n", rank->pid);
        else
            aq_text_add(out, "&ndash;</td></tr>\n");
    }
    aq_text_add(out, "</table></div></section>\n");
}

static void cell_rate(struct aq_text *out, double bytes, double seconds)
{
    if (bytes > 0 && seconds > 0)
        aq_text_add(out, "<td>%.2f</td>", bytes * 8e-6 / seconds);
    else
        aq_text_add(out, "<td>&ndash;</td>");
}

static void links(const struct aq_board_view *view, struct aq_text *out)
{
    char name[AQ_BOARD_NAME_BYTES], size[AQ_TEXT_NUMBER];
    aq_text_add(out,
                "<section><h2>Links</h2><div class=\"wide\"><table><tr><th>from</th><th>forward Mbit/s</th>"
                "<th>backward Mbit/s</th><th>gradients Mbit/s</th><th>sent in all</th><th>c_Q</th><th>|a-m|/|a|</th>"
                "<th>|g-Q|/|g|</th></tr>\n");
    for (uint32_t r = 0; r < view->ranks; r++) {
        static const enum aq_board_gauge shown[] = {AQ_BOARD_CQ, AQ_BOARD_DELTA, AQ_BOARD_GRADIENT_ERROR};
        const struct aq_board_rank *rank = &view->rank[r];
        double all = 0;
        aq_text_add(out, "<tr><td>%s</td>", aq_board_rank_name(view, r, name));
        for (int i = 0; i < AQ_BOARD_WAYS; i++) {
            cell_rate(out, rank->bytes[i], rank->seconds);
            all += rank->bytes_all[i];
        }
        aq_text_add(out, "<td>%s</td>", aq_text_size((uint64_t)all, size));
        for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
            const double value = rank->gauges[shown[i]];
            if (isfinite(value))
                aq_text_add(out, "<td>%.4f</td>", value);
            else
                aq_text_add(out, "<td>&ndash;</td>");
        }
        aq_text_add(out, "</tr>\n");
    }
    aq_text_add(out, "</table></div></section>\n");
}

/* ---- a split-server ---- */

static void cell(struct aq_text *out, double value)
{
    if (isfinite(value))
        aq_text_add(out, "<td>%.4f</td>", value);
    else
        aq_text_add(out, "<td>&ndash;</td>");
}

static void clients(const struct aq_board_split *split, struct aq_text *out)
{
    char size[AQ_TEXT_NUMBER];
    bool noised = false; /* some client has an epsilon */
    for (uint32_t i = 0; i < split->clients; i++)
        noised |= isfinite(split->client[i].epsilon);
    aq_text_add(out,
                "<section><h2>Clients</h2><div class=\"wide\"><table><tr><th>client</th><th class=\"l\">does</th>"
                "<th>turns</th><th>missed</th><th>late</th><th>samples</th><th>sent</th><th>held-out loss</th>"
                "<th>accuracy</th>%s</tr>\n",
                noised ? "<th>epsilon</th>" : "");
    for (uint32_t i = 0; i < split->clients; i++) {
        const struct aq_board_client *client = &split->client[i];
        aq_text_add(out, "<tr class=\"%s\"><td>", client->trains ? "trains" : client->here ? "here" : "away");
        aq_text_xml(out, client->name);
        aq_text_add(out, "</td><td class=\"l\">");
        aq_text_xml(out, client->does);
        aq_text_add(out, "</td><td>%u</td><td>%u</td><td>%u</td><td>%llu</td><td>%s</td>", client->turns,
                    client->missed, client->late, (unsigned long long)client->samples,
                    client->bytes > 0 ? aq_text_size((uint64_t)client->bytes, size) : "&ndash;");
        cell(out, client->loss);
        cell(out, client->accuracy);
        if (noised) cell(out, client->epsilon);
        aq_text_add(out, "</tr>\n");
    }
    aq_text_add(out, "</table></div></section>\n");
}

/* The mean of those that have a figure; of how many, where some have none. */
static void client_mean(struct aq_text *out, const char *name, int digits, double sum, uint32_t known, uint32_t clients)
{
    if (known == 0 || known == clients)
        figure(out, name, digits, known ? sum / known : (double)NAN);
    else
        aq_text_add(out, "<div><dt>%s</dt><dd>%.*g (%u of %u clients)</dd></div>", name, digits, sum / known, known,
                    clients);
}

static void split_body(const struct aq_board_view *view, struct aq_text *out)
{
    const struct aq_board_split *split = &view->split;
    char sent[AQ_TEXT_NUMBER];
    double bytes = 0, right = 0, loss = 0, turns = 0;
    uint32_t here = 0, losses = 0, accuracies = 0;
    for (uint32_t i = 0; i < split->clients; i++) {
        const struct aq_board_client *client = &split->client[i];
        here += client->here;
        turns += client->turns;
        if (isfinite(client->bytes)) bytes += client->bytes;
        losses += isfinite(client->loss);
        accuracies += isfinite(client->accuracy);
        if (isfinite(client->loss)) loss += client->loss;
        if (isfinite(client->accuracy)) right += client->accuracy;
    }
    const uint32_t had = split->round > 0 ? split->round - 1 : 0;
    head_of(view, (double)had / split->rounds, out);
    aq_text_add(out, "<div><dt>round</dt><dd>%u / %u</dd></div><div><dt>mode</dt><dd>%s</dd></div>",
                split->round < split->rounds ? split->round : split->rounds, split->rounds, split->mode);
    aq_text_add(out, "<div><dt>clients here</dt><dd>%u / %u</dd></div>", here, split->clients);
    figure(out, "turns trained", 6, turns);
    aq_text_add(out, "<div><dt>sent</dt><dd>%s</dd></div>", aq_text_size((uint64_t)bytes, sent));
    client_mean(out, "held-out loss, mean", 5, loss, losses, split->clients);
    client_mean(out, "accuracy, mean", 4, right, accuracies, split->clients);
    duration(out, "up", view->up_s);
    aq_text_add(out, "</dl>\n");
    clients(split, out);
}

void aq_board_body(const struct aq_board_view *view, struct aq_text *out)
{
    if (view->split.rounds > 0) {
        split_body(view, out);
        return;
    }
    head(view, out);
    health(view, out);
    aq_text_add(out, "<div class=\"plots\">");
    curve(view, AQ_CURVE_LOSS, "loss", out);
    curve(view, AQ_CURVE_CQ, "c_Q of the worst cut", out);
    aq_text_add(out, "</div>\n");
    if (view->ranks > 0) {
        map(view, out);
        stages(view, out);
        timeline(view, out);
        links(view, out);
    }
}

void aq_board_page(const struct aq_board_view *view, struct aq_text *out)
{
    aq_text_add(out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>");
    aq_text_xml(out, view->job);
    aq_text_add(out,
                " &ndash; aqpipe</title><link rel=\"stylesheet\" href=\"page.css\">"
                "<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>"
                "<script src=\"page.js\" defer></script></head><body>\n"
                "<p id=\"gone\">%s</p>\n<main>\n",
                view->split.rounds > 0
                    ? "The split-server has not answered since <span></span>: it has ended, or cannot be reached. Its "
                      "output on its machine shows which; the same <code>aqpipe split-server</code> continues it."
                    : "The launcher has not answered since <span></span>: it has ended, or cannot be reached. "
                      "<code>aqpipe status RUN</code> on its machine shows which.");
    aq_board_body(view, out);
    aq_text_add(out, "</main>\n<footer>aqpipe " AQ_VERSION " &middot; <a href=\"status.json\">status.json</a> &middot; "
                     "<a href=\"metrics\">metrics</a></footer></body></html>\n");
}

const char aq_board_css[] =
    ":root{color-scheme:light dark;--line:#8884;--bad:#c22;--doubt:#b70;--well:#197a3e;--page:#fff}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;max-width:1500px;padding:1rem;font:15px/1.45 "
    "system-ui,sans-serif;background:var(--page);color:#1b1b1f}\n"
    "header{display:grid;grid-template-columns:auto auto 1fr;gap:.2rem 1rem;align-items:center}\n"
    "h1{font-size:1.4rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:1.2rem 0 .4rem}\n"
    "header p{margin:0;overflow-wrap:anywhere}progress{grid-column:1/-1;width:100%;height:.6rem}\n"
    ".state{padding:.1rem .7rem;border-radius:1rem;color:#fff;background:#666;white-space:nowrap}\n"
    ".state.running,.state.done{background:var(--well)}.state.failed{background:var(--bad)}\n"
    ".state.restarting,.state.stopping{background:var(--doubt)}\n"
    "dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.5rem;margin:.8rem 0}\n"
    "dl div{border:1px solid var(--line);border-radius:.4rem;padding:.35rem .6rem;min-width:0}\n"
    "dt{opacity:.7;font-size:.8rem}dd{margin:0;font-size:1.15rem;font-variant-numeric:tabular-nums;overflow-wrap:"
    "anywhere}\n"
    ".health{list-style:none;padding:0;margin:0}.health li{border-left:4px solid var(--well);padding:.2rem "
    ".7rem;margin:.3rem 0}\n"
    ".health .bad{border-color:var(--bad)}.health .doubtful{border-color:var(--doubt)}small{opacity:.75}\n"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1rem}\n"
    ".plot svg{width:100%;height:auto;display:block}svg text{fill:currentColor}\n"
    "svg .g{stroke:currentColor;stroke-opacity:.13;fill:none}\n"
    ".wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\n"
    "th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid var(--line);white-space:nowrap}\n"
    "th:first-child,td:first-child,.l{text-align:left}\n"
    ".barhead{width:45%;min-width:12rem}.bar{width:100%;min-width:12rem;height:1rem;display:block;background:#8882}\n"
    ".c0{fill:#0072b2}.c1{fill:#56b4e9}.c2{fill:#009e73}.c3{fill:#cc79a7}.c4{fill:#d55e00}.c5{fill:#e69f00}.c6{fill:#"
    "999}\n"
    ".key span{display:inline-block;margin-right:.8rem}.key "
    "span::before{content:\"\";display:inline-block;width:.8em;\n"
    "height:.8em;margin-right:.3em;border-radius:2px;background:#999}\n"
    ".key .c0::before{background:#0072b2}.key .c1::before{background:#56b4e9}.key .c2::before{background:#009e73}\n"
    ".tracks td:last-child{width:99%}.edge{stroke:var(--page);stroke-width:1;vector-effect:non-scaling-stroke}\n"
    ".map{display:flex;flex-wrap:wrap;row-gap:.6rem;margin:.4rem 0}.map small{white-space:nowrap}\n"
    ".node,.link{display:flex;flex-direction:column;justify-content:center}\n"
    ".node{border:1px solid var(--line);border-radius:.4rem;padding:.35rem .7rem;min-width:9rem}\n"
    ".link{flex:1;min-width:11rem;max-width:22rem;text-align:center;font-variant-numeric:tabular-nums}\n"
    ".link .f{border-bottom:3px solid var(--well);padding-bottom:.15rem}.f::after{content:\" \\2192\"}"
    ".b::before{content:\"\\2190\\00a0\"}\n"
    ".link.busy .f{border-color:var(--bad)}.link.doubtful .f{border-color:var(--doubt)}\n"
    "h2 small{font-weight:normal}.away{opacity:.55}.trains td:first-child{font-weight:600}\n"
    ".key .c3::before{background:#cc79a7}.key .c4::before{background:#d55e00}.key .c5::before{background:#e69f00}\n"
    "#gone{display:none;background:var(--bad);color:#fff;padding:.4rem .8rem;margin:0 0 1rem;border-radius:.3rem}\n"
    ".gone #gone{display:block}.gone "
    "main{opacity:.5}footer{margin-top:1.5rem;opacity:.7;font-size:.85rem}a{color:inherit}\n"
    "@media(prefers-color-scheme:dark){body{color:#e6e6ea}:root{--page:#16171b;--bad:#e5484d;--doubt:#d98b14}.plot "
    "path,.plot circle{filter:brightness(1.5)}}\n"
    "@media(max-width:40rem){header{grid-template-columns:1fr auto}header p:nth-of-type(2){grid-column:1/-1}\n"
    "dl{grid-template-columns:repeat(auto-fit,minmax(6.5rem,1fr))}.long{grid-column:span 2}\n"
    ".plot text{font-size:22px}.plot .side,.plot .note{display:none}\n"
    ".map{flex-direction:column}.link{max-width:none;padding:.3rem 0;border-left:3px solid var(--well);"
    "margin-left:1.5rem}\n"
    ".link .f{border:0}.link.busy{border-color:var(--bad)}.link.doubtful{border-color:var(--doubt)}\n"
    ".f::after{content:\" \\2193\"}.b::before{content:\"\\2191\\00a0\"}}\n";

const char aq_board_js[] =
    "'use strict';\n"
    "const main = document.querySelector('main'), since = document.querySelector('#gone span');\n"
    "async function turn() {\n"
    "  try {\n"
    "    const answer = await fetch('body', {cache: 'no-store', signal: AbortSignal.timeout(8000)});\n"
    "    if (!answer.ok) throw new Error(answer.status);\n"
    "    main.innerHTML = await answer.text();\n"
    "    document.body.classList.remove('gone');\n"
    "  } catch (error) {\n"
    "    if (!document.body.classList.contains('gone')) since.textContent = new Date().toLocaleTimeString();\n"
    "    document.body.classList.add('gone');\n"
    "  }\n"
    "  setTimeout(turn, document.hidden ? 10000 : 2000);\n"
    "}\n"
    "setTimeout(turn, 2000);\n";
