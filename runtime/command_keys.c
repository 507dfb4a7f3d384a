/*
 * command_keys.c -- `aqpipe keys`: make a job's authority and certificates, and show what a folder of them holds.
 *
 * (`aqpipe help keys` is about keys of a manifest.) What the files mean is net/tls.h.
 */
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "commands.h"
#include "job.h"
#include "net/tls.h"

static const char usage[] =
    "usage: aqpipe keys init DIR --job NAME --stages N [--days D] [--renew]\n"
    "       aqpipe keys show DIR\n"
    "\n"
    "init makes the authority of a job and, signed by it, one certificate with its private key for each stage, one "
    "for\n"
    "launchers and one for daemons. Peers talk to each other by mutual TLS 1.3 when both hold certificates of one\n"
    "authority, each for its own part; names of hosts do not matter. Give each host only what it needs, with mode "
    "600:\n"
    "\n"
    "  the launcher's host         authority.pem launcher.pem\n"
    "  a host of stages 2 and 3    authority.pem daemon.pem stage-2.pem stage-3.pem      (aqpiped --keys DIR)\n"
    "  one machine runs all        the folder as it is                                   (security.keys: DIR)\n"
    "\n"
    "authority-key.pem makes new certificates: keep it off the hosts that train.\n"
    "\n"
    "  --job NAME     in every certificate: 1 to 64 of A-Z a-z 0-9 . _ -\n"
    "  --stages N     certificates for stages 0 to N-1\n"
    "  --days D       how long the certificates are good (365); the authority is good for ten years\n"
    "  --renew        the folder has an authority: sign new certificates with it, for the same job\n"
    "\n"
    "show prints names, fingerprints and dates, and refuses files that others may read.\n";

static const int64_t day_s = 86400;
enum { AUTHORITY_DAYS = 3650, DAYS_DEFAULT = 365, SOON_DAYS = 14 };

struct asked {
    const char *job, *folder;
    uint32_t stages, days;
    bool renew;
};

static bool number(const char *text, uint32_t most, uint32_t *out)
{
    char *end;
    const unsigned long value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || value < 1 || value > most) return false;
    *out = (uint32_t)value;
    return true;
}

static int parse(struct asked *asked, int argc, char **argv)
{
    static const struct option options[] = {{"job", required_argument, NULL, 'j'},
                                            {"stages", required_argument, NULL, 's'},
                                            {"days", required_argument, NULL, 'd'},
                                            {"renew", no_argument, NULL, 'r'},
                                            {NULL, 0, NULL, 0}};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'j':
            asked->job = optarg;
            break;
        case 's':
            if (!number(optarg, AQ_JOB_RANKS_MAX, &asked->stages))
                return aq_usage("keys", "--stages wants 1 to %d", AQ_JOB_RANKS_MAX);
            break;
        case 'd':
            if (!number(optarg, AUTHORITY_DAYS, &asked->days))
                return aq_usage("keys", "--days wants 1 to %d", AUTHORITY_DAYS);
            break;
        case 'r':
            asked->renew = true;
            break;
        default:
            return aq_usage("keys", "the options are wrong");
        }
    }
    if (optind + 1 != argc) return aq_usage("keys", optind == argc ? "which folder?" : "one folder, please");
    asked->folder = argv[optind];
    return AQ_EXIT_DONE;
}

/* The clocks of hosts differ: what is made now is good since yesterday. */
static enum aq_status make_all(const struct asked *asked)
{
    const int64_t now = (int64_t)time(NULL), from = now - day_s, until = now + (int64_t)asked->days * day_s;
    if (!asked->renew)
        AQ_TRY(aq_tls_make_authority(asked->folder, asked->job, from, now + (int64_t)AUTHORITY_DAYS * day_s));
    for (uint32_t s = 0; s < asked->stages; s++)
        AQ_TRY(aq_tls_make(asked->folder, AQ_TLS_STAGE, s, from, until));
    AQ_TRY(aq_tls_make(asked->folder, AQ_TLS_LAUNCHER, 0, from, until));
    return aq_tls_make(asked->folder, AQ_TLS_DAEMON, 0, from, until);
}

static void date(int64_t when, char out[16])
{
    struct tm parts;
    const time_t seconds = (time_t)when;
    if (!gmtime_r(&seconds, &parts) || strftime(out, 16, "%Y-%m-%d", &parts) == 0) snprintf(out, 16, "?");
}

/* One file, where it is there. */
static enum aq_status show_file(const char *folder, const char *file)
{
    char path[AQ_TLS_PATH_BYTES], uri[AQ_TLS_URI_BYTES], from[16], until[16];
    struct aq_tls_facts facts;
    const int64_t now = (int64_t)time(NULL);
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) return AQ_INVAL;
    if (access(path, F_OK) != 0) return AQ_NOTFOUND;
    AQ_TRY(aq_tls_describe(path, &facts));
    date(facts.from, from);
    date(facts.until, until);
    printf("%-14s %-36s %s to %s%s\n%14s SHA-256 %s%s\n", file, aq_tls_uri(&facts.name, uri), from, until,
           now > facts.until                                ? "  EXPIRED"
           : now < facts.from                               ? "  not yet good"
           : facts.until - now < (int64_t)SOON_DAYS * day_s ? "  expires soon"
                                                            : "",
           "", facts.print, facts.key ? ", with its private key" : "");
    return AQ_OK;
}

static enum aq_status check_authority_key(const char *folder)
{
    char path[AQ_TLS_PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/authority-key.pem", folder) >= (int)sizeof path) return AQ_INVAL;
    return access(path, F_OK) == 0 ? aq_tls_check_key(path) : AQ_OK;
}

static int show(const char *folder)
{
    char file[32];
    int shown = 0, wrong = 0;
    for (uint32_t i = 0; i < 3 + AQ_JOB_RANKS_MAX; i++) {
        static const enum aq_tls_role firsts[] = {AQ_TLS_AUTHORITY, AQ_TLS_LAUNCHER, AQ_TLS_DAEMON};
        const enum aq_status status =
            show_file(folder, i < 3 ? aq_tls_file(firsts[i], 0, file) : aq_tls_file(AQ_TLS_STAGE, i - 3, file));
        shown += status == AQ_OK;
        wrong += status != AQ_OK && status != AQ_NOTFOUND;
    }
    wrong += check_authority_key(folder) != AQ_OK;
    if (shown + wrong == 0)
        fprintf(stderr, "aqpipe keys: there are no keys in %s (aqpipe keys init makes them)\n", folder);
    return shown > 0 && wrong == 0 ? AQ_EXIT_DONE : AQ_EXIT_FAILED;
}

int aq_command_keys(int argc, char **argv)
{
    struct asked asked = {.days = DAYS_DEFAULT};
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        fputs(usage, argc < 2 ? stderr : stdout);
        return argc < 2 ? AQ_EXIT_USAGE : AQ_EXIT_DONE;
    }
    const bool init = strcmp(argv[1], "init") == 0;
    if (!init && strcmp(argv[1], "show") != 0) return aq_usage("keys", "init or show, not '%s'", argv[1]);
    const int code = parse(&asked, argc - 1, argv + 1);
    if (code != AQ_EXIT_DONE) return code;
    if (!init) return show(asked.folder);
    if (!asked.job == !asked.renew)
        return aq_usage("keys", "init wants --job NAME, or --renew for a folder that has an authority");
    if (asked.stages == 0) return aq_usage("keys", "init wants --stages N");
    if (make_all(&asked) != AQ_OK) return AQ_EXIT_FAILED;
    return show(asked.folder);
}
