/*
 * main_wanlab.c -- the program aqpipe-wanlab, which tools/wanlab starts: the command line of the lab (wan_lab.h), its
 * --check, and changes of a running one.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "options.h"
#include "process_begin.h"
#include "wan_check.h"
#include "wan_lab.h"

static const char about[] =
    "A wide-area network on one machine: N ends, each a network namespace, and between every two of them a link with a "
    "rate, a delay, losses and a bounded queue. COMMAND runs at end 0. Nothing is left behind. Root, /dev/net/tun.";

static const char more[] =
    "End I has the address 10.79.0.(I+1) on its device wan0. Two values with a slash set the two directions of a link. "
    "Settings apply to all links; after --link A-B or --end A only to those; after --at S from that second on "
    "(docs/NETWORKS.md):\n"
    "  tools/wanlab 4 --rate 100 --rtt 80 --loss 0.1 -- bash        a shell at end 0\n"
    "  tools/wanlab 2 --rate 100/20 --at 5 --link 0-1 --loss 100/0 -- ./test     silence, one way\n"
    "  tools/wanlab exec 2 COMMAND...         in the lab: run it at end 2\n"
    "  tools/wanlab set --link 1-2 --rtt 400  in the lab: change it from now on\n"
    "Exit status: COMMAND's; 1 no lab could be made; 2 wrong usage; --check: 77 if this machine cannot have labs.";

struct asked {
    struct aq_wan_lab lab;
    bool check;
};

/* ---- settings: each is read into the newest change ---- */

static struct aq_wan_change *newest(struct asked *asked)
{
    return &asked->lab.changes[asked->lab.change_count - 1];
}

static const char *begin_change(struct asked *asked, uint64_t at_ns, int32_t from, int32_t to)
{
    if (asked->lab.change_count == AQ_WAN_CHANGES_MAX) return "too many settings at other times or links";
    asked->lab.changes[asked->lab.change_count++] = (struct aq_wan_change){.at_ns = at_ns, .from = from, .to = to};
    return NULL;
}

/* "100" or "100/20": both directions. */
static bool two_numbers(const char *text, double *ahead, double *back)
{
    char *end;
    *ahead = *back = strtod(text, &end);
    if (end == text) return false;
    if (*end == '/') {
        const char *second = end + 1;
        *back = strtod(second, &end);
        if (end == second) return false;
    }
    return *end == 0 && isfinite(*ahead) && isfinite(*back);
}

static const char *read_rules(const char *text, struct asked *asked, uint32_t what, size_t offset, double factor)
{
    struct aq_wan_change *change = newest(asked);
    double ahead, back;
    if (!two_numbers(text, &ahead, &back)) return "a number is wanted, or two with a slash, one for each direction";
    ahead *= factor;
    back *= factor;
    memcpy((char *)&change->ahead + offset, &ahead, sizeof ahead);
    memcpy((char *)&change->back + offset, &back, sizeof back);
    change->given |= what;
    return aq_wan_change_wrong(change, AQ_WAN_ENDS_MAX);
}

static const char *read_rate(const char *text, void *to)
{
    return read_rules(text, to, AQ_WAN_RATE, offsetof(struct aq_wan_rules, rate_mbps), 1);
}

static const char *read_rtt(const char *text, void *to)
{
    return read_rules(text, to, AQ_WAN_DELAY, offsetof(struct aq_wan_rules, delay_ms), strchr(text, '/') ? 1 : 0.5);
}

static const char *read_jitter(const char *text, void *to)
{
    return read_rules(text, to, AQ_WAN_JITTER, offsetof(struct aq_wan_rules, jitter_ms), 1);
}

static const char *read_loss(const char *text, void *to)
{
    return read_rules(text, to, AQ_WAN_LOSS, offsetof(struct aq_wan_rules, loss), 0.01);
}

static const char *read_queue(const char *text, void *to)
{
    return read_rules(text, to, AQ_WAN_QUEUE, offsetof(struct aq_wan_rules, queue_ms), 1);
}

static const char *read_blackhole(const char *text, void *to)
{
    struct aq_wan_change *change = newest(to);
    double ahead, back;
    if (!two_numbers(text, &ahead, &back) || ahead < 0 || back < 0 || ahead > 65535 || back > 65535)
        return "bytes are wanted, 0 (none vanish) to 65535, or two with a slash";
    change->ahead.blackhole_bytes = (uint32_t)ahead;
    change->back.blackhole_bytes = (uint32_t)back;
    change->given |= AQ_WAN_BLACKHOLE;
    return NULL;
}

