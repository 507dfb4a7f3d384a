/*
 * conform_schedule.c -- every row of schedules.def: programs of all P <= 8 and M <= 16 pass the dry run, within their
 * slots, with few credits and with many, clipped or not, alone or in replicas; and what the dry run is to refuse is
 * refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

enum { P_MAX = 8, M_MAX = 16, CODE_MAX = 8 * M_MAX + 4 };

static const enum aq_schedule_kind kinds[] = {
#define AQ_SCHEDULE(name, id, text) id,
#include "schedules.def"
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static struct aq_instruction code[P_MAX][CODE_MAX];
static struct aq_program programs[P_MAX];

static void emit_all(const struct aq_schedule_request *request)
{
    assert_true(aq_schedule_bound(request->micro_batches) <= CODE_MAX);
    for (uint32_t s = 0; s < request->stages; s++)
        assert_int_equal(aq_schedule_emit(request, s, code[s], CODE_MAX, &programs[s]), AQ_OK);
}

static void check_one(const struct aq_schedule_request *request, uint32_t credits, uint32_t send_frames)
{
    const struct aq_program_limits limits = {.credits = credits,
                                             .send_frames = send_frames,
                                             .replicas = request->reduce ? 2 + credits % 2 : 1};
    struct aq_text why = {0};
    emit_all(request);
    const enum aq_status status = aq_program_check(programs, request->stages, &limits, &why);
    if (status != AQ_OK)
        print_error("%s P=%u M=%u in flight %u, credits %u:\n%s\n", aq_schedule_name(request->kind), request->stages,
                    request->micro_batches, request->in_flight, credits, aq_text_of(&why));
    aq_text_deinit(&why);
    assert_int_equal(status, AQ_OK);
}

static void test_schedule_every_size_runs_dry(void **state)
{
    (void)state;
    uint32_t checked = 0;
    for (int k = 0; k < KINDS; k++)
        for (uint32_t P = 1; P <= P_MAX; P++)
            for (uint32_t M = 1; M <= M_MAX; M++) {
                const uint32_t flights[] = {
                    AQ_IN_FLIGHT_DEFAULT, AQ_IN_FLIGHT_CLASSIC, 1, 2, 3, P, 2 * P, 3 * P, M, 99};
                for (size_t f = 0; f < sizeof flights / sizeof *flights; f++) {
                    const struct aq_schedule_request request = {.kind = kinds[k],
                                                                .stages = P,
                                                                .micro_batches = M,
                                                                .in_flight = flights[f],
                                                                .window = f % 3 * 2};
                    check_one(&request, 4, 8);
                    check_one(&request, 1, 1);
                    checked++;
                }
            }
    assert_int_equal(checked, KINDS * P_MAX * M_MAX * 10);
}

/* Two and three replicas meet at REDUCE and at STEP, whatever the size. */
static void test_schedule_every_size_runs_dry_in_replicas(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (uint32_t P = 1; P <= P_MAX; P++)
            for (uint32_t M = 1; M <= M_MAX; M++) {
                const struct aq_schedule_request request = {
                    .kind = kinds[k], .stages = P, .micro_batches = M, .window = M % 3, .reduce = true};
                check_one(&request, 4, 8);
                check_one(&request, 1, 1);
            }
}

/* A beginning of a program, as a step runs it that has fewer micro-batches (aq_program_next_of), to `part`. */
static void cut(const struct aq_program *whole, uint32_t micro_batches, struct aq_instruction *part,
                struct aq_program *out)
{
    uint32_t barrier = 0, next[AQ_CHAINS];
    while (aq_op_chain(whole->code[barrier].op) != AQ_CHAINS)
        barrier++;
    *out = *whole;
    out->code = part;
    out->count = 0;
    out->micro_batches = micro_batches;
    out->window = 0;
    out->slots = whole->slots < micro_batches ? whole->slots : micro_batches;
    for (int c = 0; c < AQ_CHAINS; c++)
        next[c] = aq_program_next_of(whole, c, 0, barrier, micro_batches);
    for (uint32_t at = 0; at < whole->count; at++) {
        for (int c = 0; c < AQ_CHAINS && at < barrier; c++) {
            if (next[c] != at) continue;
            if (whole->code[at].op != AQ_OP_PREFETCH) part[out->count++] = whole->code[at]; /* they wait for nothing */
            next[c] = aq_program_next_of(whole, c, at + 1, barrier, micro_batches);
        }
        if (at >= barrier) part[out->count++] = whole->code[at];
    }
    for (int c = 0; c < AQ_CHAINS; c++)
        assert_int_equal(next[c], barrier);
}

