/* control_token.c -- tokens from files, nonces from the kernel, proofs from OpenSSL's libcrypto. */
#include "control_token.h"

#include <ctype.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* May this open file hold a secret? */
static enum aq_status check_file(const char *path, const struct stat *info)
{
    if (!S_ISREG(info->st_mode)) return aq_fail(AQ_INVAL, "token", "%s is not a regular file", path);
    if (info->st_uid != geteuid() && info->st_uid != 0)
        return aq_fail(AQ_REFUSED, "token", "%s belongs to another user: a token must be your own file", path);
    if (info->st_mode & 077)
        return aq_fail(AQ_REFUSED, "token", "%s may be read or written by others (mode %03o): chmod 600 %s", path,
                       (unsigned)(info->st_mode & 0777), path);
    return AQ_OK;
}

enum aq_status aq_token_load(const char *path, struct aq_token *out)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd == -1) return aq_fail_errno("token", "cannot open the token file %s", path);
    struct stat info;
    unsigned char bytes[AQ_TOKEN_BYTES_MAX + 2];
    enum aq_status status = AQ_OK;
    ssize_t count = 0;
    if (fstat(fd, &info) != 0)
        status = aq_fail_errno("token", "%s", path);
    else
        status = check_file(path, &info);
    if (status == AQ_OK && (count = aq_read_all(fd, bytes, sizeof bytes)) < 0)
        status = aq_fail_errno("token", "cannot read the token file %s", path);
    close(fd);
    if (status != AQ_OK || count < 0) return status;
    const unsigned char *newline = memchr(bytes, '\n', (size_t)count);
    size_t end = newline ? (size_t)(newline - bytes) : (size_t)count, begin = 0;
    while (begin < end && isspace(bytes[begin]))
        begin++;
    while (end > begin && isspace(bytes[end - 1]))
        end--;
    const size_t length = end - begin;
    if (length < AQ_TOKEN_BYTES_MIN || length > AQ_TOKEN_BYTES_MAX) {
        OPENSSL_cleanse(bytes, sizeof bytes);
        return aq_fail(AQ_INVAL, "token", "the first line of %s has %zu bytes: a token has %d to %d", path, length,
                       AQ_TOKEN_BYTES_MIN, AQ_TOKEN_BYTES_MAX);
    }
    out->bytes = length;
    memcpy(out->secret, bytes + begin, length);
    OPENSSL_cleanse(bytes, sizeof bytes);
    return AQ_OK;
}

enum aq_status aq_token_nonce(char out[AQ_NONCE_CHARS + 1])
{
    unsigned char bytes[AQ_NONCE_CHARS / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return aq_fail_errno("token", "the system gives no random numbers");
    aq_hex(bytes, sizeof bytes, out);
    return AQ_OK;
}

enum aq_status aq_token_proof(const struct aq_token *token, const char *side, const char *daemon_nonce,
                              const char *client_nonce, char out[AQ_PROOF_CHARS + 1])
{
    char text[256];
    const int length = snprintf(text, sizeof text, "aqpipe %s 1 %s %s", side, daemon_nonce, client_nonce);
    if (length < 0 || (size_t)length >= sizeof text) return aq_fail(AQ_PROTO, "token", "a nonce is too long");
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int bytes = 0;
    if (!HMAC(EVP_sha256(), token->secret, (int)token->bytes, (const unsigned char *)text, (size_t)length, digest,
              &bytes))
        return aq_fail(AQ_NODEV, "token", "libcrypto has no HMAC-SHA-256 here");
    AQ_ASSERT(bytes * 2 == AQ_PROOF_CHARS);
    aq_hex(digest, bytes, out);
    return AQ_OK;
}

bool aq_token_proves(const char *wanted, const char *got)
{
    const size_t length = strlen(wanted);
    return strlen(got) == length && CRYPTO_memcmp(wanted, got, length) == 0;
}
