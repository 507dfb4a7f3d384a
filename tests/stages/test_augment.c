/*
 * test_augment.c -- crops and flips: each view against a truth that copies pixel by pixel, what is drawn, and what a
 * crop is at a cut.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "aqsgd/base.h"
#include "stages/augment.h"

enum { SIDE = 8, COLOURS = AQ_AUGMENT_COLOURS, VALUES = SIDE * SIDE * COLOURS, SAMPLES = 3 };

static const float black[COLOURS] = {-1.0f, -0.5f, 0.25f};

static void fill(float images[SAMPLES][VALUES])
{
    const struct aq_rng_key key = aq_rng_key(3, AQ_RNG_TEST, 0, 0);
    for (int i = 0; i < SAMPLES * VALUES; i++)
        images[i / VALUES][i % VALUES] = aq_rng_uniform(&key, (uint64_t)i);
}

static float seen(const struct aq_view *view, const float *image, int y, int x, int colour)
{
    const int from = y + view->down, at = x + view->right;
    if (from < 0 || at < 0 || from >= SIDE || at >= SIDE) return black[colour];
    return image[(from * SIDE + (view->flipped ? SIDE - 1 - at : at)) * COLOURS + colour];
}

static void test_view_is_the_window_of_the_framed_image(void **state)
{
    (void)state;
    static float images[SAMPLES][VALUES], was[SAMPLES][VALUES];
    int32_t labels[SAMPLES] = {1, 2, 3};
    struct aq_batch batch = {.samples = SAMPLES,
                             .field_count = 2,
                             .fields = {{"images", AQ_FIELD_F32, VALUES, images}, {"labels", AQ_FIELD_I32, 1, labels}}};
    assert_int_equal(aq_augment_side(batch.fields, batch.field_count), SIDE);
    for (int16_t down = -SIDE; down <= SIDE; down++)
        for (int16_t right = -SIDE; right <= SIDE; right++)
            for (int flipped = 0; flipped < 2; flipped++) {
                const struct aq_view view = {.down = down, .right = right, .flipped = flipped == 1};
                fill(images);
                fill(was);
                aq_view_apply(&view, black, &batch, 1);
                assert_memory_equal(images[0], was[0], sizeof was[0]);
                assert_memory_equal(images[2], was[2], sizeof was[2]);
                for (int i = 0; i < VALUES; i++) {
                    const float wanted = seen(&view, was[1], i / COLOURS / SIDE, i / COLOURS % SIDE, i % COLOURS);
                    assert_memory_equal(&images[1][i], &wanted, sizeof wanted);
                }
            }
    assert_int_equal(labels[1], 2);
    batch.fields[0].name = "tokens"; /* of what are no images, nothing */
    const struct aq_view view = {.down = 1, .right = 1, .flipped = true};
    fill(images);
    aq_view_apply(&view, black, &batch, 1);
    assert_memory_equal(images, was, sizeof was);
}

static void test_views_are_drawn_evenly_and_anew_in_each_epoch(void **state)
{
    (void)state;
    enum { CROP = 2, PLACES = 2 * CROP + 1, DRAWS = 20000 };
    const struct aq_augment augment = {.crop = CROP, .flip = true};
    uint32_t counts[PLACES][PLACES][2] = {{{0}}}, other = 0;
    for (uint64_t sample = 0; sample < DRAWS; sample++) {
        const struct aq_view view = aq_view_of(&augment, 7, 1, sample), again = aq_view_of(&augment, 7, 1, sample);
        const struct aq_view next = aq_view_of(&augment, 7, 2, sample);
        assert_in_range(view.down + CROP, 0, PLACES - 1);
        assert_in_range(view.right + CROP, 0, PLACES - 1);
        assert_true(view.down == again.down && view.right == again.right && view.flipped == again.flipped);
        other += view.down != next.down || view.right != next.right || view.flipped != next.flipped;
        counts[view.down + CROP][view.right + CROP][view.flipped]++;
    }
    for (int i = 0; i < PLACES * PLACES * 2; i++) /* 400 each, 20 the deviation */
        assert_in_range(counts[i / 2 / PLACES][i / 2 % PLACES][i % 2], 300, 500);
    assert_in_range(other, DRAWS * 97 / 100, DRAWS); /* 49 in 50 */
    const struct aq_augment none = {.crop = 0}, flips = {.flip = true};
    for (uint64_t sample = 0; sample < 100; sample++) {
        const struct aq_view plain = aq_view_of(&none, 7, 1, sample), flip = aq_view_of(&flips, 7, 1, sample);
        assert_true(plain.down == 0 && plain.right == 0 && !plain.flipped && flip.down == 0 && flip.right == 0);
    }
}

