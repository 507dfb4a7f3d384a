/*
 * test_launcher_bounds.c -- a worker that says what the plan does not have ends the run, by name, and nothing of it is
 * written.
 *
 * The launcher's events in this process: two replicas of three stages, twelve steps, a checkpoint every four, an
 * evaluation every three. Lines come as from a daemon.
 */
#include <signal.h>

#include "launcher_kit.h"

/* All ranks: steps up to this one, with what the plan has at them. */
static void train(uint64_t last)
{
    for (uint64_t step = launcher.stages[0].step + 1; step <= last; step++) {
        for (uint32_t r = 0; r < RANKS; r++) {
            say_step(r, step, "step");
            if (step % 3 == 0 && r % P == P - 1) say_step(r, step, "eval");
        }
        for (uint32_t r = 0; r < RANKS && step % 4 == 0; r++)
            say_step(r, step, "mark");
    }
    assert_string_equal(result.cause, "");
}

static void test_what_the_plan_has_is_taken(void **state)
{
    (void)state;
    say(0, "{\"event\":\"listening\",\"address\":\"127.0.0.1:1\"}");
    say(2, "{\"event\":\"listening\",\"address\":\"127.0.0.1:1\",\"peer\":1}");
    say(1, "{\"event\":\"listening\",\"address\":\"[::1]:1\",\"peer\":4}");
    begin();
    train(12);
    assert_int_equal(result.mark, 12);
    for (uint32_t r = 0; r < RANKS; r++) {
        say(r, "{\"event\":\"trace\",\"text\":\"{\\\"a\\\":1},\\n\"}");
        say(r, "{\"event\":\"done\",\"stopped\":false,\"step\":12}");
        say(r, "{\"event\":\"exited\",\"code\":0,\"pid\":1}");
    }
    assert_string_equal(result.cause, "");
    assert_int_equal(launcher.ended, RANKS);
    char *text;
    uint64_t lines = 0;
    assert_int_equal(aq_file_load(NULL, metrics_path, 1 << 20, &text, NULL), AQ_OK);
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    aq_free(text);
    assert_int_equal(lines, 1 + 12 + 4); /* go, steps, evaluations */
}