static const char *read_congestion(const char *text, void *to)
{
    struct aq_wan_change *change = newest(to);
    if (strlen(text) >= sizeof change->congestion ||
        strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(text))
        return "a congestion control is wanted, such as bbr, cubic or reno";
    memcpy(change->congestion, text, strlen(text) + 1);
    change->given |= AQ_WAN_CONGESTION;
    return NULL;
}

static const char *read_at(const char *text, void *to)
{
    char *end;
    const double seconds = strtod(text, &end);
    if (end == text || (*end && strcmp(end, "s") != 0) || !(seconds >= 0 && seconds <= 1e6))
        return "give seconds after the command's start";
    return begin_change(to, (uint64_t)(seconds * 1e9), AQ_WAN_ALL, AQ_WAN_ALL);
}

static const char *read_link(const char *text, void *to)
{
    char *end, *last = NULL;
    const unsigned long from = strtoul(text, &end, 10), behind = *end == '-' ? strtoul(end + 1, &last, 10) : 0;
    if (end == text || !last || last == end + 1 || *last || from >= AQ_WAN_ENDS_MAX || behind >= AQ_WAN_ENDS_MAX ||
        from == behind)
        return "two ends are wanted, such as 1-2";
    return begin_change(to, newest(to)->at_ns, (int32_t)from, (int32_t)behind);
}

static const char *read_end(const char *text, void *to)
{
    char *end;
    const unsigned long which = strtoul(text, &end, 10);
    if (end == text || *end || which >= AQ_WAN_ENDS_MAX) return "an end is wanted, 0 to N - 1";
    return begin_change(to, newest(to)->at_ns, (int32_t)which, AQ_WAN_ALL);
}

#define SETTING(name_, value_, read_, help_)                                                                           \
    {                                                                                                                  \
        .name = (name_), .kind = AQ_OPTION_READ, .value = (value_), .read = (read_), .help = (help_)                   \
    }
#define SETTINGS                                                                                                       \
    SETTING("rate", "MBIT", read_rate, "Mbit/s of IP packets, each way; 0, the default: no limit"),                    \
        SETTING("rtt", "MS", read_rtt, "round trip, half of it each way; 0"),                                          \
        SETTING("jitter", "MS", read_jitter,                                                                           \
                "the delay wanders by so much up and down, each way; packets keep their order"),                       \
        SETTING("loss", "PERCENT", read_loss, "of packets, each way; 100: silence"),                                   \
        SETTING("queue", "MS", read_queue,                                                                             \
                "what may wait before each line, at its rate; more is dropped. The round trip, 50 or more"),           \
        SETTING("mtu-blackhole", "BYTES", read_blackhole, "bigger packets vanish without a word; 0: none"),            \
        SETTING("congestion", "NAME", read_congestion,                                                                 \
                "congestion control of connections made from then on: bbr, cubic, reno"),                              \
        SETTING("link", "A-B", read_link, "what follows is of the link between these ends"),                           \
        SETTING("end", "A", read_end, "what follows is of all links of this end"),                                     \
        SETTING("at", "S", read_at, "what follows happens S seconds after the command's start")

static const struct aq_option options[] = {
    SETTINGS,
    AQ_ROW_RANGE(U32, struct asked, lab.mtu, "mtu", "BYTES", 576, 65000, "of the ends' devices; 1500"),
    AQ_ROW(U64, struct asked, lab.seed, "seed", "N", "of losses and jitter; 1"),
    AQ_ROW(FLAG, struct asked, lab.stats, "stats", NULL,
           "print at the end what each line did, and what the lab took of a core"),
    AQ_ROW(FLAG, struct asked, check, "check", NULL, "measure a lab; no N, no COMMAND"),
    {0}};
static const struct aq_option set_options[] = {SETTINGS, {0}};

static const struct aq_command_line line = {
    "wanlab", "N [SETTINGS] -- COMMAND...\nexec I COMMAND...\nset SETTINGS\n--check", about, options, more};
static const struct aq_command_line set_line = {"wanlab set", "", "Changes the lab that this process is in.",
                                                set_options, NULL};

/* ---- what is run ---- */

static int start(char *const *command)
{
    execvp(command[0], command);
    fprintf(stderr, "wanlab: cannot run %s: %s\n", command[0], strerror(errno));
    return errno == ENOENT ? 127 : 126;
}

static int start_command(void *context)
{
    return start(context);
}

