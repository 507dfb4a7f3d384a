/*
 * cpu_delta_chunked.c -- a chunk of the gated delta rule as products of matrices (Yang et al. 2024, "Parallelizing
 * Linear Transformers with the Delta Rule over Sequence Length"; 2025, "Gated Delta Networks").
 *
 * D[i][j] is the product of the decays of tokens j + 1 .. i; E[i] that of the tokens up to i; F[j] = D[n - 1][j]. They
 * are multiplied up from token to token, so that they have the recurrence's own precision and never overflow.
 *
 *     L[i][j] = beta[i] D[i][j] k_i . k_j  (j < i)        M[i][j] = D[i][j] q_i . k_j  (j <= i)
 *     P = V - E (K S)      (1 + L) U = beta P      out = E (Q S) + M U      S' = E[n - 1] S + (F K)^T U
 *
 * Backward, with the same names:
 *
 *     dU = M^T dout + F (K dS')      (1 + L)^T dR = dU      dV = beta dR      dL = -dR U^T      dM = dout U^T
 *     Y = E dout      W = beta E dR      dS = E[n - 1] dS' + Q^T Y - K^T W
 *     X[i][j] = beta[i] D[i][j] dL[i][j]      Z[i][j] = D[i][j] dM[i][j]
 *     dQ = Y S^T + Z K      dK = Z^T Q + X K + X^T K - W S^T + F (U dS'^T)
 *     dbeta[i] = dR_i . P_i + sum over j of dL[i][j] D[i][j] k_i . k_j
 *
 * The gradient of log E[i] has a term for each place where E, D and F stand; that of g is the sum of those behind it.
 */
#include <string.h>

#include "cpu_delta.h"

/* Pairs of tokens: D, k . k, and L and M with 0 where they are not defined. Of tokens: E, and F in D's last row. */
struct pairs {
    float *D, *kk, *L, *M;
    float E[CPU_DELTA_TOKENS];
};

static struct cpu_operand matrix(const float *data, uint64_t stride, bool transposed)
{
    return (struct cpu_operand){.data = data, .stride = stride, .type = AQ_F32, .transposed = transposed};
}

/* c (M, N) = op(a) op(b), or += . ra and rb: columns of a and b as they lie. */
static void product(const struct cpu_delta_chunk *c, uint64_t M, uint64_t N, uint64_t K, struct cpu_operand a,
                    struct cpu_operand b, float *to, bool add)
{
    c->cpu->gemm->run(M, N, K, &a, &b, AQ_F32, to, N, add, c->scratch);
}

/* to = factors[i] times row i. */
static void rows_scaled(const struct cpu_delta_chunk *c, const float *x, const float *factors, uint64_t columns,
                        float *to)
{
    for (uint64_t i = 0; i < c->n; i++)
        c->cpu->rows->scale(x + i * columns, columns, factors[i], to + i * columns, AQ_F32);
}

static void pairs_make(const struct cpu_delta_chunk *c, struct pairs *p)
{
    const uint64_t n = c->n;
    product(c, n, n, c->Dk, matrix(c->k, c->Dk, false), matrix(c->k, c->Dk, true), p->kk, false);
    product(c, n, n, c->Dk, matrix(c->q, c->Dk, false), matrix(c->k, c->Dk, true), p->M, false);
    for (uint64_t i = 0; i < n; i++) {
        float *D = p->D + i * n, *M = p->M + i * n, *L = p->L + i * n;
        const float *kk = p->kk + i * n;
        p->E[i] = (i ? p->E[i - 1] : 1.0f) * c->decay[i];
        for (uint64_t j = 0; j < i; j++) {
            D[j] = D[j - n] * c->decay[i];
            L[j] = c->beta[i] * D[j] * kk[j];
            M[j] *= D[j];
        }
        D[i] = 1.0f;
        memset(L + i, 0, (n - i) * sizeof *L);
        memset(M + i + 1, 0, (n - i - 1) * sizeof *M);
        memset(D + i + 1, 0, (n - i - 1) * sizeof *D);
    }
}

/* P = V - E (K S); U, which may not be P. */
static void solve(const struct cpu_delta_chunk *c, const struct pairs *p, float *P, float *U)
{
    float row[CPU_DELTA_TOKENS];
    product(c, c->n, c->Dv, c->Dk, matrix(c->k, c->Dk, false), matrix(c->S, c->Dv, false), P, false);
    for (uint64_t i = 0; i < c->n; i++) {
        float *held = P + i * c->Dv;
        c->cpu->rows->scale(held, c->Dv, -p->E[i], held, AQ_F32);
        c->cpu->rows->add(held, c->v + i * c->Dv, AQ_F32, c->Dv);
        c->cpu->rows->scale(held, c->Dv, c->beta[i], U + i * c->Dv, AQ_F32);
        c->cpu->rows->scale(p->L + i * c->n, i, -1.0f, row, AQ_F32);
        c->cpu->rows->combine(row, U, c->Dv, AQ_F32, c->Dv, i, U + i * c->Dv);
    }
}