static void test_lines_out_of_place_are_refused(void **state)
{
    static const struct {
        uint32_t rank;
        uint64_t trained; /* 0: before `go` */
        const char *line, *who, *why;
    } wrong[] = {
        /* before they train */
        {1, 0, "{\"event\":\"step\",\"step\":1}", "replica 0 stage 1", "sends 'step' while it starts"},
        {1, 0, "{\"event\":\"eval\",\"step\":0}", "replica 0 stage 1", "sends 'eval' while it starts"},
        {1, 0, "{\"event\":\"mark\",\"step\":0}", "replica 0 stage 1", "sends 'mark' while it starts"},
        {1, 0, "{\"event\":\"done\"}", "replica 0 stage 1", "sends 'done' while it starts"},
        {1, 0, "{\"event\":\"trace\",\"text\":\"x\"}", "replica 0 stage 1", "sends 'trace' while it starts"},
        {0, 0, "{\"event\":\"listening\",\"address\":\"a:1\",\"peer\":99}", "stage 0",
         "rank 99, to which it has no link"},
        {0, 0, "{\"event\":\"listening\",\"address\":\"a:1\",\"peer\":0}", "stage 0", "no link"},
        {0, 0, "{\"event\":\"listening\",\"address\":\"a:1\",\"peer\":2}", "stage 0", "no link"},
        {0, 0, "{\"event\":\"listening\",\"address\":\"a:1\",\"peer\":4}", "stage 0", "no link"},
        {5, 0, "{\"event\":\"listening\",\"address\":\"a:1\"}", "replica 1 stage 2", "rank 6"},
        {0, 0, "{\"event\":\"listening\",\"peer\":1}", "stage 0",
         "sends 'listening' without 'address', a printable word"},
        {0, 0, "{\"event\":\"listening\",\"address\":\"a\\u001b[2J:1\",\"peer\":1}", "stage 0",
         "whose 'address' is not"},
        {0, 0, "{\"event\":\"listening\",\"address\":\"\\n\",\"peer\":1}", "stage 0", "whose 'address' is not"},
        {0, 0, "{\"event\":\"ready\",\"rtt_ms\":-1}", "stage 0", "whose 'rtt_ms' is not a number from 0 to 3600000"},
        {0, 0, "{\"event\":\"ready\",\"rtt_ms\":1e300}", "stage 0", "whose 'rtt_ms' is not a number from 0 to 3600000"},
        {0, 0, "{\"event\":\"dance\"}", "stage 0", "sent 'dance', which is not a worker's event"},
        {0, 0, "{\"event\":\"\"}", "stage 0", "not a worker's event"},
        {0, 0, "{\"op\":\"abort\"}", "stage 0", "not a worker's event"},
        /* steps */
        {4, 5, "{\"event\":\"step\",\"step\":5}", "replica 1 stage 1", "reports step 5 while step 6 is due"},
        {4, 5, "{\"event\":\"step\",\"step\":7}", "replica 1 stage 1", "reports step 7 while step 6 is due"},
        {4, 5, "{\"event\":\"step\"}", "replica 1 stage 1",
         "sends 'step' without 'step', a whole number of at least 1"},
        {4, 5, "{\"event\":\"step\",\"step\":-6}", "replica 1 stage 1", "whose 'step' is not a whole number"},
        {4, 5, "{\"event\":\"step\",\"step\":\"6\"}", "replica 1 stage 1", "whose 'step' is not a whole number"},
        {4, 12, "{\"event\":\"step\",\"step\":13}", "replica 1 stage 1", "step 13, and step 12 was the last one"},
        {4, 12, "{\"event\":\"step\",\"step\":29}", "replica 1 stage 1", "step 29, and step 12 was the last one"},
        {4, 5, "{\"event\":\"step\",\"step\":6,\"epoch\":9223372036854775807}", "stage 1", "an epoch without steps"},
        {4, 5, "{\"event\":\"step\",\"step\":6,\"x\":[1,2]}", "stage 1", "field 'x' is neither a number nor a name"},
        {4, 5, "{\"event\":\"step\",\"step\":6,\"x\":{}}", "stage 1", "field 'x' is neither"},
        {4, 5,
         "{\"event\":\"step\",\"step\":6,\"x\":"
         "\"0123456789012345678901234567890123456789012345678901234567890123456\"}",
         "stage 1", "field 'x' is neither"},
        {4, 5, "{\"event\":\"step\",\"step\":6,\"a123456789012345678901234567890123\":1}", "stage 1", "neither"},
        {4, 5, "{\"event\":\"ready\"}", "replica 1 stage 1", "sends 'ready' while it trains"},
        {4, 5, "{\"event\":\"listening\",\"address\":\"a:1\"}", "stage 1", "sends 'listening' while it trains"},
        /* evaluations */
        {4, 3, "{\"event\":\"eval\",\"step\":3}", "replica 1 stage 1", "which the plan does not have it do"},
        {5, 4, "{\"event\":\"eval\",\"step\":4}", "replica 1 stage 2", "no evaluation is due"},
        {5, 3, "{\"event\":\"eval\",\"step\":3}", "replica 1 stage 2", "no evaluation is due"}, /* it did */
        {5, 5, "{\"event\":\"eval\",\"step\":6}", "replica 1 stage 2", "no evaluation is due"},
        {5, 5, "{\"event\":\"eval\",\"step\":3}", "replica 1 stage 2", "no evaluation is due"},
        {5, 5, "{\"event\":\"eval\"}", "replica 1 stage 2", "sends 'eval' without 'step'"},
        /* checkpoints */
        {3, 5, "{\"event\":\"mark\",\"step\":5}", "replica 1 stage 0", "step 5, at which none is due"},
        {3, 5, "{\"event\":\"mark\",\"step\":4}", "replica 1 stage 0", "that of step 4 is complete"},
        {3, 5, "{\"event\":\"mark\",\"step\":8}", "replica 1 stage 0", "having trained 5"},
        {3, 5, "{\"event\":\"mark\"}", "replica 1 stage 0", "sends 'mark' without 'step'"},
        /* traces */
        {3, 5, "{\"event\":\"trace\",\"text\":\"\\u001b]0;x\"}", "replica 1 stage 0",
         "whose 'text' is not printable lines"},
        {3, 5, "{\"event\":\"trace\",\"text\":\"\\u00e9\"}", "replica 1 stage 0",
         "whose 'text' is not printable lines"},
        {3, 5,
         "{\"event\":\"trace\",\"text\":\"01234567890123456789012345678901234567890123456789012345678901234567890123456"
         "789012345678901234567890123456789\"}",
         "replica 1 stage 0", "more than the 100 bytes"},
        /* ends */
        {3, 5, "{\"event\":\"done\",\"stopped\":false}", "replica 1 stage 0", "is done after step 5 of 12"},
        {3, 5, "{\"event\":\"done\",\"stopped\":true}", "replica 1 stage 0", "has stopped without being asked"},
        {0, 5, "{\"event\":\"stopping\",\"step\":6}", "replica 0 stage 0", "was not asked"},
        {3, 12, "{\"event\":\"done\",\"x\":[[[]]]}", "replica 1 stage 0", "field 'x'"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (i > 0) assert_int_equal(setup(state), 0);
        if (wrong[i].trained > 0) {
            begin();
            train(wrong[i].trained);
        }
        const off_t bytes = size_of(metrics_path);
        say(wrong[i].rank, wrong[i].line);
        assert_refused(wrong[i].who, wrong[i].why, wrong[i].rank, bytes);
        assert_int_equal(size_of(trace_path), 0);
        if (i + 1 < sizeof wrong / sizeof *wrong) assert_int_equal(teardown(state), 0);
    }
}

/* A client whose first turn was missed: its step 1 is the plan's step 7, in the third epoch of three steps. */
static void test_epochs_are_of_the_plans_steps(void **state)
{
    (void)state;
    launch.bounds.shift = 6;
    begin();
    say(0, "{\"event\":\"step\",\"step\":1,\"epoch\":2}");
    assert_string_equal(result.cause, "");
    const off_t bytes = size_of(metrics_path);
    say(1, "{\"event\":\"step\",\"step\":1,\"epoch\":8}");
    assert_refused("replica 0 stage 1", "an epoch without steps", 1, bytes);
}

static void test_lines_with_too_many_fields_are_refused(void **state)
{
    (void)state;
    char line[4096];
    int at = snprintf(line, sizeof line, "{\"event\":\"step\",\"step\":1");
    begin();
    for (int i = 0; i < 70; i++)
        at += snprintf(line + at, sizeof line - (size_t)at, ",\"k%d\":1", i);
    snprintf(line + at, sizeof line - (size_t)at, "}");
    const off_t bytes = size_of(metrics_path);
    say(2, line);
    assert_refused("stage 2", "at most 64", 2, bytes);
}

static void test_second_of_what_comes_once_is_refused(void **state)
{
    static const struct {
        const char *line, *why;
    } once[] = {{"{\"event\":\"listening\",\"address\":\"a:1\",\"peer\":1}", "that is settled"},
                {"{\"event\":\"ready\"}", "sends 'ready'"}};
    for (size_t i = 0; i < sizeof once / sizeof *once; i++) {
        if (i > 0) assert_int_equal(setup(state), 0);
        say(0, once[i].line);
        assert_string_equal(result.cause, "");
        say(0, once[i].line);
        assert_refused("replica 0 stage 0", once[i].why, 0, 0);
        assert_int_equal(teardown(state), 0);
    }
    /* Both ends of a link cannot listen. */
    assert_int_equal(setup(state), 0);
    say(0, once[0].line);
    say(1, "{\"event\":\"listening\",\"address\":\"a:1\",\"peer\":0}");
    assert_refused("replica 0 stage 1", "that is settled", 1, 0);
    assert_int_equal(teardown(state), 0);
    /* A checkpoint that not all have yet, twice; and a next one meanwhile. */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(setup(state), 0);
        begin();
        train(3);
        say_step(1, 4, "step");
        say_step(1, 4, "mark");
        for (uint64_t step = 5; step <= 8; step++)
            say_step(1, step, "step");
        assert_string_equal(result.cause, "");
        const off_t bytes = size_of(metrics_path);
        say_step(1, i ? 8 : 4, "mark");
        assert_refused("replica 0 stage 1", "while that of step 4 is not complete", 1, bytes);
        assert_int_equal(teardown(state), 0);
    }
    /* Pieces of a trace count together; after `done` nothing comes. */
    assert_int_equal(setup(state), 0);
    begin();
    train(12);
    say(1, "{\"event\":\"trace\",\"text\":\"01234567890123456789012345678901234567890123456789012345678\"}");
    assert_string_equal(result.cause, "");
    say(1, "{\"event\":\"trace\",\"text\":\"01234567890123456789012345678901234567890123456789012345678\"}");
    assert_refused("replica 0 stage 1", "more than the 100 bytes", 1, size_of(metrics_path));
    assert_int_equal(teardown(state), 0);
    assert_int_equal(setup(state), 0);
    begin();
    train(12);
    say(2, "{\"event\":\"done\"}");
    say(2, "{\"event\":\"done\"}");
    assert_refused("replica 0 stage 2", "sends 'done' while it is done", 2, size_of(metrics_path));
}

