/*
 * test_lr_ends.c -- the learning rate of each step of runs that went on beyond their end, against formulas in
 * double, for every decay; and how a list of ends is read, written and made longer.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "lr_ends.h"

enum { WARMUP = 3, FIRST = 12, SECOND = 20, THIRD = 30, EVERY = 4 };
static const double peak = 0.5, least = 0.125, rate = 0.25, power = 2;

static struct aq_lr_schedule schedule_of(enum aq_lr_decay decay, uint64_t total)
{
    return (struct aq_lr_schedule){.decay = decay,
                                   .peak = (float)peak,
                                   .least = (float)least,
                                   .warmup = WARMUP,
                                   .total = total,
                                   .every = EVERY,
                                   .rate = (float)rate,
                                   .power = (float)power};
}

/* Of a schedule by itself: `step` of `total`. */
static double alone(enum aq_lr_decay decay, uint64_t step, uint64_t total)
{
    if (step <= WARMUP) return peak * (double)step / WARMUP;
    const double done = (double)(step - WARMUP - 1), part = done / (double)(total - WARMUP);
    const double left = decay == AQ_DECAY_LINEAR        ? 1 - part
                        : decay == AQ_DECAY_COSINE      ? 0.5 + 0.5 * cos(3.14159265358979323846 * part)
                        : decay == AQ_DECAY_POLYNOMIAL  ? (1 - part) * (1 - part)
                        : decay == AQ_DECAY_STEP        ? pow(rate, floor(done / EVERY))
                        : decay == AQ_DECAY_EXPONENTIAL ? pow(rate, done / EVERY)
                                                        : 1;
    return least + (peak - least) * left;
}

static bool ends(enum aq_lr_decay decay)
{
    return decay == AQ_DECAY_LINEAR || decay == AQ_DECAY_COSINE || decay == AQ_DECAY_POLYNOMIAL;
}

static void expect(const char *text, enum aq_lr_decay decay, uint64_t total, uint64_t step, double wanted)
{
    struct aq_lr_ends list;
    const struct aq_lr_schedule whole = schedule_of(decay, total);
    assert_true(aq_lr_ends_read(text, &list));
    const double got = (double)aq_lr_ends_rate(&list, &whole, step);
    if (fabs(got - wanted) > 1e-7)
        fail_msg("'%s', decay %d, step %u of %u: %.9g, wanted %.9g", text, (int)decay, (unsigned)step, (unsigned)total,
                 got, wanted);
}

static void test_every_step_of_every_choice(void **state)
{
    (void)state;
    for (enum aq_lr_decay decay = AQ_DECAY_CONSTANT; decay <= AQ_DECAY_EXPONENTIAL; decay++) {
        for (uint64_t step = 1; step <= THIRD; step++) {
            /* Extended: one schedule to the end, whatever was said before. */
            expect("", decay, THIRD, step, alone(decay, step, THIRD));
            expect("extend 12", decay, THIRD, step, alone(decay, step, THIRD));
            /* Continued: the first schedule, whose last rate stays; a pace goes on. */
            const uint64_t held = step > FIRST && ends(decay) ? FIRST : step;
            expect("continue 12", decay, THIRD, step, alone(decay, held, FIRST));
            /* Restarted: two schedules, one behind the other; and three. */
            const bool second = step > FIRST, third = step > SECOND;
            expect("restart 12", decay, THIRD, step,
                   second ? alone(decay, step - FIRST, THIRD - FIRST) : alone(decay, step, FIRST));
            expect("restart 12, restart 20", decay, THIRD, step,
                   third    ? alone(decay, step - SECOND, THIRD - SECOND)
                   : second ? alone(decay, step - FIRST, SECOND - FIRST)
                            : alone(decay, step, FIRST));
            /* Held, and then begun again; begun again, and then held; begun again, and then stretched. */
            expect("continue 12, restart 20", decay, THIRD, step,
                   third ? alone(decay, step - SECOND, THIRD - SECOND) : alone(decay, held, FIRST));
            const uint64_t stays = third && ends(decay) ? SECOND : step;
            expect("restart 12, continue 20", decay, THIRD, step,
                   second ? alone(decay, stays - FIRST, SECOND - FIRST) : alone(decay, step, FIRST));
            expect("restart 12, extend 20", decay, THIRD, step,
                   second ? alone(decay, step - FIRST, THIRD - FIRST) : alone(decay, step, FIRST));
        }
    }
}