/* Each beginning of a program runs dry where all of it does, and has all that its micro-batches need. */
static void test_schedule_every_beginning_runs_dry(void **state)
{
    static struct aq_instruction part_code[P_MAX][CODE_MAX];
    static const struct aq_program_limits few = {.credits = 1, .send_frames = 1, .replicas = 1, .summed = true};
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (uint32_t P = 1; P <= P_MAX; P += P < 3 ? 1 : 2)
            for (uint32_t M = 1; M <= M_MAX; M += M < 6 ? 1 : 5) {
                const uint32_t flights[] = {AQ_IN_FLIGHT_DEFAULT, 1, 3};
                for (size_t f = 0; f < sizeof flights / sizeof *flights; f++) {
                    const struct aq_schedule_request request = {.kind = kinds[k],
                                                                .stages = P,
                                                                .micro_batches = M,
                                                                .in_flight = flights[f],
                                                                .window = M % 3,
                                                                .reduce = true};
                    emit_all(&request);
                    for (uint32_t m = 0; m <= M; m++) {
                        struct aq_program parts[P_MAX];
                        for (uint32_t s = 0; s < P; s++)
                            cut(&programs[s], m, part_code[s], &parts[s]);
                        if (m == 0)
                            assert_int_equal(parts[0].count, 4); /* REDUCE, NORM, STEP, MARK */
                        else
                            assert_int_equal(aq_program_check(parts, P, &few, NULL), AQ_OK);
                    }
                }
            }
}

static void test_schedule_slots_never_grow_and_bound_the_program(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (uint32_t P = 1; P <= P_MAX; P++)
            for (uint32_t M = 1; M <= M_MAX; M++) {
                const struct aq_schedule_request request = {
                    .kind = kinds[k], .stages = P, .micro_batches = M, .in_flight = M % 4 ? AQ_IN_FLIGHT_DEFAULT : M};
                uint32_t before = UINT32_MAX;
                emit_all(&request);
                for (uint32_t s = 0; s < P; s++) {
                    assert_int_equal(programs[s].slots, aq_schedule_slots(&request, s));
                    assert_true(programs[s].slots <= before && programs[s].slots <= M);
                    before = programs[s].slots;
                    for (uint32_t i = 0; i < programs[s].count; i++)
                        assert_true(programs[s].code[i].slot < programs[s].slots);
                }
            }
}

/* The chains of a step begin before the one before is done: no order that timing may bring stands still. */
static void test_schedule_every_size_runs_dry_with_staleness(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (uint32_t P = 1; P <= P_MAX; P++)
            for (uint32_t M = 1; M <= M_MAX; M++) {
                const uint32_t flights[] = {AQ_IN_FLIGHT_DEFAULT, AQ_IN_FLIGHT_CLASSIC, 1, M, M + 1, 2 * M, 99};
                for (size_t f = 0; f < sizeof flights / sizeof *flights; f++) {
                    const struct aq_schedule_request request = {.kind = kinds[k],
                                                                .stages = P,
                                                                .micro_batches = M,
                                                                .in_flight = flights[f],
                                                                .window = f % 3 * 2,
                                                                .reduce = f % 2 == 1,
                                                                .staleness = 1};
                    check_one(&request, 4, 8);
                    check_one(&request, 1, 1);
                    for (uint32_t s = 0; s < P; s++)
                        assert_true(programs[s].slots <= 2 * M);
                }
            }
}

static void test_schedule_names_are_found(void **state)
{
    (void)state;
    enum aq_schedule_kind kind;
    for (int k = 0; k < KINDS; k++) {
        assert_int_equal(aq_schedule_find(aq_schedule_name(kinds[k]), &kind), AQ_OK);
        assert_int_equal(kind, kinds[k]);
    }
    assert_int_equal(aq_schedule_find("interleaved", &kind), AQ_NOTFOUND);
}

/* The very same request gives the very same bytes: the emitter is pure. */
static void test_schedule_emit_twice_equal(void **state)
{
    (void)state;
    static struct aq_instruction again[CODE_MAX];
    for (int k = 0; k < KINDS; k++) {
        const struct aq_schedule_request request = {
            .kind = kinds[k], .stages = 5, .micro_batches = 11, .window = 3};
        struct aq_program program;
        emit_all(&request);
        assert_int_equal(aq_schedule_emit(&request, 2, again, CODE_MAX, &program), AQ_OK);
        assert_int_equal(program.count, programs[2].count);
        assert_memory_equal(again, code[2], program.count * sizeof *again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule_every_size_runs_dry),
        cmocka_unit_test(test_schedule_every_size_runs_dry_in_replicas),
        cmocka_unit_test(test_schedule_every_beginning_runs_dry),
        cmocka_unit_test(test_schedule_slots_never_grow_and_bound_the_program),
        cmocka_unit_test(test_schedule_every_size_runs_dry_with_staleness),
        cmocka_unit_test(test_schedule_names_are_found),
        cmocka_unit_test(test_schedule_emit_twice_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
