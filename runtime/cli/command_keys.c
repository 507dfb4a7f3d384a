/*
 * command_keys.c -- `aqpipe keys`: make a job's authority and certificates, carry a host's share, and show a folder.
 *
 * (`aqpipe help keys` is about keys of a manifest.) What the files mean is net/tls.h.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "commands.h"
#include "job.h"
#include "nearest.h"
#include "net/endpoint.h"
#include "net/tls.h"
#include "options.h"
#include "out.h"
#include "seal.h"

static const int64_t day_s = 86400;
enum { AUTHORITY_DAYS = 3650, DAYS_DEFAULT = 365, SOON_DAYS = 14 };

struct asked {
    const char *job, *folder, *stages, *hosts, *host, *site, *out;
    const char *const *rest; /* behind the folder */
    uint32_t rest_count;
    uint32_t days;
    bool renew, launcher, json;
};

static bool count_read(const char *text, uint32_t most, uint32_t *out)
{
    char *end;
    const unsigned long value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || value < 1 || value > most) return false;
    *out = (uint32_t)value;
    return true;
}

static const struct aq_option options[] = {
    AQ_ROW_VERB("init", "DIR --job NAME --stages N [--hosts A,B]", "make a job's authority and its certificates",
                "Makes the authority of a job and, signed by it, one certificate with its private key for each stage, "
                "one for launchers and one for the daemon of each host. authority-key.pem makes new certificates: keep "
                "it off the hosts that train."),
    AQ_ROW_VERB("add-host", "DIR HOST...", "make the certificate of one more host's daemon, or a new one",
                "Makes a certificate for the daemon of each HOST. A host's name is what launchers dial: HOST of "
                "`host: tcp://HOST:PORT`, or NAME of a tunnel tcp://NAME@127.0.0.1:PORT."),
    AQ_ROW_VERB("enroll", "DIR --site NAME [--out OUT]", "split learning: make the certificate of a client",
                "Makes the certificate of a client of split learning. --out OUT also makes its bundle, all that it "
                "needs: carry that folder to the client."),
    AQ_ROW_VERB("bundle", "DIR OUT [--host HOST] [--stages N] [--launcher]", "put what one host needs into a folder",
                "Puts what one host needs into the folder OUT, to be carried there (scp -rp OUT HOST:keys). The "
                "launcher's host needs --launcher. A host with stages needs --host HOST --stages 2-3. A machine that "
                "runs all stages needs no bundle: security.keys: DIR."),
    AQ_ROW_VERB("revoke", "DIR NAME|FILE...", "put certificates on the list revoked.pem",
                "Puts certificates on the list revoked.pem: all that were ever made for stage-3, launcher, daemon-HOST "
                "or site-NAME, or the one in FILE. Copy revoked.pem into every folder of keys (scp DIR/revoked.pem "
                "HOST:keys/); programs there read it at the next handshake. `init --renew` or `add-host` make new "
                "ones."),
    AQ_ROW_VERB("show", "DIR", "print names, fingerprints and dates, and what is revoked",
                "Prints names, fingerprints and dates, and what is revoked. Files that others may read are refused."),
    AQ_ROW_VERB("mirror", "FILE", "make a key for the copies of checkpoints at neighbours",
                "Makes a file of 32 random bytes for checkpoint.mirror_key. A host encrypts with it the copies of its "
                "checkpoints that neighbours keep. Keep another copy of it off that host: without it they cannot be "
                "read."),
    AQ_ROW_OF("init", TEXT, struct asked, job, "job", "NAME", "in every certificate: 1 to 64 of A-Z a-z 0-9 . _ -"),
    AQ_ROW_OF("init bundle", TEXT, struct asked, stages, "stages", "N",
              "init: certificates for stages 0 to N-1; bundle: which ones go there, as in 2-3,5"),
    AQ_ROW_OF("init", TEXT, struct asked, hosts, "hosts", "A,B", "certificates for the daemons of these hosts"),
    AQ_ROW_MORE(U32, struct asked, days, "days", "D",
                "how long the certificates are valid (365); the authority is valid for ten years", .min = 1,
                .max = AUTHORITY_DAYS, .of = "init add-host enroll"),
    AQ_ROW_OF("init", FLAG, struct asked, renew, "renew", NULL,
              "the folder has an authority: sign new certificates with it, for the same job and hosts"),
    AQ_ROW_OF("enroll", TEXT, struct asked, site, "site", "NAME", "the client, 1 to 63 of a-z 0-9 . _ - :"),
    AQ_ROW_OF("enroll", TEXT, struct asked, out, "out", "OUT", "the folder of its bundle"),
    AQ_ROW_OF("bundle", TEXT, struct asked, host, "host", "HOST", "the certificate of this host's daemon goes there"),
    AQ_ROW_OF("bundle", FLAG, struct asked, launcher, "launcher", NULL, "the launcher's certificate goes there"),
    AQ_ROW(FLAG, struct asked, json, "json", NULL, "what the folder holds as one JSON object; errors, too"),
    {0}};

