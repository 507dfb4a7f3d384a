/*
 * two_ends.c -- libaqsgd in a program: a sample crosses a link at each of its visits; both ends hold the same message.
 *
 *     cc two_ends.c $(pkg-config --cflags --libs aqsgd) -lm && ./a.out
 *
 * Both ends are in this process; in yours the body, its length and its flags travel.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <aqsgd.h>

enum { ROWS = 64, COLUMNS = 256, VALUES = ROWS * COLUMNS, VISITS = 4 };

static int failed(const char *what)
{
    fprintf(stderr, "two_ends: %s: %s\n", what, aqsgd_error());
    return 1;
}

/* An activation that moves a little from visit to visit, as a model's does. */
static void activation(int visit, float *a)
{
    int i;
    for (i = 0; i < VALUES; i++)
        a[i] = (float)(sin(0.37 * i) + 0.02 * visit * cos(0.11 * i));
}

static int visits(struct aqsgd_codec *sender, struct aqsgd_codec *receiver)
{
    const size_t bound = aqsgd_bound(sender), message = aqsgd_message_bytes(sender);
    float *a = (float *)malloc(sizeof(float) * VALUES), *hat = (float *)malloc(sizeof(float) * VALUES);
    void *body = malloc(bound), *m_sender = calloc(1, message), *m_receiver = calloc(1, message);
    int visit, code = !(a && hat && body && m_sender && m_receiver);
    for (visit = 0; visit < VISITS && code == 0; visit++) {
        size_t bytes;
        uint32_t flags;
        double error = 0, power = 0;
        int i;
        activation(visit, a);
        if (aqsgd_encode(sender, a, visit ? m_sender : NULL, 0, body, bound, &bytes, &flags, NULL, m_sender) !=
            AQSGD_OK)
            code = failed("encode");
        else if (aqsgd_decode(receiver, body, bytes, flags, visit ? m_receiver : NULL, hat, m_receiver) != AQSGD_OK)
            code = failed("decode");
        else if (aqsgd_digest(m_sender, message) != aqsgd_digest(m_receiver, message))
            code = failed("the two messages differ");
        for (i = 0; i < VALUES && code == 0; i++) {
            error += (a[i] - hat[i]) * (double)(a[i] - hat[i]);
            power += a[i] * (double)a[i];
        }
        if (code == 0)
            printf("visit %d: %zu bytes for %d values, error %.2e of the activation\n", visit + 1, bytes, VALUES,
                   sqrt(error / power));
    }
    free(a);
    free(hat);
    free(body);
    free(m_sender);
    free(m_receiver);
    return code;
}

int main(void)
{
    struct aqsgd_codec *sender = NULL, *receiver = NULL;
    char text[128];
    int code = 1;
    if (aqsgd_codec_open("codec=aqsgd bits=2", ROWS, COLUMNS, 1, &sender) != AQSGD_OK ||
        aqsgd_codec_open("codec=aqsgd bits=2", ROWS, COLUMNS, 1, &receiver) != AQSGD_OK) {
        (void)failed("open");
    } else {
        aqsgd_codec_text(sender, text, sizeof text);
        printf("libaqsgd %u: %s\n", (unsigned)aqsgd_version(), text);
        code = visits(sender, receiver);
    }
    aqsgd_codec_close(sender);
    aqsgd_codec_close(receiver);
    return code;
}