/* A daemon speaks for the ranks that it runs, and for no other's. */
static void test_daemon_that_speaks_for_another_is_named(void **state)
{
    static const uint32_t ranks[] = {2, RANKS, UINT32_MAX};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        if (i > 0) assert_int_equal(setup(state), 0);
        launcher.host_count = 2;
        launcher.stages[2].host = 1;
        launcher.hosts[1].address = "another";
        say(ranks[i], "{\"event\":\"ready\"}");
        assert_non_null(strstr(result.cause, "the daemon of test breaks the protocol: its line 'ready' is of no rank"));
        assert_int_equal(result.status, AQ_PROTO);
        assert_int_equal(launcher.ready, 0);
        if (i + 1 < sizeof ranks / sizeof *ranks) assert_int_equal(teardown(state), 0);
    }
}

/* What a worker does before the first step: each part once, in order. */
static void test_parts_of_a_start_come_in_order(void **state)
{
    (void)state;
    for (int phase = AQ_PHASE_DEVICE; phase < AQ_PHASES; phase++) {
        char line[64];
        snprintf(line, sizeof line, "{\"event\":\"doing\",\"doing\":%d}", phase);
        say(1, line);
    }
    assert_string_equal(result.cause, "");
    assert_int_equal(launcher.stages[1].phase, AQ_PHASE_MEASURE);
    launcher_starting(&launcher);
    assert_string_equal(progress.phase, "replica 0 stage 0 reads its plan (0 of 6 ready)");
    say(1, "{\"event\":\"doing\",\"doing\":9}");
    assert_refused("replica 0 stage 1", "whose 'doing' is not a whole number from 10 to 15", 1, 0);
    for (int r = 0; r < RANKS; r++)
        say((uint32_t)r, "{\"event\":\"ready\"}");
}