static const struct aq_command_line line = {
    "aqpipe keys", "init|add-host|enroll|bundle|revoke|show|mirror ...",
    "Makes and shows the certificates of a job. Peers talk to each other by mutual TLS 1.3 when both hold certificates "
    "of one authority. `aqpipe help keys` explains the keys of a manifest.",
    options,
    "Give each host only what it needs, with mode 600:\n"
    "  the launcher's host            authority.pem launcher.pem\n"
    "  host A, with stages 2 and 3    authority.pem daemon-A.pem stage-2.pem stage-3.pem\n"
    "  one machine runs all           the folder as it is (security.keys: DIR)"};

/* ---- making ---- */

/* The clocks of hosts differ: what is made now is good since yesterday. */
static int64_t since(void)
{
    return (int64_t)time(NULL) - day_s;
}

static int64_t until(const struct asked *asked)
{
    return (int64_t)time(NULL) + (int64_t)asked->days * day_s;
}

/* The name of a host in certificates: as an address of it would be read. */
static enum aq_status host_name(const char *text, size_t bytes, char out[AQ_ENDPOINT_NAME_BYTES])
{
    char host[AQ_ENDPOINT_HOST_BYTES];
    struct aq_endpoint endpoint;
    const char *why = "it is too long for a certificate; choose a name, and dial name@host:port";
    if (bytes < sizeof host) {
        memcpy(host, text, bytes);
        host[bytes] = 0;
        if (aq_endpoint_parse_host(host, &endpoint, &why) == AQ_OK && aq_endpoint_identity(&endpoint, out))
            return AQ_OK;
    }
    return aq_fail(AQ_INVAL, "keys", "'%.*s' is not a host: %s", bytes < 80 ? (int)bytes : 80, text, why);
}

static enum aq_status make_host(const struct asked *asked, const char *text, size_t bytes)
{
    char host[AQ_ENDPOINT_NAME_BYTES];
    AQ_TRY(host_name(text, bytes, host));
    return aq_tls_make_daemon(asked->folder, host, since(), until(asked));
}

static enum aq_status make_hosts(const struct asked *asked)
{
    for (const char *at = asked->hosts; at;) {
        const char *comma = strchr(at, ',');
        AQ_TRY(make_host(asked, at, comma ? (size_t)(comma - at) : strlen(at)));
        at = comma ? comma + 1 : NULL;
    }
    return AQ_OK;
}

static enum aq_status make_all(const struct asked *asked, uint32_t stages)
{
    struct aq_tls_hosts hosts = {0};
    if (asked->renew)
        AQ_TRY(aq_tls_hosts(asked->folder, &hosts));
    else
        AQ_TRY(aq_tls_make_authority(asked->folder, asked->job, since(),
                                     (int64_t)time(NULL) + (int64_t)AUTHORITY_DAYS * day_s));
    for (uint32_t s = 0; s < stages; s++)
        AQ_TRY(aq_tls_make(asked->folder, AQ_TLS_STAGE, s, since(), until(asked)));
    AQ_TRY(aq_tls_make(asked->folder, AQ_TLS_LAUNCHER, 0, since(), until(asked)));
    for (uint32_t i = 0; i < hosts.count; i++)
        AQ_TRY(make_host(asked, hosts.of[i], strlen(hosts.of[i])));
    return make_hosts(asked);
}

/* ---- showing ---- */

static void date(int64_t when, char out[16])
{
    struct tm parts;
    const time_t seconds = (time_t)when;
    if (!gmtime_r(&seconds, &parts) || strftime(out, 16, "%Y-%m-%d", &parts) == 0) snprintf(out, 16, "?");
}

