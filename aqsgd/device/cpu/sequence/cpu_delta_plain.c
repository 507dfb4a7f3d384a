/*
 * cpu_delta_plain.c -- the gated delta rule token by token and column by column: the truth of the chunked way and of a
 * GPU's.
 *
 * A column of the state does not depend on the others. With s one of them, v and out the token's values of that column:
 *
 *     s' = decay s    u = beta (v - k . s')    s = s' + k u    out = q . s
 *
 * Backward computes the column's states again from the chunk's first, and goes through the tokens from the last to the
 * first with ds, the gradient of s:
 *
 *     ds += q dout    du = k . ds    dv = beta du    dbeta += du (v - k . s')    dq += s dout
 *     dk += u ds - beta du s'        ds' = ds - beta du k        dg += ds' . s'        ds = decay ds'
 */
#include <string.h>

#include "cpu_delta.h"

/* u of token t; the column s goes one token on. */
static float token_forward(const struct cpu_delta_chunk *c, uint64_t t, uint64_t column, float *s)
{
    const float *k = c->k + t * c->Dk;
    float held = 0.0f;
    for (uint64_t i = 0; i < c->Dk; i++) {
        s[i] *= c->decay[t];
        held += k[i] * s[i];
    }
    const float u = c->beta[t] * (c->v[t * c->Dv + column] - held);
    for (uint64_t i = 0; i < c->Dk; i++)
        s[i] += k[i] * u;
    return u;
}

static void forward(struct cpu_delta_chunk *c)
{
    float s[AQ_DELTA_HEAD_MAX];
    for (uint64_t column = 0; column < c->Dv; column++) {
        for (uint64_t i = 0; i < c->Dk; i++)
            s[i] = c->S[i * c->Dv + column];
        for (uint64_t t = 0; t < c->n; t++) {
            float sum = 0.0f;
            (void)token_forward(c, t, column, s);
            for (uint64_t i = 0; i < c->Dk; i++)
                sum += c->q[t * c->Dk + i] * s[i];
            c->out[t * c->Dv + column] = sum;
        }
        for (uint64_t i = 0; i < c->Dk; i++)
            c->S[i * c->Dv + column] = s[i];
    }
}

/*
 * s: the column's state before token t, and behind it the state behind the token; u: there. ds: the gradient of the
 * second, which becomes that of the first.
 */
static void token_backward(struct cpu_delta_chunk *c, uint64_t t, uint64_t column, const float *s, float u, float *ds)
{
    const float *behind = s + c->Dk;
    const float *q = c->q + t * c->Dk, *k = c->k + t * c->Dk;
    float *dq = c->dq + t * c->Dk, *dk = c->dk + t * c->Dk, beta = c->beta[t];
    const float dout = c->dout[t * c->Dv + column];
    float du = 0.0f, held = 0.0f, dg = 0.0f;
    for (uint64_t i = 0; i < c->Dk; i++) {
        ds[i] += q[i] * dout;
        dq[i] += behind[i] * dout;
        du += k[i] * ds[i];
        held += k[i] * c->decay[t] * s[i];
    }
    for (uint64_t i = 0; i < c->Dk; i++) {
        const float before = c->decay[t] * s[i]; /* s' */
        dk[i] += u * ds[i] - beta * du * before;
        ds[i] -= beta * du * k[i];
        dg += ds[i] * before;
        ds[i] *= c->decay[t];
    }
    c->dbeta[t] += du * (c->v[t * c->Dv + column] - held);
    c->v[t * c->Dv + column] = beta * du;
    c->dg[t] += dg;
}

static void backward(struct cpu_delta_chunk *c)
{
    float *states = c->room, u[CPU_DELTA_TOKENS], ds[AQ_DELTA_HEAD_MAX];
    for (uint64_t t = 0; t < c->n; t++)
        c->dbeta[t] = c->dg[t] = 0.0f;
    for (uint64_t column = 0; column < c->Dv; column++) {
        for (uint64_t i = 0; i < c->Dk; i++)
            ds[i] = c->dS[i * c->Dv + column];
        for (uint64_t i = 0; i < c->Dk; i++)
            states[i] = c->S[i * c->Dv + column];
        for (uint64_t t = 0; t < c->n; t++) {
            float *s = states + t * c->Dk;
            memcpy(s + c->Dk, s, c->Dk * sizeof *s);
            u[t] = token_forward(c, t, column, s + c->Dk);
        }
        for (uint64_t t = c->n; t-- > 0;)
            token_backward(c, t, column, states + t * c->Dk, u[t], ds);
        for (uint64_t i = 0; i < c->Dk; i++)
            c->dS[i * c->Dv + column] = ds[i];
    }
}

const struct cpu_delta_way cpu_delta_plain = {.forward = forward, .backward = backward};