static void test_what_follows_a_step_is_said(void **state)
{
    (void)state;
    begin();
    assert_string_equal(progress.phase, "computes the first step");
    train(2);
    assert_string_equal(progress.phase, "computes the next step");
    for (uint32_t r = 0; r < RANKS; r++)
        say_step(r, 3, "step");
    assert_string_equal(progress.phase, "evaluates");
    say_step(P - 1, 3, "eval");
    say_step(2 * P - 1, 3, "eval");
    assert_string_equal(progress.phase, "computes the next step");
}

/* checkpoint.every as a time: rank 0 chooses the step, which the launcher cannot know. */
static void test_timed_checkpoint_comes_at_any_step(void **state)
{
    (void)state;
    launch.bounds.mark_every = 0;
    launch.bounds.mark_timed = true;
    begin();
    train(5);
    for (uint32_t r = 0; r < RANKS; r++)
        say_step(r, 5, "mark");
    assert_string_equal(result.cause, "");
    assert_int_equal(result.mark, 5);
    say_step(0, 5, "mark");
    assert_refused("replica 0 stage 0", "has a checkpoint of step 5, having trained 5; that of step 5 is complete", 0,
                   size_of(metrics_path));
}

/* With checkpoint.every as a time the launcher does not know the step; it knows what no honest stage reports. */
static void test_lie_about_a_timed_checkpoint_is_refused(void **state)
{
    static const struct {
        const char *line, *why;
    } lies[] = {{"{\"event\":\"mark\",\"step\":6}", "has a checkpoint of step 6, having trained 5"},
                {"{\"event\":\"mark\",\"step\":1e9}", "whose 'step' is not a whole number"},
                {"{\"event\":\"mark\",\"step\":-5}", "whose 'step' is not a whole number"},
                {"{\"event\":\"mark\",\"step\":3}", "step 3 while replica 0 stage 0 has one of step 5"}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        if (i > 0) assert_int_equal(setup(state), 0);
        launch.bounds.mark_every = 0;
        launch.bounds.mark_timed = true;
        begin();
        for (uint64_t step = 1; step <= 5; step++) {
            for (uint32_t r = 0; r < RANKS; r++) {
                say_step(r, step, "step");
                if (step == 3 && r % P == P - 1) say_step(r, step, "eval");
            }
        }
        say_step(0, 5, "mark");
        assert_string_equal(result.cause, "");
        const off_t bytes = size_of(metrics_path);
        say(4, lies[i].line);
        assert_refused("replica 1 stage 1", lies[i].why, 4, bytes);
        assert_int_equal(result.mark, 0);
        if (i + 1 < sizeof lies / sizeof *lies) assert_int_equal(teardown(state), 0);
    }
}

