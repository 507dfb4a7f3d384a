#include "codec_common.h"

enum { CANARY = 96 };

struct aq_rng_key test_key(uint64_t number)
{
    return aq_rng_key(2, AQ_RNG_TEST, 77, number);
}

static void draw(float *x, size_t n, enum shape shape, float scale, uint64_t number)
{
    const struct aq_rng_key key = test_key(number);
    for (size_t i = 0; i < n; i++) {
        double value = 0;
        if (shape == SHAPE_LAPLACE) {
            const double u = (double)aq_rng_u32(&key, 2 * i) + 0.5, sign = aq_rng_u32(&key, 2 * i + 1) & 1 ? 1 : -1;
            value = -log(u * 0x1p-32) * sign * sqrt(0.5);
        } else {
            value = (double)aq_rng_normal(&key, 4 * i);
            if (shape == SHAPE_STUDENT3) {
                double chi = 0;
                for (uint64_t k = 1; k < 4; k++)
                    chi += pow((double)aq_rng_normal(&key, 4 * i + k), 2);
                value /= sqrt(chi / 3);
            }
        }
        x[i] = (float)value * scale;
    }
}

/* Tests ask for the same values again, once per codec and configuration: the last ones of a few numbers are kept. */
void fill(float *x, size_t n, enum shape shape, float scale, uint64_t number)
{
    enum { KEPT = 16, KEPT_VALUES = 1 << 17 };
    static struct kept {
        size_t n;
        enum shape shape;
        float scale;
        uint64_t number;
        float values[KEPT_VALUES];
    } all[KEPT];
    struct kept *kept = &all[number % KEPT];
    if (n > KEPT_VALUES) {
        draw(x, n, shape, scale, number);
        return;
    }
    if (n > kept->n || shape != kept->shape || scale != kept->scale || number != kept->number) {
        draw(kept->values, n, shape, scale, number);
        kept->n = n;
        kept->shape = shape;
        kept->scale = scale;
        kept->number = number;
    }
    memcpy(x, kept->values, n * sizeof *x);
}

size_t tables(const struct aq_codec_kernels *out[4])
{
    static const char *const names[] = {"plain", "avx2", "avx512", "vbmi"};
    size_t count = 0;
    for (size_t i = 0; i < 4; i++) {
        out[count] = aq_codec_kernels_named(names[i]);
        if (out[count] != NULL) count++;
    }
    return count;
}

static uint8_t *guarded(size_t bytes)
{
    void *memory;
    assert_int_equal(aq_alloc(bytes + CANARY, &memory), AQ_OK);
    memset((uint8_t *)memory + bytes, 0xA5, CANARY);
    return memory;
}

static void alive(const uint8_t *memory, size_t bytes)
{
    for (size_t i = 0; i < CANARY; i++)
        assert_int_equal(memory[bytes + i], 0xA5);
}

void end_open(struct end *end, const struct aq_codec_config *config, uint32_t rows, uint32_t columns)
{
    assert_int_equal(aq_codec_open(NULL, config, rows, columns, &end->codec), AQ_OK);
    end->values = (size_t)rows * columns;
    end->a = (float *)(void *)guarded(4 * end->values);
    end->hat = (float *)(void *)guarded(4 * end->values);
    end->body = guarded(aq_codec_bound(end->codec));
    end->m = guarded(aq_codec_message_bytes(end->codec));
}

void end_check(const struct end *end)
{
    alive((const uint8_t *)end->a, 4 * end->values);
    alive((const uint8_t *)end->hat, 4 * end->values);
    alive(end->body, aq_codec_bound(end->codec));
    alive(end->m, aq_codec_message_bytes(end->codec));
}

void end_close(struct end *end)
{
    end_check(end);
    aq_free(end->a);
    aq_free(end->hat);
    aq_free(end->body);
    aq_free(end->m);
    aq_codec_close(end->codec);
}

static void drop(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

void quiet_begin(void)
{
    aq_log_sink(drop, NULL);
}

void quiet_end(void)
{
    aq_log_sink(NULL, NULL);
    aq_error_clear();
}

double relative(double error2, double signal2)
{
    return sqrt(error2 / signal2);
}
