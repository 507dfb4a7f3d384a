/* main_aqpiped.c -- the stage-scheduler daemon's command line. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "daemon.h"
#include "net/endpoint.h"
#include "net/tls.h"
#include "security.h"

static const char usage[] =
    "usage: aqpiped --listen HOST:PORT [--keys DIR [--host NAME]] [--token-file FILE [--insecure]]\n"
    "               [--allow-run DIR]... [--allow-data DIR]... [--max-memory BYTES] [--port-file FILE]\n"
    "\n"
    "Starts and supervises the stage workers of one job at a time on this machine, for `aqpipe launch` elsewhere. A "
    "job on\n"
    "this machine alone needs no daemon: `aqpipe launch` starts a private one.\n"
    "\n"
    "  --listen HOST:PORT   where launchers connect; port 0 lets the system choose. Loopback only, unless there are "
    "keys\n"
    "  --keys DIR           authority.pem, daemon-HOST.pem and the stage-N.pem of the stages that run here (aqpipe "
    "keys\n"
    "                       bundle): mutual TLS 1.3 with launchers and between stages\n"
    "  --host NAME          which daemon-NAME.pem is this host's, where there are several: what launchers dial\n"
    "  --token-file FILE    first line: a secret of at least 16 bytes that launchers must hold, too; mode 600\n"
    "  --insecure           take a token without keys on any address. The token says who begins to talk; whoever is on "
    "the\n"
    "                       way can read and change all that follows, and so run what he likes as this user\n"
    "  --allow-run DIR      runs, checkpoints and caches may lie below DIR; may be given again. With one of these two, "
    "the\n"
    "                       kernel (Landlock) keeps daemon and workers from all else but programs and devices\n"
    "  --allow-data DIR     data, weights and tokenizers may be read below DIR; may be given again\n"
    "  --max-memory BYTES   of each worker (RLIMIT_DATA); also 512M, 16G. A plan that wants more is refused\n"
    "  --port-file FILE     write the port there once listening\n"
    "  --fd N               serve the connected socket N and end with it (what `aqpipe launch` does)\n"
    "  --help, --version\n"
    "\n"
    "AQPIPE_WORKER names another program to run as `worker` (the default is the aqpipe beside this program).\n"
    "Whoever holds the token runs jobs as the user of this daemon. Make one with:\n"
    "  (umask 077; head -c 32 /dev/urandom | base64 > token)\n";

/* The program `name` beside this one. */
static int beside(const char *name, char *path, size_t bytes)
{
    const ssize_t count = readlink("/proc/self/exe", path, bytes - 1);
    if (count <= 0) return -1;
    path[count] = 0;
    char *slash = strrchr(path, '/');
    if (!slash || (size_t)(slash + 1 - path) + strlen(name) >= bytes) return -1;
    memcpy(slash + 1, name, strlen(name) + 1);
    return 0;
}

static int wrong(const char *text)
{
    fprintf(stderr, "aqpiped: %s\n", text);
    return 2;
}

/* The workers find the folder in their environment; a private daemon's use that of the manifest. */
static int share_keys(const char *keys)
{
    static char path[AQ_TLS_PATH_BYTES];
    if (!keys) return unsetenv(AQ_SECURITY_WORKER_KEYS);
    if (!realpath(keys, path)) return -1;
    return setenv(AQ_SECURITY_WORKER_KEYS, path, 1);
}

/* Which host is this? Who was not told looks at --listen, and at what keys there are. */
static enum aq_status open_keys(struct aq_daemon_config *config, const char *keys, const char *host)
{
    struct aq_endpoint endpoint;
    char listen[AQ_ENDPOINT_NAME_BYTES] = "", name[AQ_ENDPOINT_NAME_BYTES] = "";
    const char *why = "";
    if (config->listen && aq_endpoint_parse(config->listen, &endpoint, &why) == AQ_OK)
        (void)aq_endpoint_identity(&endpoint, listen);
    if (host && (aq_endpoint_parse_host(host, &endpoint, &why) != AQ_OK || !aq_endpoint_identity(&endpoint, name)))
        return aq_fail(AQ_INVAL, "keys", "--host '%.80s' is no name of a host for certificates", host);
    return aq_tls_open_daemon(keys, host ? name : NULL, listen, &config->tls);
}