/* A hole is a square around its middle, as far as it is inside; every pixel is its middle for some sample. */
static void test_holes_are_grey_squares_at_even_places(void **state)
{
    (void)state;
    static float images[SAMPLES][VALUES], was[SAMPLES][VALUES];
    struct aq_batch batch = {
        .samples = SAMPLES, .field_count = 1, .fields = {{"images", AQ_FIELD_F32, VALUES, images}}};
    uint32_t counts[SIDE][SIDE] = {{0}};
    for (uint32_t hole = 1; hole <= SIDE + 3; hole++) {
        const struct aq_augment augment = {.crop = 2, .flip = true, .cutout = hole}, window = {.crop = 2, .flip = true};
        assert_true(aq_augment_any(&(struct aq_augment){.cutout = hole}));
        for (uint64_t sample = 0; sample < 1000; sample++) {
            const struct aq_view view = aq_view_of(&augment, 7, 1, sample), other = aq_view_of(&window, 7, 1, sample);
            assert_true(view.down == other.down && view.right == other.right && view.flipped == other.flipped);
            const int y0 = (int)((uint64_t)view.hole_down * SIDE >> 32),
                      x0 = (int)((uint64_t)view.hole_right * SIDE >> 32);
            const int from = -(int)(hole / 2), to = from + (int)hole;
            counts[y0][x0]++;
            fill(images);
            fill(was);
            aq_view_apply(&view, black, &batch, 1);
            assert_memory_equal(images[0], was[0], sizeof was[0]);
            assert_memory_equal(images[2], was[2], sizeof was[2]);
            for (int i = 0; i < VALUES; i++) {
                const int y = i / COLOURS / SIDE, x = i / COLOURS % SIDE;
                const bool inside = y >= y0 + from && y < y0 + to && x >= x0 + from && x < x0 + to;
                const float wanted = inside ? 0.0f : seen(&view, was[1], y, x, i % COLOURS);
                assert_memory_equal(&images[1][i], &wanted, sizeof wanted);
            }
        }
    }
    for (int i = 0; i < SIDE * SIDE; i++) /* 11,000 draws: 172 each, the same samples for each size of a hole */
        assert_in_range(counts[i / SIDE][i % SIDE], 11, 500);
}

static void test_crop_at_a_cut_is_the_nearest_whole_shift(void **state)
{
    (void)state;
    static const struct {
        uint32_t side;
        int16_t at[9]; /* of -4 to 4 pixels of an image of 32 */
    } cuts[] = {{32, {-4, -3, -2, -1, 0, 1, 2, 3, 4}},
                {16, {-2, -1, -1, 0, 0, 0, 1, 1, 2}}, /* a half goes towards 0 */
                {8, {-1, -1, 0, 0, 0, 0, 0, 1, 1}},
                {4, {0, 0, 0, 0, 0, 0, 0, 0, 0}},
                {1, {0, 0, 0, 0, 0, 0, 0, 0, 0}}};
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
        for (int16_t shift = -4; shift <= 4; shift++) {
            const struct aq_view view = {.down = shift, .right = (int16_t)-shift, .flipped = true};
            const struct aq_view at = aq_view_at(&view, cuts[c].side, 32);
            assert_int_equal(at.down, cuts[c].at[shift + 4]);
            assert_int_equal(at.right, cuts[c].at[4 - shift]);
            assert_true(at.flipped);
        }
    const struct aq_view view = {.down = 1, .right = -1};
    uint32_t whole = 99;
    assert_true(aq_view_row(&view, 4, 1, &whole)); /* (0, 1) sees (1, 0) */
    assert_int_equal(whole, 4);
    assert_false(aq_view_row(&view, 4, 4, &whole));  /* (1, 0): left of it */
    assert_false(aq_view_row(&view, 4, 13, &whole)); /* (3, 1): below */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_view_is_the_window_of_the_framed_image),
        cmocka_unit_test(test_views_are_drawn_evenly_and_anew_in_each_epoch),
        cmocka_unit_test(test_holes_are_grey_squares_at_even_places),
        cmocka_unit_test(test_crop_at_a_cut_is_the_nearest_whole_shift),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