/* A neighbour asks for a checkpoint with its step's norm: refused if the job has no timed ones, and once if it has. */
static void test_stage_hears_of_a_checkpoint_if_they_are_timed(void **state)
{
    static struct aq_job job;
    static struct aq_plan plan;
    static struct aq_worker worker;
    (void)state;
    plan.steps = 12;
    worker = (struct aq_worker){.job = &job, .plan = &plan};
    job.checkpoint.every = (struct aq_job_every){.count = 4};
    assert_int_equal(aq_worker_mark_heard(&worker, 5), AQ_PROTO);
    assert_non_null(
        strstr(aq_error_text(), "step 5: another rank asks for a checkpoint; checkpoint.every is not a time"));
    assert_int_equal(worker.checkpoints.chosen, 0);
    job.checkpoint.every = (struct aq_job_every){.ns = 1};
    assert_int_equal(aq_worker_mark_heard(&worker, 5), AQ_OK);
    assert_int_equal(worker.checkpoints.chosen, 6);
    assert_int_equal(aq_worker_mark_heard(&worker, 6), AQ_OK); /* the one before is still to be taken */
    assert_int_equal(worker.checkpoints.chosen, 6);
    worker.checkpoints.chosen = 0;
    assert_int_equal(aq_worker_mark_heard(&worker, UINT32_MAX), AQ_OK);
    assert_int_equal(worker.checkpoints.chosen, 12); /* at the end there is one in any case */
}

