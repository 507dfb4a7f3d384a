/* message_page.c -- the table of messages for people: docs/MESSAGES.md. See message.h. */
#include <stdio.h>
#include <string.h>

#include "message_table.h"
#include "runtime_text.h"

static const char *const ends[AQ_ENDS] = {
    [AQ_END_LAUNCHER] = "launcher",
    [AQ_END_DAEMON] = "daemon",
    [AQ_END_WORKER] = "worker",
    [AQ_END_CLIENT] = "client of split learning",
    [AQ_END_SERVER] = "server of split learning",
};

/* In the order of the page. */
static const struct way {
    enum aq_message_end from, to;
} ways[] = {
    {AQ_END_LAUNCHER, AQ_END_DAEMON}, {AQ_END_DAEMON, AQ_END_LAUNCHER}, {AQ_END_LAUNCHER, AQ_END_WORKER},
    {AQ_END_WORKER, AQ_END_LAUNCHER}, {AQ_END_CLIENT, AQ_END_SERVER},   {AQ_END_SERVER, AQ_END_CLIENT},
};

static void add_states(struct aq_text *text, const struct aq_message_row *row)
{
    bool any = false;
    if (row->states == 0) return;
    aq_text_add(text, "\n\nAllowed while the %s ", ends[row->from]);
    for (int i = 0; i < AQ_STATES; i++) {
        if (!(row->states & 1u << i)) continue;
        aq_text_add(text, "%s%s", any ? ", or " : "", aq_message_state_text((enum aq_message_state)i));
        any = true;
    }
    aq_text_add(text, ".");
}

static void add_field(struct aq_text *text, const struct aq_message_field *field)
{
    char due[160];
    aq_message_due(field, NULL, due, sizeof due);
    aq_text_add(text, "| `%s` | %s | %s | ", field->name, due, field->needed ? "yes" : "");
    aq_text_cell(text, field->help);
    aq_text_add(text, " |\n");
}

static void add_message(struct aq_text *text, const struct aq_message_row *row)
{
    aq_text_add(text, "\n### `\"%s\":\"%s\"`\n\n%s.", row->key, row->word, row->help);
    add_states(text, row);
    if (row->use & AQ_USE_KEPT)
        aq_text_add(text,
                    "\n\nThe line is kept: it has at most %d fields, each a number, true, false, null or a text of at "
                    "most %d characters.",
                    AQ_MESSAGE_KEPT_FIELDS, AQ_MESSAGE_NAME_CHARS);
    if (row->use & AQ_USE_GUEST) aq_text_add(text, "\n\nIn split learning it also goes to a client's daemon.");
    aq_text_add(text, "\n");
    if (row->count == 0) return;
    aq_text_add(text, "\n| field | what it is | needed | meaning |\n|---|---|---|---|\n");
    for (uint32_t i = 0; i < row->count; i++)
        add_field(text, &row->fields[i]);
}

enum aq_status aq_message_page(char **out)
{
    struct aq_text text = {0};
    aq_text_add(&text,
                "# Control messages\n\n"
                "Made from `runtime/message/messages.def` by `aqpipe help messages`; a test checks that it is up to "
                "date.\n\n"
                "[CONTROL.md](CONTROL.md) has the channel, the order of messages and what follows from them. Each "
                "message is a line of JSON. A request has `op` and goes down;\na report has `event` and goes up. A "
                "reader ignores fields that it does not know.\n\n"
                "A known field of another type, or out of its bounds, is a protocol error, and so is a message in a "
                "state that does not allow it. A field that may be\nmissing may also be null.\n");
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        aq_text_add(&text, "\n## From %s to %s\n", ends[ways[w].from], ends[ways[w].to]);
        for (int i = 0; i < AQ_MESSAGES; i++) {
            const struct aq_message_row *row = aq_message_row((enum aq_message_id)i);
            if (row->from == ways[w].from && row->to == ways[w].to) add_message(&text, row);
        }
    }
    return aq_text_take(&text, out);
}