/* Figures by hand: 3 steps of warm-up to 0.5, then linear to 0.125 over 9. */
static void test_rates_by_hand(void **state)
{
    (void)state;
    expect("continue 12", AQ_DECAY_LINEAR, THIRD, 12, 0.125 + 0.375 / 9);
    expect("continue 12", AQ_DECAY_LINEAR, THIRD, 30, 0.125 + 0.375 / 9);
    expect("restart 12", AQ_DECAY_LINEAR, THIRD, 13, 0.5 / 3);
    expect("restart 12", AQ_DECAY_LINEAR, THIRD, 16, 0.5);
    expect("restart 12", AQ_DECAY_LINEAR, THIRD, 30, 0.125 + 0.375 / 15);
    expect("", AQ_DECAY_LINEAR, THIRD, 13, 0.125 + 0.375 * 18 / 27);
}

static void test_a_list_is_read_and_written(void **state)
{
    static const char *const good[] = {"", "extend 1", "continue 12, restart 1152921504606846976",
                                       "restart 3, restart 4, extend 5"};
    static const char *const bad[] = {"restart",
                                      "restart 0",
                                      "restart 12,",
                                      ",",
                                      "restart 12 13",
                                      "begin 4",
                                      "restart -4",
                                      "restart 4x",
                                      "restart 12, continue 12",
                                      "continue 12, restart 3",
                                      "restart 99999999999999999999",
                                      "12"};
    char text[AQ_LR_ENDS_BYTES];
    struct aq_lr_ends list;
    (void)state;
    assert_true(aq_lr_ends_read(NULL, &list) && list.count == 0);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(aq_lr_ends_read(good[i], &list));
        aq_lr_ends_write(&list, text);
        assert_string_equal(text, good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (aq_lr_ends_read(bad[i], &list)) fail_msg("'%s' was read", bad[i]);
    assert_true(aq_lr_ends_read("restart 3 ,continue   4", &list) && list.count == 2);
}

/* What is asked at an end, and the list that comes of it. */
static void test_a_choice_is_kept(void **state)
{
    static const struct {
        const char *before;
        enum aq_lr_choice choice;
        uint64_t step;
        const char *after;
    } cases[] = {
        {"", AQ_LR_UNSAID, 12, ""},
        {"", AQ_LR_EXTEND, 12, "extend 12"},
        {"", AQ_LR_CONTINUE, 12, "continue 12"},
        {"", AQ_LR_RESTART, 12, "restart 12"},
        {"restart 12", AQ_LR_UNSAID, 20, "restart 12, restart 20"},
        {"continue 12", AQ_LR_UNSAID, 20, "continue 12"},
        {"extend 12", AQ_LR_UNSAID, 20, "extend 12"},
        {"restart 12", AQ_LR_EXTEND, 20, "restart 12, extend 20"},
        {"restart 12, extend 20", AQ_LR_UNSAID, 30, "restart 12, extend 20"},
        {"restart 12, extend 20", AQ_LR_CONTINUE, 30, "restart 12, continue 30"},
        {"continue 12", AQ_LR_EXTEND, 20, "extend 20"},
        {"continue 12", AQ_LR_RESTART, 20, "continue 12, restart 20"},
        /* An end that was never reached, since the run was made shorter. */
        {"restart 30", AQ_LR_UNSAID, 20, "restart 20"},
        {"continue 20", AQ_LR_RESTART, 20, "restart 20"},
    };
    char text[AQ_LR_ENDS_BYTES];
    struct aq_lr_ends list;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(aq_lr_ends_read(cases[i].before, &list));
        assert_true(aq_lr_ends_add(&list, cases[i].choice, cases[i].step));
        aq_lr_ends_write(&list, text);
        assert_string_equal(text, cases[i].after);
    }
    list.count = 0;
    for (uint64_t i = 1; i <= AQ_LR_ENDS_MAX; i++)
        assert_true(aq_lr_ends_add(&list, AQ_LR_RESTART, (UINT64_C(1) << 60) - 64 + i));
    aq_lr_ends_write(&list, text); /* as long as can be */
    assert_true(aq_lr_ends_read(text, &list) && list.count == AQ_LR_ENDS_MAX);
    assert_false(aq_lr_ends_add(&list, AQ_LR_RESTART, UINT64_C(1) << 60));
    assert_true(list.count == AQ_LR_ENDS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_step_of_every_choice),
        cmocka_unit_test(test_rates_by_hand),
        cmocka_unit_test(test_a_list_is_read_and_written),
        cmocka_unit_test(test_a_choice_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