static const struct aq_tls_list_entry *listed(const struct aq_tls_list *list, const char *serial)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (strcmp(list->of[i].serial, serial) == 0) return &list->of[i];
    return NULL;
}

/* The output of show: lines for people, one object for programs. */
struct shown {
    const char *folder;
    const struct aq_tls_list *list;
    json_t *files; /* NULL: for people */
    int good, wrong;
};

static const char *state_of(const struct aq_tls_list *list, const struct aq_tls_facts *facts)
{
    const int64_t now = (int64_t)time(NULL);
    return listed(list, facts->serial)                       ? "revoked"
           : now > facts->until                              ? "expired"
           : now < facts->from                               ? "not yet valid"
           : facts->until - now < (int64_t)SOON_DAYS * day_s ? "expires soon"
                                                             : "valid";
}

/* One file, if it exists. */
static enum aq_status show_file(struct shown *shown, const struct aq_tls_name *name)
{
    char path[AQ_TLS_PATH_BYTES], file[AQ_TLS_FILE_BYTES], uri[AQ_TLS_URI_BYTES], from[16], to[16];
    struct aq_tls_facts facts;
    if (snprintf(path, sizeof path, "%s/%s", shown->folder, aq_tls_file(name, file)) >= (int)sizeof path)
        return AQ_INVAL;
    if (access(path, F_OK) != 0) return AQ_NOTFOUND;
    AQ_TRY(aq_tls_describe(path, &facts));
    date(facts.from, from);
    date(facts.until, to);
    const char *state = state_of(shown->list, &facts), *name_shown = aq_tls_uri(&facts.name, uri);
    if (shown->files) {
        json_array_append_new(shown->files, json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:b}", "file", file, "name",
                                                      name_shown, "from", from, "until", to, "state", state, "sha256",
                                                      facts.print, "private_key", (int)facts.key));
        return AQ_OK;
    }
    const bool plain = strcmp(state, "valid") == 0;
    aq_out("%-24s %-36s %s to %s%s%s\n%24s SHA-256 %s%s\n", file, name_shown, from, to, plain ? "" : "  ",
           plain                           ? ""
           : strcmp(state, "revoked") == 0 ? "REVOKED"
           : strcmp(state, "expired") == 0 ? "EXPIRED"
                                           : state,
           "", facts.print, facts.key ? ", with its private key" : "");
    return AQ_OK;
}

static enum aq_status check_authority_key(const char *folder)
{
    char path[AQ_TLS_PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/authority-key.pem", folder) >= (int)sizeof path) return AQ_INVAL;
    return access(path, F_OK) == 0 ? aq_tls_check_key(path) : AQ_OK;
}

static void show_one(struct shown *shown, const struct aq_tls_name *name)
{
    const enum aq_status status = show_file(shown, name);
    shown->good += status == AQ_OK;
    shown->wrong += status != AQ_OK && status != AQ_NOTFOUND;
}

static void show_list(const struct aq_tls_list *list)
{
    char from[16], to[16];
    date(list->from, from);
    date(list->until, to);
    aq_out("%-24s number %lld, %u certificate%s, %s to %s\n", "revoked.pem", (long long)list->number, list->count,
           list->count == 1 ? "" : "s", from, to);
    for (uint32_t i = 0; i < list->count; i++) {
        date(list->of[i].when, from);
        char uri[sizeof list->of[i].uri]; /* of a file */
        aq_out("%24s serial %s, %s %s\n", "", list->of[i].serial, from,
               aq_printable_text(list->of[i].uri, uri, sizeof uri));
    }
}

static json_t *list_json(const struct aq_tls_list *list)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < list->count; i++) {
        char uri[sizeof list->of[i].uri], when[16];
        date(list->of[i].when, when);
        json_array_append_new(all, json_pack("{s:s, s:s, s:s}", "serial", list->of[i].serial, "when", when, "name",
                                             aq_printable_text(list->of[i].uri, uri, sizeof uri)));
    }
    return all;
}