/* S = E[n - 1] S + (F K)^T U. scaled: memory of K's shape. */
static void state_next(const struct cpu_delta_chunk *c, const struct pairs *p, const float *U, float *scaled)
{
    rows_scaled(c, c->k, p->D + (c->n - 1) * c->n, c->Dk, scaled);
    c->cpu->rows->scale(c->S, c->Dk * c->Dv, p->E[c->n - 1], c->S, AQ_F32);
    product(c, c->Dk, c->Dv, c->n, matrix(scaled, c->Dk, true), matrix(U, c->Dv, false), c->S, true);
}

static struct pairs pairs_place(const struct cpu_delta_chunk *c)
{
    float *at = c->room;
    return (struct pairs){
        .D = at, .kk = at + CPU_DELTA_PAIRS, .L = at + 2 * CPU_DELTA_PAIRS, .M = at + 3 * CPU_DELTA_PAIRS};
}

static void forward(struct cpu_delta_chunk *c)
{
    struct pairs p = pairs_place(c);
    float *P = c->room + 4 * CPU_DELTA_PAIRS, *U = P + CPU_DELTA_ROWS;
    pairs_make(c, &p);
    solve(c, &p, P, U);
    product(c, c->n, c->Dv, c->Dk, matrix(c->q, c->Dk, false), matrix(c->S, c->Dv, false), c->out, false);
    rows_scaled(c, c->out, p.E, c->Dv, c->out);
    product(c, c->n, c->Dv, c->n, matrix(p.M, c->n, false), matrix(U, c->Dv, false), c->out, true);
    state_next(c, &p, U, P);
}

/* dR in place of dU: from the last token to the first. */
static void solve_back(const struct cpu_delta_chunk *c, const struct pairs *p, float *dU)
{
    float column[CPU_DELTA_TOKENS];
    for (uint64_t i = c->n; i-- > 0;) {
        for (uint64_t j = i + 1; j < c->n; j++)
            column[j] = -p->L[j * c->n + i];
        c->cpu->rows->combine(column + i + 1, dU + (i + 1) * c->Dv, c->Dv, AQ_F32, c->Dv, c->n - i - 1,
                              dU + i * c->Dv);
    }
}

/* x . y of token i, of rows of Dk columns. */
static float along(const struct cpu_delta_chunk *c, const float *x, const float *y, uint64_t i)
{
    return c->cpu->rows->dot(x + i * c->Dk, y + i * c->Dk, AQ_F32, c->Dk);
}

/*
 * From dL and dM to X and Z in their places. What pairs give of the gradient of log E goes to *log, of token i what
 * D[i][j] has and against it of token j.
 */
static void pairs_back(struct cpu_delta_chunk *c, const struct pairs *p, float *dL, float *dM, double *log)
{
    const uint64_t n = c->n;
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t j = 0; j < n; j++) {
            const uint64_t at = i * n + j;
            const float D = p->D[at]; /* 0 behind i */
            const double both = j < i ? (double)(dL[at] * p->L[at] + dM[at] * p->M[at]) : 0.0;
            if (j < i) c->dbeta[i] += dL[at] * D * p->kk[at];
            log[i] += both;
            log[j] -= both;
            dL[at] = j < i ? c->beta[i] * D * dL[at] : 0.0f;
            dM[at] *= D;
        }
}

/* What queries and keys have of the states; log: what that gives of the gradient of log E. part: of K's shape. */
static void states_back(struct cpu_delta_chunk *c, const struct pairs *p, const float *U, const float *Y,
                        const float *W, float *part, double *log)
{
    const uint64_t n = c->n, Dk = c->Dk, Dv = c->Dv;
    const float *F = p->D + (n - 1) * n;
    product(c, n, Dk, Dv, matrix(Y, Dv, false), matrix(c->S, Dv, true), part, false);
    for (uint64_t i = 0; i < n; i++)
        log[i] += (double)along(c, c->q, part, i);
    c->cpu->rows->add(c->dq, part, AQ_F32, n * Dk);
    product(c, n, Dk, Dv, matrix(W, Dv, false), matrix(c->S, Dv, true), part, false);
    for (uint64_t i = 0; i < n; i++)
        log[i] -= (double)along(c, c->k, part, i);
    c->cpu->rows->scale(part, n * Dk, -1.0f, part, AQ_F32);
    c->cpu->rows->add(c->dk, part, AQ_F32, n * Dk);
    product(c, n, Dk, Dv, matrix(U, Dv, false), matrix(c->dS, Dv, true), part, false);
    rows_scaled(c, part, F, Dk, part);
    c->cpu->rows->add(c->dk, part, AQ_F32, n * Dk);
    for (uint64_t i = 0; i < n; i++) {
        const double behind = (double)along(c, c->k, part, i);
        log[i] -= behind;
        log[n - 1] += behind;
    }
    log[n - 1] += (double)p->E[n - 1] * (double)c->cpu->rows->dot(c->S, c->dS, AQ_F32, Dk * Dv);
}

