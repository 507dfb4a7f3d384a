/* main_aqpiped.c -- the stage-scheduler daemon's command line. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "commands.h"
#include "control_socket.h"
#include "daemon.h"
#include "net/endpoint.h"
#include "net/relay.h"
#include "net/tls.h"
#include "options.h"
#include "process_begin.h"
#include "relay.h"
#include "security.h"
#include "stop_signals.h"

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

/* The name of this host: --host, else by --listen and the present keys. */
static enum aq_status open_keys(struct aq_daemon_config *config, const char *keys, const char *host)
{
    struct aq_endpoint endpoint;
    char listen[AQ_ENDPOINT_NAME_BYTES] = "", name[AQ_ENDPOINT_NAME_BYTES] = "";
    const char *why = "";
    if (config->listen && aq_endpoint_parse(config->listen, &endpoint, &why) == AQ_OK)
        (void)aq_endpoint_identity(&endpoint, listen);
    if (host && (aq_endpoint_parse_host(host, &endpoint, &why) != AQ_OK || !aq_endpoint_identity(&endpoint, name)))
        return aq_fail(AQ_INVAL, "keys", "--host '%.80s' is not a host name for certificates", host);
    return aq_tls_open_daemon(keys, host ? name : NULL, listen, &config->tls);
}

struct asked {
    struct aq_daemon_config config;
    const char *token_file, *keys, *host, *own_address;
    struct aq_relay_config relay; /* rate_mbps: -1 until it is set */
    bool version, stdio;
};

static int serve(struct asked *asked)
{
    static char program[4096];
    struct aq_daemon_config *config = &asked->config;
    const char *token_file = asked->token_file, *keys = asked->keys;
    pid_t child = 0;
    if (asked->stdio && aq_relay_split(&config->fd, &child) != AQ_OK) return 1;
    if (child > 0) return aq_relay_run(config->fd, child);
    config->worker = getenv("AQPIPE_WORKER");
    if (!config->worker && aq_program_beside("aqpipe", program)) config->worker = program;
    if (!config->worker || access(config->worker, X_OK) != 0) return wrong("there is no aqpipe next to this program");
    if (token_file && aq_token_load(token_file, &config->token) != AQ_OK) return 2;
    if (keys && open_keys(config, keys, asked->host) != AQ_OK) return 2;
    if ((config->tls || config->token.bytes > 0) && prctl(PR_SET_DUMPABLE, 0) != 0) return wrong("prctl failed");
    if (share_keys(keys) != 0) return wrong("the environment cannot be changed");
    config->keys = getenv(AQ_SECURITY_WORKER_KEYS);
    config->confine.gpus = access("/dev/nvidiactl", F_OK) == 0;
    if (config->fd >= 0) {
        /* A private daemon must not outlive its launcher nor get the terminal's Ctrl-C. */
        if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) return wrong("prctl failed");
        (void)setsid();
    }
    return aq_exit_of(aq_daemon_run(config));
}

/* Two stages that both dial meet here: no job, no key, no worker. */
static int serve_relay(const struct asked *asked)
{
    enum { DESCRIPTORS = AQ_RELAY_CONNECTIONS_MAX + 64 };
    struct aq_relay *relay;
    struct aq_endpoint endpoint;
    const char *why = "";
    uint16_t port;
    int stop;
    if (aq_endpoint_parse(asked->relay.listen, &endpoint, &why) != AQ_OK)
        return aq_options_wrong("aqpiped", "--relay: '%.80s' is not an address: %s", asked->relay.listen, why);
    aq_control_descriptors(DESCRIPTORS);
    if (aq_stop_signals("aqpiped", 0, &stop) != AQ_OK) return wrong(aq_error_text());
    enum aq_status status = aq_link_relay_open(&asked->relay, &relay, &port);
    if (status != AQ_OK) return aq_exit_of(status);
    aq_log("relay", 1, "a relay at %s, port %u, for whoever reaches it: at most %u connections, %g Mbit/s a room",
           asked->relay.listen, port, asked->relay.connections, asked->relay.rate_mbps);
    status = aq_control_port_write(asked->config.port_file, port);
    if (status == AQ_OK) status = aq_link_relay_run(relay, stop);
    struct aq_relay_stats stats;
    aq_link_relay_stats(relay, &stats);
    aq_log("relay", 1, "ends: %llu bytes were carried, %llu connections refused", (unsigned long long)stats.bytes,
           (unsigned long long)stats.refused);
    aq_link_relay_close(relay);
    return aq_exit_of(status);
}

static const char *folder_read(const char *text, void *to)
{
    struct aq_error_hold why;
    aq_error_hold(&why);
    const enum aq_status status = aq_confine_allow(to, text);
    aq_error_release(&why);
    static char shown[AQ_ERROR_BYTES];
    snprintf(shown, sizeof shown, "%s", why.text);
    return status == AQ_OK ? NULL : shown;
}

static const char *descriptor_read(const char *text, void *to)
{
    char *end;
    const long number = strtol(text, &end, 10);
    *(int *)to = (int)number;
    return *text && !*end && number >= 3 && number <= INT_MAX ? NULL : "must be the number of a descriptor, at least 3";
}