static void print_json(json_t *object)
{
    json_dumpf(object, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    (void)aq_out_raw("\n");
    json_decref(object);
}

static void show_hosts(struct shown *shown, const struct aq_tls_hosts *hosts, enum aq_tls_role role)
{
    for (uint32_t i = 0; i < hosts->count; i++) {
        struct aq_tls_name name = {.role = role};
        memcpy(name.host, hosts->of[i], sizeof name.host);
        show_one(shown, &name);
    }
}

static int show(const struct asked *asked, const char *folder)
{
    static struct aq_tls_list list;
    struct aq_tls_hosts hosts = {0};
    struct stat about;
    errno = 0;
    if (stat(folder, &about) != 0 || !S_ISDIR(about.st_mode)) {
        (void)aq_command_failed(errno == ENOENT ? "there is no folder %s (aqpipe keys init makes one)"
                                                : "%s is not a folder of keys (aqpipe keys init makes one)",
                                folder);
        return AQ_EXIT_USAGE;
    }
    struct shown shown = {.folder = folder, .list = &list, .files = asked->json ? json_array() : NULL};
    const enum aq_status read = aq_tls_list_read(folder, &list);
    shown.wrong += read != AQ_OK && read != AQ_NOTFOUND;
    show_one(&shown, &(struct aq_tls_name){.role = AQ_TLS_AUTHORITY});
    show_one(&shown, &(struct aq_tls_name){.role = AQ_TLS_LAUNCHER});
    show_one(&shown, &(struct aq_tls_name){.role = AQ_TLS_DAEMON}); /* of an older version */
    shown.wrong += aq_tls_hosts(folder, &hosts) != AQ_OK;
    show_hosts(&shown, &hosts, AQ_TLS_DAEMON);
    shown.wrong += aq_tls_sites(folder, &hosts) != AQ_OK;
    show_hosts(&shown, &hosts, AQ_TLS_SITE);
    for (uint32_t s = 0; s < AQ_JOB_RANKS_MAX; s++)
        show_one(&shown, &(struct aq_tls_name){.role = AQ_TLS_STAGE, .stage = s});
    shown.wrong += check_authority_key(folder) != AQ_OK;
    if (shown.files)
        print_json(json_pack("{s:s, s:o, s:o}", "folder", folder, "files", shown.files, "revoked",
                             read == AQ_OK ? list_json(&list) : json_array()));
    else if (read == AQ_OK)
        show_list(&list);
    if (shown.good + shown.wrong > 0) return shown.wrong == 0 ? AQ_EXIT_DONE : AQ_EXIT_FAILED;
    (void)aq_command_failed("there are no keys in %s (aqpipe keys init makes them)", folder);
    return AQ_EXIT_USAGE;
}

/* ---- for `aqpipe init` ---- */

enum aq_status aq_keys_make(const char *folder, const char *job, uint32_t stages, const char *hosts)
{
    const struct asked asked = {.folder = folder, .job = job, .hosts = hosts, .days = DAYS_DEFAULT};
    return make_all(&asked, stages);
}

enum aq_status aq_keys_give(const char *folder, const char *out, const char *host, uint32_t stage)
{
    struct aq_tls_name daemon = {.role = AQ_TLS_DAEMON};
    const struct aq_tls_name names[] = {{.role = AQ_TLS_AUTHORITY}, {.role = AQ_TLS_STAGE, .stage = stage}};
    char file[AQ_TLS_FILE_BYTES];
    AQ_TRY(host_name(host, strlen(host), daemon.host));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        AQ_TRY(aq_tls_copy(folder, aq_tls_file(&names[i], file), out));
    return aq_tls_copy(folder, aq_tls_file(&daemon, file), out);
}

/* ---- the subcommands ---- */

/* A refused file or folder is one that was given: it exists already, or others may read it. */
static int exit_of(enum aq_status status)
{
    return status == AQ_REFUSED ? AQ_EXIT_USAGE : aq_exit_of(status);
}

static int init(const struct asked *asked)
{
    uint32_t stages;
    if (asked->rest_count) return aq_options_wrong(line.name, "one folder of keys is needed");
    if (!asked->job == !asked->renew)
        return aq_options_wrong(line.name, "init needs --job NAME, or --renew for a folder that has an authority");
    if (!asked->stages) return aq_options_wrong(line.name, "init needs --stages N");
    if (!count_read(asked->stages, AQ_JOB_RANKS_MAX, &stages))
        return aq_options_wrong(line.name, "--stages: '%.40s' is not a whole number from 1 to %d", asked->stages,
                                AQ_JOB_RANKS_MAX);
    const enum aq_status status = make_all(asked, stages);
    return status == AQ_OK ? show(asked, asked->folder) : exit_of(status);
}

static int add_host(const struct asked *asked)
{
    if (asked->rest_count == 0)
        return aq_options_wrong(line.name, "add-host needs the names of hosts after the folder");
    for (uint32_t i = 0; i < asked->rest_count; i++) {
        const enum aq_status status = make_host(asked, asked->rest[i], strlen(asked->rest[i]));
        if (status != AQ_OK) return exit_of(status);
    }
    return show(asked, asked->folder);
}

/* "2-3,5", one range after the other. False: that is no such list. */
static bool next_range(const char **at, uint32_t *first, uint32_t *last)
{
    char *end;
    if (**at < '0' || **at > '9') return false;
    unsigned long value = strtoul(*at, &end, 10);
    if (value >= AQ_JOB_RANKS_MAX) return false;
    *first = *last = (uint32_t)value;
    if (*end == '-') {
        if (end[1] < '0' || end[1] > '9') return false;
        value = strtoul(end + 1, &end, 10);
        if (value < *first || value >= AQ_JOB_RANKS_MAX) return false;
        *last = (uint32_t)value;
    }
    if (*end && *end != ',') return false;
    *at = *end ? end + 1 : NULL;
    return true;
}

static enum aq_status copy_to(const struct asked *asked, const struct aq_tls_name *name, const char *to)
{
    char file[AQ_TLS_FILE_BYTES];
    return aq_tls_copy(asked->folder, aq_tls_file(name, file), to);
}

static enum aq_status copy(const struct asked *asked, const struct aq_tls_name *name)
{
    return copy_to(asked, name, asked->rest[0]);
}

/* Copies the revocation list, if any: a folder without it would accept revoked certificates. */
static enum aq_status copy_list(const struct asked *asked, const char *to)
{
    char path[AQ_TLS_PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/revoked.pem", asked->folder) >= (int)sizeof path) return AQ_INVAL;
    return access(path, F_OK) == 0 ? aq_tls_copy(asked->folder, "revoked.pem", to) : AQ_OK;
}

static int bundle(const struct asked *asked)
{
    struct aq_tls_name daemon = {.role = AQ_TLS_DAEMON};
    if (asked->rest_count != 1)
        return aq_options_wrong(line.name, "bundle needs two folders: the folder of keys, and the one to make");
    if (!asked->host && !asked->stages && !asked->launcher)
        return aq_options_wrong(line.name, "bundle needs --host, --stages or --launcher");
    enum aq_status status = copy(asked, &(struct aq_tls_name){.role = AQ_TLS_AUTHORITY});
    if (status == AQ_OK && asked->host) {
        status = host_name(asked->host, strlen(asked->host), daemon.host);
        if (status == AQ_OK) status = copy(asked, &daemon);
    }
    if (status == AQ_OK && asked->launcher) status = copy(asked, &(struct aq_tls_name){.role = AQ_TLS_LAUNCHER});
    for (const char *at = asked->stages; status == AQ_OK && at;) {
        uint32_t first, last;
        if (!next_range(&at, &first, &last))
            return aq_options_wrong(line.name, "--stages takes numbers and ranges, as in 2-3,5, below %d",
                                    AQ_JOB_RANKS_MAX);
        for (uint32_t s = first; status == AQ_OK && s <= last; s++)
            status = copy(asked, &(struct aq_tls_name){.role = AQ_TLS_STAGE, .stage = s});
    }
    if (status == AQ_OK) status = copy_list(asked, asked->rest[0]);
    return status == AQ_OK ? show(asked, asked->rest[0]) : exit_of(status);
}

static int enroll(const struct asked *asked)
{
    struct aq_tls_name site = {.role = AQ_TLS_SITE};
    if (asked->rest_count) return aq_options_wrong(line.name, "enroll needs one folder, and --site NAME");
    if (!asked->site) return aq_options_wrong(line.name, "enroll needs --site NAME");
    enum aq_status status = aq_tls_make_site(asked->folder, asked->site, since(), until(asked));
    if (status != AQ_OK) return exit_of(status);
    if (!asked->out) return show(asked, asked->folder);
    memcpy(site.host, asked->site, strlen(asked->site)); /* a good name: it is short */
    status = copy_to(asked, &(struct aq_tls_name){.role = AQ_TLS_AUTHORITY}, asked->out);
    if (status == AQ_OK) status = copy_to(asked, &site, asked->out);
    if (status == AQ_OK) status = copy_list(asked, asked->out);
    return status == AQ_OK ? show(asked, asked->out) : exit_of(status);
}

/* "stage-3", "launcher", "daemon-10.0.0.5": as the files are called. "daemon" is of older versions. */
static bool read_name(const char *text, struct aq_tls_name *out)
{
    char uri[AQ_TLS_URI_BYTES];
    const char *dash = strchr(text, '-');
    snprintf(uri, sizeof uri, "aqpipe://x/%.*s%s%.99s", dash ? (int)(dash - text) : 20, text, dash ? "/" : "",
             dash ? dash + 1 : "");
    return strlen(text) < 100 && aq_tls_uri_read(uri, strlen(uri), out) && out->role != AQ_TLS_AUTHORITY;
}

static int revoke_these(const struct asked *asked)
{
    if (asked->rest_count == 0)
        return aq_options_wrong(line.name, "revoke needs names (stage-3, launcher, daemon-HOST, site-NAME) or files");
    for (uint32_t i = 0; i < asked->rest_count; i++) {
        const char *text = asked->rest[i];
        struct aq_tls_name name;
        uint32_t added = 0;
        const bool file = strchr(text, '/') || strstr(text, ".pem");
        if (!file && !read_name(text, &name))
            return aq_options_wrong(line.name,
                                    "'%.80s' is neither stage-N, launcher, daemon-HOST, site-NAME nor a file", text);
        if (file && access(text, F_OK) != 0) {
            (void)aq_command_failed("there is no file %.200s: name a certificate, or stage-N, launcher, daemon-HOST or "
                                    "site-NAME",
                                    text);
            return AQ_EXIT_USAGE;
        }
        const enum aq_status status = aq_tls_revoke(asked->folder, file ? NULL : &name, file ? text : NULL, &added);
        if (status != AQ_OK) return exit_of(status);
        if (!asked->json) aq_out("%s: %u revoked%s\n", text, added, added ? "" : " (it was on the list already)");
    }
    if (!asked->json)
        aq_out("copy %s/revoked.pem into every folder of keys of this job, as in: scp %s/revoked.pem HOST:keys/\n",
               asked->folder, asked->folder);
    return show(asked, asked->folder);
}

static int show_folder(const struct asked *asked)
{
    return asked->rest_count ? aq_options_wrong(line.name, "one folder of keys is needed") : show(asked, asked->folder);
}

static int mirror(const struct asked *asked)
{
    if (asked->rest_count) return aq_options_wrong(line.name, "mirror needs the name of one file to make");
    const enum aq_status status = aq_seal_key_make(asked->folder);
    if (status != AQ_OK) return exit_of(status);
    if (asked->json) print_json(json_pack("{s:s}", "file", asked->folder));
    return AQ_EXIT_DONE;
}

int aq_command_keys(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const struct asked *asked);
    } commands[] = {{"init", init},           {"add-host", add_host}, {"enroll", enroll}, {"bundle", bundle},
                    {"revoke", revoke_these}, {"show", show_folder},  {"mirror", mirror}};
    struct asked asked = {.days = DAYS_DEFAULT};
    struct aq_arguments rest;
    const int code = aq_options_read(&line, argc, argv, &asked, &rest);
    if (code != AQ_OPTIONS_READ) return code;
    if (rest.count == 0)
        return aq_options_wrong(line.name, "name one of init, add-host, enroll, bundle, revoke, show and mirror");
    struct aq_nearest nearest = {.word = rest.of[0]};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        aq_nearest_try(&nearest, commands[i].name);
        if (strcmp(rest.of[0], commands[i].name) != 0) continue;
        if (rest.count == 1)
            return aq_options_wrong(line.name, commands[i].run == mirror ? "mirror needs the name of one file to make"
                                                                             : "the folder of keys is missing");
        asked.folder = rest.of[1];
        asked.rest = &rest.of[2];
        asked.rest_count = rest.count - 2;
        return commands[i].run(&asked);
    }
    const char *meant = aq_nearest_of(&nearest);
    return aq_options_wrong(line.name, "init, add-host, enroll, bundle, revoke, show or mirror, not '%s'%s%s",
                            rest.of[0], meant ? "; did you mean " : "", meant ? meant : "");
}