static void test_stop_lets_another_step_be_the_last(void **state)
{
    (void)state;
    begin();
    train(5);
    launcher_stop(&launcher, "the test");
    say(0, "{\"event\":\"stopping\",\"step\":6}");
    for (uint32_t r = 0; r < RANKS; r++) {
        say_step(r, 6, "step");
        if (r % P == P - 1) say_step(r, 6, "eval");
    }
    for (uint32_t r = 0; r < RANKS; r++)
        say_step(r, 6, "mark");
    for (uint32_t r = 0; r < RANKS; r++)
        say(r, "{\"event\":\"done\",\"stopped\":true}");
    assert_string_equal(result.cause, "");
    assert_int_equal(result.mark, 6);
    assert_true(launcher.stopped);
    say(0, "{\"event\":\"stopping\",\"step\":6}");
    assert_refused("replica 0 stage 0", "sends 'stopping' while it is done", 0, size_of(metrics_path));
}

/* A model is asked: tokens of the last stage, as many as are asked for, and the end when it is told. */
static void begin_asking(void)
{
    static json_t *ask;
    if (!ask) ask = json_object();
    launch.ask = ask;
    launch.probe = true;
    launch.replicas = 1;
    launch.vocabulary = 50;
    launch.metrics = NULL; /* nothing is written */
    launch.bounds = (struct aq_launch_bounds){0};
    launcher.ranks = P;
}

static void test_an_asking_takes_what_it_asked_for(void **state)
{
    static const struct {
        uint32_t rank;
        bool due;
        const char *line, *who, *why;
    } wrong[] = {
        {2, false, "{\"event\":\"token\",\"token\":7}", "stage 2", "and was not asked to"},
        {1, true, "{\"event\":\"token\",\"token\":7}", "stage 1", "and was not asked to"},
        {2, true, "{\"event\":\"token\",\"token\":50}", "stage 2", "whose 'token' is not a whole number from 0 to 49"},
        {2, true, "{\"event\":\"token\",\"token\":-1}", "stage 2", "whose 'token' is not a whole number"},
        {2, true, "{\"event\":\"token\"}", "stage 2", "sends 'token' without 'token'"},
        {0, true, "{\"event\":\"done\"}", "stage 0", "before it was asked to end"},
        {0, true, "{\"event\":\"step\",\"step\":1}", "stage 0", "reports step 1"},
        {2, true, "{\"event\":\"eval\",\"step\":1}", "stage 2", "which the plan does not have it do"},
        {0, true, "{\"event\":\"mark\",\"step\":1}", "stage 0", "has a checkpoint"},
        {0, true, "{\"event\":\"stopping\",\"step\":1}", "stage 0", "was not asked"},
        {0, true, "{\"event\":\"trace\",\"text\":\"x\"}", "stage 0", "more than the 0 bytes"},
    };
    for (size_t i = 0; i <= sizeof wrong / sizeof *wrong; i++) {
        if (i > 0) assert_int_equal(setup(state), 0);
        begin_asking();
        for (uint32_t r = 0; r < P; r++)
            say(r, "{\"event\":\"ready\",\"answers\":50}");
        assert_true(launcher.gone);
        launcher.token_due = true;
        say(2, "{\"event\":\"token\",\"token\":49}");
        assert_false(launcher.token_due);
        assert_int_equal(launcher.token, 49);
        if (i < sizeof wrong / sizeof *wrong) {
            launcher.token_due = wrong[i].due;
            say(wrong[i].rank, wrong[i].line);
            assert_refused(wrong[i].who, wrong[i].why, wrong[i].rank, 0);
        } else {
            launcher.ending = true;
            for (uint32_t r = 0; r < P; r++)
                say(r, "{\"event\":\"done\"}");
            assert_string_equal(result.cause, "");
        }
        if (i < sizeof wrong / sizeof *wrong) assert_int_equal(teardown(state), 0);
    }
    json_decref(launch.ask);
}