/* "512M": false where it is no size. */
static bool size_of(const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    const char *unit = *end ? strchr(units, *end) : NULL;
    const int shift = unit ? 10 * (int)(unit + 1 - units) : 0;
    if (errno != 0 || end == text || text[0] == '-' || (*end && (!unit || end[1])) || value == 0 ||
        value > UINT64_MAX >> shift)
        return false;
    *out = value << shift;
    return true;
}

static int serve(struct aq_daemon_config *config, const char *token_file, const char *keys, const char *host)
{
    static char program[4096];
    config->worker = getenv("AQPIPE_WORKER");
    if (!config->worker && beside("aqpipe", program, sizeof program) == 0) config->worker = program;
    if (!config->worker || access(config->worker, X_OK) != 0) return wrong("there is no aqpipe beside this program");
    if (token_file && aq_token_load(token_file, &config->token) != AQ_OK) return 2;
    if (keys && open_keys(config, keys, host) != AQ_OK) return 2;
    if ((config->tls || config->token.bytes > 0) && prctl(PR_SET_DUMPABLE, 0) != 0) return wrong("prctl failed");
    if (share_keys(keys) != 0) return wrong("the environment cannot be changed");
    config->keys = getenv(AQ_SECURITY_WORKER_KEYS);
    if (config->fd >= 0) {
        /* A private daemon must not outlive its launcher nor get the terminal's Ctrl-C. */
        if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) return wrong("prctl failed");
        (void)setsid();
    }
    return aq_daemon_run(config) == AQ_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"listen", required_argument, NULL, 'l'},
                                            {"keys", required_argument, NULL, 'k'},
                                            {"token-file", required_argument, NULL, 't'},
                                            {"port-file", required_argument, NULL, 'p'},
                                            {"fd", required_argument, NULL, 'f'},
                                            {"insecure", no_argument, NULL, 'i'},
                                            {"host", required_argument, NULL, 'o'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"allow-run", required_argument, NULL, 'r'},
                                            {"allow-data", required_argument, NULL, 'd'},
                                            {"max-memory", required_argument, NULL, 'm'},
                                            {"version", no_argument, NULL, 'v'},
                                            {NULL, 0, NULL, 0}};
    static struct aq_daemon_config config = {.fd = -1};
    const char *token_file = NULL, *keys = NULL, *host = NULL;
    signal(SIGXFSZ, SIG_IGN); /* a file over its limit is a failed write (EFBIG), which has a name */
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        char *end = NULL;
        switch (option) {
        case 'l':
            config.listen = optarg;
            break;
        case 'k':
            keys = optarg;
            break;
        case 't':
            token_file = optarg;
            break;
        case 'p':
            config.port_file = optarg;
            break;
        case 'f':
            config.fd = (int)strtol(optarg, &end, 10);
            if (*end || config.fd < 3) return wrong("--fd wants the number of a descriptor, at least 3");
            break;
        case 'r':
            if (aq_confine_allow(&config.confine.run, optarg) != AQ_OK) return 2;
            break;
        case 'd':
            if (aq_confine_allow(&config.confine.data, optarg) != AQ_OK) return 2;
            break;
        case 'm':
            if (!size_of(optarg, &config.confine.memory_bytes_max)) return wrong("--max-memory wants bytes, or 512M");
            break;
        case 'o':
            host = optarg;
            break;
        case 'i':
            config.insecure = true;
            break;
        case 'h':
            fputs(usage, stdout);
            return 0;
        case 'v':
            puts("aqpiped " AQ_VERSION);
            return 0;
        default:
            return wrong("--help tells the options");
        }
    }
    if (optind < argc) return wrong("takes options only; --help tells them");
    if ((config.fd >= 0) == (config.listen != NULL))
        return wrong("either --listen HOST:PORT or --fd N; --help tells more");
    aq_log_init(-1);
    return serve(&config, token_file, keys, host);
}