/* dS = E[n - 1] dS + Q^T Y - K^T W */
static void state_back(const struct cpu_delta_chunk *c, const struct pairs *p, const float *Y, float *W)
{
    c->cpu->rows->scale(c->dS, c->Dk * c->Dv, p->E[c->n - 1], c->dS, AQ_F32);
    product(c, c->Dk, c->Dv, c->n, matrix(c->q, c->Dk, true), matrix(Y, c->Dv, false), c->dS, true);
    c->cpu->rows->scale(W, c->n * c->Dv, -1.0f, W, AQ_F32);
    product(c, c->Dk, c->Dv, c->n, matrix(c->k, c->Dk, true), matrix(W, c->Dv, false), c->dS, true);
}

/* dU = M^T dout + F (K dS); scaled: memory of K's shape. */
static void correction_back(const struct cpu_delta_chunk *c, const struct pairs *p, float *scaled, float *dU)
{
    rows_scaled(c, c->k, p->D + (c->n - 1) * c->n, c->Dk, scaled);
    product(c, c->n, c->Dv, c->n, matrix(p->M, c->n, true), matrix(c->dout, c->Dv, false), dU, false);
    product(c, c->n, c->Dv, c->Dk, matrix(scaled, c->Dk, false), matrix(c->dS, c->Dv, false), dU, true);
}

/* dQ += Z K, dK += Z^T Q + X K + X^T K */
static void rows_back(const struct cpu_delta_chunk *c, const float *X, const float *Z)
{
    const uint64_t n = c->n, Dk = c->Dk;
    product(c, n, Dk, n, matrix(Z, n, false), matrix(c->k, Dk, false), c->dq, true);
    product(c, n, Dk, n, matrix(Z, n, true), matrix(c->q, Dk, false), c->dk, true);
    product(c, n, Dk, n, matrix(X, n, false), matrix(c->k, Dk, false), c->dk, true);
    product(c, n, Dk, n, matrix(X, n, true), matrix(c->k, Dk, false), c->dk, true);
}

static void backward(struct cpu_delta_chunk *c)
{
    struct pairs p = pairs_place(c);
    const uint64_t n = c->n, Dv = c->Dv;
    float *dL = c->room + 4 * CPU_DELTA_PAIRS, *dM = dL + CPU_DELTA_PAIRS, *P = dM + CPU_DELTA_PAIRS;
    float *U = P + CPU_DELTA_ROWS, *dR = U + CPU_DELTA_ROWS, *part = dR + CPU_DELTA_ROWS;
    double log[CPU_DELTA_TOKENS] = {0}, behind = 0.0;
    pairs_make(c, &p);
    solve(c, &p, P, U);
    correction_back(c, &p, part, dR);
    solve_back(c, &p, dR);
    product(c, n, n, Dv, matrix(c->dout, Dv, false), matrix(U, Dv, true), dM, false);
    product(c, n, n, Dv, matrix(dR, Dv, false), matrix(U, Dv, true), dL, false);
    c->cpu->rows->scale(dL, n * n, -1.0f, dL, AQ_F32);
    for (uint64_t i = 0; i < n; i++)
        c->dbeta[i] = c->cpu->rows->dot(dR + i * Dv, P + i * Dv, AQ_F32, Dv);
    rows_scaled(c, dR, c->beta, Dv, c->v);
    rows_scaled(c, c->v, p.E, Dv, P);           /* W */
    rows_scaled(c, c->dout, p.E, Dv, c->dout); /* Y */
    pairs_back(c, &p, dL, dM, log);
    rows_back(c, dL, dM);
    states_back(c, &p, U, c->dout, P, part, log);
    state_back(c, &p, c->dout, P);
    for (uint64_t i = n; i-- > 0;) {
        behind += log[i];
        c->dg[i] = (float)behind;
    }
}

const struct cpu_delta_way cpu_delta_chunked = {.forward = forward, .backward = backward};