/* A worker of a version that knows nothing of `ask` would measure the network. */
static void test_an_asking_wants_workers_that_answer(void **state)
{
    (void)state;
    launch.ask = json_object();
    launch.vocabulary = 50;
    say(1, "{\"event\":\"ready\"}");
    assert_refused("stage 1", "another one on its host?", 1, 0);
    json_decref(launch.ask);
}

/* docs/MESSAGES.md is made anew by this test where AQ_GOLDEN is set. */
static void test_docs_messages_is_up_to_date(void **state)
{
    (void)state;
    enum { PAGE_BYTES = 1 << 18 };
    static char page[PAGE_BYTES];
    char *want;
    assert_int_equal(aq_message_page(&want), AQ_OK);
    FILE *file = fopen(AQ_SOURCE_DIR "/docs/MESSAGES.md", getenv("AQ_GOLDEN") ? "w+" : "r");
    if (file && getenv("AQ_GOLDEN")) {
        fputs(want, file);
        rewind(file);
    }
    if (!file) fail_msg("docs/MESSAGES.md is not there: aqpipe help messages > docs/MESSAGES.md");
    page[fread(page, 1, PAGE_BYTES - 1, file)] = 0;
    fclose(file);
    if (strcmp(page, want) != 0) fail_msg("docs/MESSAGES.md is old: aqpipe help messages > docs/MESSAGES.md");
    aq_free(want);
}

/* A line with every field of the row, each at its least. */
static json_t *valid_line(const struct aq_message_row *row)
{
    char text[256];
    json_t *line = json_pack("{s:s}", row->key, row->word);
    for (uint32_t i = 0; i < row->count; i++) {
        const struct aq_message_field *field = &row->fields[i];
        memset(text, 'a', sizeof text);
        text[(int)field->min] = 0;
        json_object_set_new(line, field->name,
                            field->kind <= AQ_KIND_I64      ? json_integer((json_int_t)field->min)
                            : field->kind == AQ_KIND_NUMBER ? json_real(field->min)
                            : field->kind == AQ_KIND_BOOL   ? json_true()
                            : field->kind == AQ_KIND_HEX    ? json_string("0123456789abcdef")
                            : field->kind == AQ_KIND_OBJECT ? json_object()
                                                            : json_string(text));
    }
    return line;
}

static bool reads(int id, json_t *line, const struct aq_message_limits *limits)
{
    struct aq_message message;
    struct aq_message_wrong wrong;
    return aq_message_read((enum aq_message_id)id, line, limits, &message, &wrong);
}

static json_t *text_of(size_t characters)
{
    char *text = malloc(characters + 1);
    assert_non_null(text);
    memset(text, 'a', characters);
    text[characters] = 0;
    json_t *value = json_string(text);
    free(text);
    return value;
}