static int no_lab(void)
{
    fprintf(stderr, "wanlab: this process is in no lab: run it from the COMMAND of `tools/wanlab N ... -- COMMAND`\n");
    return AQ_EXIT_FAILED;
}

static int run_exec(int argc, char **argv)
{
    char *rest;
    if (argc < 3) return aq_options_wrong("wanlab", "exec needs an end and a command");
    const unsigned long end = strtoul(argv[1], &rest, 10);
    if (rest == argv[1] || *rest) return aq_options_wrong("wanlab", "exec: '%.80s' is no end", argv[1]);
    if (aq_wan_ends() == 0) return no_lab();
    if (end >= aq_wan_ends()) return aq_options_wrong("wanlab", "exec: ends are 0 to %u", aq_wan_ends() - 1);
    const enum aq_status status = aq_wan_enter((uint32_t)end);
    if (status == AQ_NOTFOUND) return no_lab();
    return status == AQ_OK ? start(argv + 2) : AQ_EXIT_FAILED;
}

static int run_set(int argc, char **argv)
{
    static struct asked asked;
    struct aq_arguments none;
    (void)begin_change(&asked, 0, AQ_WAN_ALL, AQ_WAN_ALL);
    const int code = aq_options_read(&set_line, argc, argv, &asked, &none);
    if (code != AQ_OPTIONS_READ) return code;
    if (none.count > 0) return aq_options_wrong(set_line.name, "'%.80s' is not a setting", none.of[0]);
    if (aq_wan_ends() == 0) return no_lab();
    for (uint32_t i = 0; i < asked.lab.change_count; i++) {
        const struct aq_wan_change *change = &asked.lab.changes[i];
        const char *wrong = aq_wan_change_wrong(change, aq_wan_ends());
        if (wrong) return aq_options_wrong(set_line.name, "%s", wrong);
        if (change->given == 0) continue;
        const enum aq_status status = aq_wan_tell(change);
        if (status == AQ_NOTFOUND) return no_lab();
        if (status != AQ_OK) return AQ_EXIT_FAILED;
    }
    return AQ_EXIT_DONE;
}

static int run_lab(struct asked *asked, const struct aq_arguments *arguments)
{
    static char *command[AQ_ARGUMENTS_MAX + 1];
    char *end;
    const unsigned long ends = arguments->count ? strtoul(arguments->of[0], &end, 10) : 0;
    if (arguments->count == 0) return aq_options_wrong(line.name, "how many ends?");
    if (end == arguments->of[0] || *end || ends < 2 || ends > AQ_WAN_ENDS_MAX)
        return aq_options_wrong(line.name, "'%.80s' is not a number of ends from 2 to %d", arguments->of[0],
                                AQ_WAN_ENDS_MAX);
    if (arguments->count == 1) return aq_options_wrong(line.name, "which command? It comes after --");
    for (uint32_t i = 0; i < asked->lab.change_count; i++) {
        const char *wrong = aq_wan_change_wrong(&asked->lab.changes[i], (uint32_t)ends);
        if (wrong) return aq_options_wrong(line.name, "%s", wrong);
    }
    for (uint32_t i = 1; i < arguments->count; i++)
        command[i - 1] = (char *)(uintptr_t)arguments->of[i];
    asked->lab.ends = (uint32_t)ends;
    asked->lab.run = start_command;
    asked->lab.context = command;
    int code = AQ_EXIT_FAILED;
    return aq_wan_lab_run(&asked->lab, &code) == AQ_OK ? code : AQ_EXIT_FAILED;
}

static int run(int argc, char **argv)
{
    static struct asked asked = {.lab = {.mtu = 1500, .seed = 1}};
    struct aq_arguments arguments;
    if (argc > 1 && strcmp(argv[1], "exec") == 0) return run_exec(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "set") == 0) return run_set(argc - 1, argv + 1);
    (void)begin_change(&asked, 0, AQ_WAN_ALL, AQ_WAN_ALL);
    const int code = aq_options_read(&line, argc, argv, &asked, &arguments);
    if (code != AQ_OPTIONS_READ) return code;
    if (asked.check && arguments.count > 0) return aq_options_wrong(line.name, "--check takes no other option");
    return asked.check ? aq_wan_check() : run_lab(&asked, &arguments);
}

int main(int argc, char **argv)
{
    aq_log_init(AQ_LOG_COMMAND);
    if (aq_process_begin() != AQ_OK) return AQ_EXIT_USAGE;
    return aq_command_end("wanlab", run(argc, argv));
}
