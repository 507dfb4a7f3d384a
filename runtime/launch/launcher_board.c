/* launcher_board.c -- the launcher's knowledge of its stages, as other programs read it (board.h). */
#include "launcher_private.h"

static const uint64_t board_ns = 200ULL * 1000 * 1000; /* between two tellings */

/* Before the first step a worker reports its phase; afterwards its heartbeat has it, through the daemon. */
static struct aq_board_rank rank_of(const struct launcher *launcher, uint32_t r)
{
    const struct stage *stage = &launcher->stages[r];
    const struct aq_watch_stage *watched = &launcher->watch.stages[r];
    const uint64_t now = launcher->watch.clock.now_ns;
    const bool starts = launcher->gone && stage->state == STAGE_STARTED;
    const bool beaten = watched->beaten && launcher->gone;
    /* Until its first beat (10 s) it is assumed to train, unless it is of a replica that returns. */
    const enum aq_phase phase = beaten                        ? watched->phase
                                : starts                      ? stage->phase
                                : launcher->gone              ? AQ_PHASE_COMPUTE
                                : stage->state == STAGE_READY ? AQ_PHASE_GO
                                                              : stage->phase;
    const struct host *host = &launcher->hosts[stage->host];
    const enum replica_state state = launcher->rounds.replicas[r / launcher->launch->stages].state;
    const bool away = !host->control && (state == REPLICA_AWAY || state == REPLICA_ENDS);
    return (struct aq_board_rank){.lives = stage->state != STAGE_NONE && stage->state != STAGE_EXITED,
                                  .pid = stage->pid,
                                  .phase = phase,
                                  .phase_s = (double)(now - watched->changed_ns) * 1e-9,
                                  .silent_s = watched->watched ? (double)(now - watched->heard_ns) * 1e-9 : 0,
                                  .away_s = away ? (double)(now - host->reach.lost_ns) * 1e-9 : 0,
                                  .step = stage->step,
                                  .mark = stage->mark};
}

void launcher_board(struct launcher *launcher)
{
    struct aq_board_rank ranks[AQ_JOB_RANKS_MAX];
    if (!launcher->launch->board || aq_clock_ns() < launcher->board_due_ns) return;
    launcher->board_due_ns = aq_clock_after(board_ns);
    for (uint32_t r = 0; r < launcher->ranks; r++)
        ranks[r] = rank_of(launcher, r);
    aq_board_ranks(launcher->launch->board, ranks, launcher->ranks);
}