/* Each field of the table: without it, null, of another type, and out of its bounds. */
static void test_every_field_has_its_type_and_bounds(void **state)
{
    (void)state;
    const struct aq_message_limits limits = {
        .most = {[AQ_LIMIT_VOCABULARY] = 49, [AQ_LIMIT_SAMPLES] = 1000, [AQ_LIMIT_FILE] = 500, [AQ_LIMIT_TOLD] = 3}};
    for (int id = 0; id < AQ_MESSAGES; id++) {
        const struct aq_message_row *row = aq_message_row((enum aq_message_id)id);
        json_t *whole = valid_line(row);
        struct aq_message message;
        struct aq_message_wrong wrong;
        if (!aq_message_read((enum aq_message_id)id, whole, &limits, &message, &wrong))
            fail_msg("a line '%s' with all its fields is refused: %s", row->word, wrong.text);
        for (uint32_t i = 0; i < row->count; i++) {
            const struct aq_message_field *field = &row->fields[i];
            json_t *kept = json_incref(json_object_get(whole, field->name));
            const double past = field->limit ? (double)limits.most[field->limit] + 1 : field->max + 1;
            assert_true(message.there >> i & 1);
            json_object_del(whole, field->name);
            assert_int_equal(reads(id, whole, &limits), !field->needed);
            json_object_set_new(whole, field->name, json_null());
            assert_int_equal(reads(id, whole, &limits), !field->needed);
            json_object_set_new(whole, field->name, json_array());
            assert_false(reads(id, whole, &limits));
            json_object_set_new(whole, field->name, field->kind == AQ_KIND_BOOL ? json_integer(1) : json_true());
            assert_false(reads(id, whole, &limits));
            if (field->kind == AQ_KIND_U64) {
                json_object_set_new(whole, field->name, json_integer(-1));
                assert_false(reads(id, whole, &limits));
            }
            if ((field->max > 0 || field->limit) && field->kind <= AQ_KIND_NUMBER) {
                json_object_set_new(whole, field->name,
                                    field->kind == AQ_KIND_NUMBER ? json_real(past * 1.01)
                                                                  : json_integer((json_int_t)past));
                assert_false(reads(id, whole, &limits));
            }
            if (field->max > 0 && field->kind >= AQ_KIND_TEXT && field->kind <= AQ_KIND_LINES) {
                json_object_set_new(whole, field->name, text_of((size_t)field->max));
                assert_true(reads(id, whole, &limits));
                json_object_set_new(whole, field->name, text_of((size_t)field->max + 1));
                assert_false(reads(id, whole, &limits));
            }
            if (field->min > 0 && field->kind >= AQ_KIND_TEXT && field->kind <= AQ_KIND_LINES) {
                json_object_set_new(whole, field->name, text_of((size_t)field->min - 1));
                assert_false(reads(id, whole, &limits));
            }
            json_object_set_new(whole, field->name, kept);
        }
        json_decref(whole);
    }
}

/* Its answer may take 15 s, and 45 s over ssh: whoever asks for the end does not wait for it. */
static void test_a_signal_does_not_wait_for_a_daemon(void **state)
{
    (void)state;
    static const char *const hosts[] = {AQ_LAUNCH_GUEST};
    static struct launcher lone;
    struct aq_launch alone = launch;
    sigset_t none;
    int fds[2]; /* nobody answers */
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    assert_int_equal(aq_launch_signals(&alone.signals), AQ_OK);
    alone.stages = alone.replicas = 1;
    alone.hosts = hosts;
    alone.guest = fds[0];
    lone = (struct launcher){.launch = &alone, .result = &result, .ranks = 1};
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    assert_int_equal(hosts_open(&lone), AQ_ABORTED);
    assert_string_equal(result.cause, "stopped by SIGTERM before the first step");
    assert_false(result.transient);
    hosts_close(&lone);
    close(fds[1]);
    close(alone.signals);
    sigemptyset(&none);
    assert_int_equal(sigprocmask(SIG_SETMASK, &none, NULL), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_what_the_plan_has_is_taken),
        TEST(test_lines_out_of_place_are_refused),
        TEST(test_epochs_are_of_the_plans_steps),
        TEST(test_lines_with_too_many_fields_are_refused),
        TEST(test_second_of_what_comes_once_is_refused),
        TEST(test_daemon_that_speaks_for_another_is_named),
        TEST(test_parts_of_a_start_come_in_order),
        TEST(test_what_follows_a_step_is_said),
        TEST(test_timed_checkpoint_comes_at_any_step),
        TEST(test_lie_about_a_timed_checkpoint_is_refused),
        TEST(test_stage_hears_of_a_checkpoint_if_they_are_timed),
        TEST(test_stop_lets_another_step_be_the_last),
        TEST(test_a_signal_does_not_wait_for_a_daemon),
        TEST(test_an_asking_takes_what_it_asked_for),
        TEST(test_an_asking_wants_workers_that_answer),
        cmocka_unit_test(test_docs_messages_is_up_to_date),
        cmocka_unit_test(test_every_field_has_its_type_and_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
