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

#include "program_run.h"

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
    const struct aq_program_limits limits = {
        .credits = credits, .send_frames = send_frames, .replicas = request->reduce ? 2 + credits % 2 : 1};
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
                                                                .window = f % 3 * 2,
                                                                .flush = f % 2 == 1};
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
                    .kind = kinds[k], .stages = P, .micro_batches = M, .window = M % 3, .reduce = true, .flush = P % 2};
                check_one(&request, 4, 8);
                check_one(&request, 1, 1);
            }
}

static enum aq_status at_once(void *self, const struct aq_program_item *item)
{
    (void)self;
    (void)item;
    return AQ_OK;
}

/* A beginning of a program, as the interpreter runs a step that has fewer micro-batches, to `part`. */
static void cut(const struct aq_program *whole, uint32_t micro_batches, struct aq_instruction *part,
                struct aq_program *out)
{
    static const struct aq_program_policy policy = {.begin = at_once};
    const struct aq_instruction *due;
    struct aq_program_run run;
    uint32_t lane;
    *out = *whole;
    out->code = part;
    out->count = 0;
    out->micro_batches = micro_batches;
    out->window = 0;
    out->slots = whole->slots < micro_batches ? whole->slots : micro_batches;
    aq_program_run_init(&run, whole, AQ_LANES_TIMED, 0);
    aq_program_run_add(&run, whole, micro_batches);
    while (aq_program_run_begin(&run, &policy, &lane) == AQ_OK) {
        part[out->count++] = whole->code[run.lanes[lane].at];
        (void)aq_program_run_end(&run, lane);
    }
    assert_true(aq_program_run_past(&run, 0));
    for (; (due = aq_program_run_due(&run)) != NULL; (void)aq_program_run_pass(&run))
        part[out->count++] = *due;
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

/* --- the interpreter by itself ---------------------------------------------------------------------------------- */

enum { STEPS = 3, COPIES = 2 };

/* What a run has begun and ended of all steps, written down without its rules. */
struct record {
    const struct aq_program *program;
    uint32_t seed;
    uint32_t begun[AQ_OP_COUNT], ended[AQ_OP_COUNT];
    uint32_t holder[2 * M_MAX]; /* of each slot: micro-batch + 1; 0: free */
    struct aq_program_item under_way[AQ_PROGRAM_LANES];
};

static uint32_t lot(struct record *record, uint32_t below)
{
    record->seed = record->seed * 1664525u + 1013904223u;
    return (record->seed >> 16) % below;
}

/* Refuses by lot. What it begins must be in order, in a slot of its own, with its operands. */
static enum aq_status by_lot(void *self, const struct aq_program_item *item)
{
    struct record *record = self;
    const uint32_t i = (uint32_t)item->number;
    const bool first = record->program->stage == 0, last = record->program->stage + 1 == record->program->stages;
    if (lot(record, 3) == 0) return AQ_AGAIN;
    if (item->op == AQ_OP_RECV_BWD && record->ended[AQ_OP_SEND_FWD] <= i) return AQ_AGAIN; /* nobody can have sent it */
    assert_int_equal(record->begun[item->op], i);
    const uint32_t slot = i % record->program->slots;
    if (item->op == AQ_OP_RECV_FWD || (item->op == AQ_OP_FORWARD && first)) {
        assert_int_equal(record->holder[slot], 0);
        record->holder[slot] = i + 1;
    }
    /* What SEND_BWD sends is at the cut: with a split backward the slot may be free already. */
    if (item->op != AQ_OP_SEND_BWD || !record->program->split) assert_int_equal(record->holder[slot], i + 1);
    if (item->op == AQ_OP_FORWARD && !first) assert_true(record->ended[AQ_OP_RECV_FWD] > i);
    if (item->op == AQ_OP_FORWARD && !last) assert_true(record->ended[AQ_OP_SEND_FWD] + COPIES > i);
    if (item->op == AQ_OP_SEND_FWD) assert_true(record->ended[AQ_OP_FORWARD] > i);
    if (item->op == AQ_OP_BACKWARD) assert_true(record->ended[AQ_OP_FORWARD] > i);
    if (item->op == AQ_OP_BACKWARD && !last) assert_true(record->ended[AQ_OP_RECV_BWD] > i);
    if (item->op == AQ_OP_SEND_BWD || item->op == AQ_OP_WEIGHTS) assert_true(record->ended[AQ_OP_BACKWARD] > i);
    record->begun[item->op]++;
    record->under_way[item->lane] = *item;
    return AQ_OK;
}

static void end_one(struct aq_program_run *run, struct record *record, uint32_t lane)
{
    const struct aq_program_item *item = &record->under_way[lane];
    const bool split = record->program->split, first = record->program->stage == 0;
    const uint32_t slot = aq_program_run_slot(run, item->number);
    assert_int_equal(aq_program_run_end(run, lane), item->op);
    record->ended[item->op]++;
    if (item->op == (split ? AQ_OP_WEIGHTS : first ? AQ_OP_BACKWARD : AQ_OP_SEND_BWD)) record->holder[slot] = 0;
}

/* All steps of one stage, whose instructions begin and end by lot. */
static void run_by_lot(const struct aq_program *program, enum aq_lanes lanes, uint32_t seed)
{
    struct record record = {.program = program, .seed = seed};
    const struct aq_program_policy policy = {.begin = by_lot, .self = &record};
    struct aq_program_run run;
    uint32_t added = 0, over = 0, lane;
    aq_program_run_init(&run, program, lanes, COPIES);
    for (; added <= program->staleness; added++)
        aq_program_run_add(&run, program, program->micro_batches);
    for (uint32_t turn = 0; over < STEPS; turn++) {
        assert_true(turn < 100000); /* by lot, but it ends */
        (void)aq_program_run_begin(&run, &policy, &lane);
        for (lane = 0; lane < run.lane_count; lane++)
            if (run.lanes[lane].busy && lot(&record, 2)) end_one(&run, &record, lane);
        if (!aq_program_run_due(&run)) continue;
        assert_true(record.ended[AQ_OP_BACKWARD] >= (program->staleness ? over + 1 : 1) * program->micro_batches);
        while (aq_program_run_pass(&run))
            ;
        aq_program_run_next(&run);
        over++;
        if (program->staleness == 0) { /* every such step starts with free slots, and counts from 0 */
            const uint32_t next = record.seed;
            for (uint32_t slot = 0; slot < program->slots; slot++)
                assert_int_equal(record.holder[slot], 0);
            record = (struct record){.program = program, .seed = next};
        }
        if (added++ < STEPS) aq_program_run_add(&run, program, program->micro_batches);
    }
}

/* In whatever order the world lets instructions begin and end: none begins early, and all steps come to their end. */
static void test_run_begins_nothing_early_by_lot(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (uint32_t P = 1; P <= 4; P++)
            for (uint32_t M = 1; M <= 7; M++)
                for (uint32_t f = 0; f < 12; f++) {
                    const uint32_t flights[] = {AQ_IN_FLIGHT_DEFAULT, AQ_IN_FLIGHT_CLASSIC, 1, M};
                    const struct aq_schedule_request request = {.kind = kinds[k],
                                                                .stages = P,
                                                                .micro_batches = M,
                                                                .in_flight = flights[f % 4],
                                                                .reduce = f % 2 == 0,
                                                                .staleness = f / 4 % 2,
                                                                .flush = f >= 8};
                    emit_all(&request);
                    for (uint32_t s = 0; s < P; s++) {
                        run_by_lot(&programs[s], AQ_LANES_TIMED, f);
                        run_by_lot(&programs[s], AQ_LANES_KINDS, f);
                    }
                }
}

/* Writes down who is asked, and begins nothing. */
static enum aq_status ask(void *self, const struct aq_program_item *item)
{
    struct record *record = self;
    record->under_way[record->begun[0]++] = *item;
    return AQ_AGAIN;
}

/* The forward chain, up to the next step's send. */
static enum aq_status before_next_send(void *self, const struct aq_program_item *item)
{
    (void)self;
    return item->lane == AQ_CHAIN_FORWARD && !(item->op == AQ_OP_SEND_FWD && item->step == 1) ? AQ_OK : AQ_AGAIN;
}

/* A send of the next step is asked first, because another stage waits for it; then the earliest in the program. */
static void test_run_asks_in_turn(void **state)
{
    static const struct aq_program_policy forwards = {.begin = before_next_send};
    const struct aq_schedule_request request = {
        .kind = AQ_SCHEDULE_GPIPE, .stages = 3, .micro_batches = 1, .in_flight = 2, .staleness = 1};
    static struct record record;
    const struct aq_program_policy policy = {.begin = ask, .self = &record};
    struct aq_program_run run;
    uint32_t lane;
    (void)state;
    emit_all(&request);
    aq_program_run_init(&run, &programs[1], AQ_LANES_CHAINS, 0);
    aq_program_run_add(&run, &programs[1], 1);
    aq_program_run_add(&run, &programs[1], 1);
    assert_int_equal(aq_program_run_begin(&run, &policy, &lane), AQ_AGAIN);
    assert_int_equal(record.begun[0], 2); /* RECV_FWD, RECV_BWD */
    assert_int_equal(record.under_way[0].op, AQ_OP_RECV_FWD);
    assert_int_equal(record.under_way[1].op, AQ_OP_RECV_BWD);
    while (aq_program_run_begin(&run, &forwards, &lane) == AQ_OK)
        (void)aq_program_run_end(&run, lane);
    record = (struct record){0};
    assert_int_equal(aq_program_run_begin(&run, &policy, &lane), AQ_AGAIN);
    assert_int_equal(record.begun[0], 2);
    assert_int_equal(record.under_way[0].op, AQ_OP_SEND_FWD);
    assert_int_equal(record.under_way[0].step, 1);
    assert_int_equal(record.under_way[1].op, AQ_OP_RECV_BWD);
    assert_int_equal(record.under_way[1].step, 0);
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

/* The very same request gives the very same bytes: the emitter is pure. */
static void test_schedule_emit_twice_equal(void **state)
{
    (void)state;
    static struct aq_instruction again[CODE_MAX];
    for (int k = 0; k < KINDS; k++) {
        const struct aq_schedule_request request = {.kind = kinds[k], .stages = 5, .micro_batches = 11, .window = 3};
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
        cmocka_unit_test(test_run_begins_nothing_early_by_lot),
        cmocka_unit_test(test_run_asks_in_turn),
        cmocka_unit_test(test_schedule_slots_never_grow_and_bound_the_program),
        cmocka_unit_test(test_schedule_every_size_runs_dry_with_staleness),
        cmocka_unit_test(test_schedule_emit_twice_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