static const struct aq_option options[] = {
    AQ_ROW(TEXT, struct asked, config.listen, "listen", "HOST:PORT",
           "where launchers connect; port 0 lets the system choose. Loopback only, unless there are keys"),
    AQ_ROW(
        TEXT, struct asked, keys, "keys", "DIR",
        "authority.pem, daemon-HOST.pem and the stage-N.pem of the stages that run here (aqpipe keys bundle): mutual "
        "TLS 1.3 with launchers and between stages"),
    AQ_ROW(TEXT, struct asked, host, "host", "NAME",
           "which daemon-NAME.pem is this host's, where there are several: what launchers dial"),
    AQ_ROW(TEXT, struct asked, token_file, "token-file", "FILE",
           "first line: a secret of at least 16 bytes that launchers must hold, too; mode 600"),
    AQ_ROW_READ(folder_read, struct asked, config.confine.run, "allow-run", "DIR",
                "runs, checkpoints and caches may lie below DIR; may be given again. With one of these two, the kernel "
                "(Landlock) keeps daemon and workers from all else but programs and devices"),
    AQ_ROW_READ(folder_read, struct asked, config.confine.data, "allow-data", "DIR",
                "data, weights and tokenizers may be read below DIR; may be given again"),
    AQ_ROW(FLAG, struct asked, config.confine.unenforced, "without-landlock", NULL,
           "for a kernel without Landlock: jobs that name other folders are refused, but nothing keeps a process of a "
           "job from them"),
    AQ_ROW_READ(aq_size_read, struct asked, config.confine.memory_bytes_max, "max-memory", "BYTES",
                "of each worker (RLIMIT_DATA); also 512M, 16G. A plan that needs more is refused"),
    AQ_ROW(TEXT, struct asked, config.port_file, "port-file", "FILE", "write the port there once listening"),
    AQ_ROW_READ(descriptor_read, struct asked, config.fd, "fd", "N",
                "serve the connected socket N and end with it (what `aqpipe launch` does)"),
    AQ_ROW(
        FLAG, struct asked, stdio, "stdio", NULL,
        "serve the launcher at the other end of standard input and output and end with it (what `aqpipe launch` runs "
        "by ssh)"),
    AQ_ROW(
        TEXT, struct asked, relay.listen, "relay", "HOST:PORT",
        "instead of running jobs, be a relay: two stages that both dial meet here (link.relay, docs/NETWORKS.md). It "
        "sees only ciphertext and has no keys; let a firewall choose who reaches it"),
    AQ_ROW_RANGE(NUMBER, struct asked, relay.rate_mbps, "relay-rate", "MBPS", 0, 1e6,
                 "of a relay: the most Mbit/s that the connections of one room carry together (default 1000; 0: no "
                 "bound)"),
    AQ_ROW(TEXT, struct asked, own_address, "own-address", "HOST",
           "print the address of this machine on the route to HOST ('*': as most others see it), and end"),
    AQ_ROW(FLAG, struct asked, version, "version", NULL, "which version this is"),
    {0}};

static const struct aq_command_line line = {
    "aqpiped", NULL,
    "Starts and supervises the stage workers of one job at a time on this machine, for `aqpipe launch` elsewhere. A "
    "job "
    "on this machine alone needs no daemon: `aqpipe launch` starts a private one.",
    options,
    "AQPIPE_WORKER names another program to run as `worker` (the default is the aqpipe beside this program). Whoever "
    "holds the token runs jobs as the user of this daemon. Make one with:\n"
    "  (umask 077; head -c 32 /dev/urandom | base64 > token)"};

static int print_own_address(const char *peer)
{
    char own[AQ_ENDPOINT_HOST_BYTES];
    const enum aq_status status = aq_endpoint_own(strcmp(peer, "*") == 0 ? NULL : peer, own);
    if (status != AQ_OK) return aq_exit_of(status);
    puts(own);
    return 0;
}

static int run(int argc, char **argv)
{
    static struct asked asked = {.config.fd = -1, .relay = {.rate_mbps = -1, .connections = AQ_RELAY_CONNECTIONS_MAX}};
    struct aq_arguments rest;
    const int code = aq_options_read(&line, argc, argv, &asked, &rest);
    if (code != AQ_OPTIONS_READ) return code;
    if (asked.version) {
        puts("aqpiped " AQ_VERSION);
        return 0;
    }
    if (rest.count > 0)
        return aq_options_wrong(line.name, "'%s' is not an option, and aqpiped takes only options", rest.of[0]);
    if (asked.own_address) return print_own_address(asked.own_address);
    if ((asked.config.fd >= 0) + (asked.config.listen != NULL) + asked.stdio + (asked.relay.listen != NULL) != 1)
        return aq_options_wrong(line.name, "name one of --listen HOST:PORT, --relay HOST:PORT, --fd N and --stdio");
    const struct aq_confine *confine = &asked.config.confine;
    if (asked.relay.listen && (asked.keys || asked.token_file || asked.host || confine->run.count > 0 ||
                               confine->data.count > 0 || confine->unenforced || confine->memory_bytes_max > 0))
        return aq_options_wrong(line.name,
                                "--relay has no keys, no token, no folders and no workers: it carries what others "
                                "encrypt");
    if (!asked.relay.listen && asked.relay.rate_mbps >= 0)
        return aq_options_wrong(line.name, "--relay-rate is of --relay HOST:PORT, which is not given");
    if (asked.relay.rate_mbps < 0) asked.relay.rate_mbps = AQ_RELAY_RATE_MBPS;
    aq_log_init(asked.config.listen || asked.relay.listen ? AQ_LOG_DAEMON : AQ_LOG_COMMAND);
    return asked.relay.listen ? serve_relay(&asked) : serve(&asked);
}

int main(int argc, char **argv)
{
    if (aq_process_begin() != AQ_OK) return 2;
    return aq_command_end("aqpiped", run(argc, argv));
}
