/*
 * owned_folder.h -- whose a folder is, and how what is ours in it is removed (docs/FORMAT.md, "Folders").
 *
 * Every folder that a run writes in (its own, that of its checkpoints, that of its caches) holds a small file, the
 * marker: the kind of folder, the job's name and the run's id, a random number that is drawn when the run folder is
 * made. It is written when this program makes the folder or finds it empty. A folder that holds something and no
 * marker, or the marker of another run, or of another kind, is refused; nothing in it is touched.
 *
 * Caveats. A marker names the owner of the folder, not of each file in it: only names that this program writes are
 * removed, checkpoints only if their metadata is this run's; everything else stays and is logged in one line. Folders
 * of versions without markers count as ours if run.json, `complete`, a checkpoint of this job or the names of its
 * caches prove it; they get their marker then.
 *
 * Nothing else in this program removes folders, and only scratch folders (made here, marked as such) are removed with
 * all that they hold: tests/tidy.
 *
 * Locking: one thread; between processes the locks of run_folder.h.
 */
#ifndef RUNTIME_OWNED_FOLDER_H
#define RUNTIME_OWNED_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

#define AQ_OWNED_MARKER "aqpipe-folder.json"

enum aq_owned_kind { AQ_OWNED_RUN, AQ_OWNED_CHECKPOINT, AQ_OWNED_CACHE, AQ_OWNED_SCRATCH };

/* Which folders may be made: none, the last of the path, or all of it. */
enum aq_owned_make { AQ_OWNED_MAKE_NONE, AQ_OWNED_MAKE_LAST, AQ_OWNED_MAKE_ALL };

enum aq_owned_state {
    AQ_OWNED_MISSING, /* no such folder                                  */
    AQ_OWNED_EMPTY,   /* nothing in it (but lost+found)                  */
    AQ_OWNED_OLD,     /* no marker, but proof that it is ours            */
    AQ_OWNED_OURS,    /* our marker                                      */
    AQ_OWNED_OTHERS   /* another run's, another kind, or unknown */
};

struct aq_owner {
    const char *job; /* the job's name, borrowed                                              */
    uint64_t id;     /* the run's; 0 only for aq_owned_claim_run, which finds or draws it     */
    uint64_t resume_hash, plan_hash;
    uint64_t resume; /* the step whose checkpoint may prove an old folder ours; 0: none       */
};

/* Finds whose the folder is. AQ_OK in every state; AQ_IO, AQ_REFUSED: it cannot be read. */
enum aq_status aq_owned_look(const char *path, enum aq_owned_kind kind, const struct aq_owner *owner,
                             enum aq_owned_state *state);

/*
 * Make the folder ours, or check that it is. AQ_REFUSED: it is not, and the log has its owner and the remedy;
 * AQ_NOTFOUND: it is not there and may not be made; AQ_NOSPC, AQ_IO.
 */
enum aq_status aq_owned_claim(const char *path, enum aq_owned_kind kind, enum aq_owned_make make,
                              const struct aq_owner *owner);

/* The same for a run folder whose id is not known: the marker's, or a new one, goes to owner->id. *checkpointed (or
 * NULL): a checkpoint of the run became complete once (aq_owned_note). */
enum aq_status aq_owned_claim_run(const char *path, enum aq_owned_make make, struct aq_owner *owner,
                                  bool *checkpointed);

/*
 * All folders of a run on one machine: its own (whose id is known), and, below it or elsewhere, those of its
 * checkpoints and its caches (NULL: it has none on disk). A folder below the run folder must be no link, because the
 * manifest does not name it.
 */
struct aq_owned_folders {
    const char *run, *checkpoint, *cache;
};
enum aq_status aq_owned_enter(const struct aq_owned_folders *folders, enum aq_owned_make make,
                              const struct aq_owner *owner);

/* Note in the run folder's marker that a checkpoint became complete, so that from now on there must be one; or, when
 * the run restarts, that none did. */
enum aq_status aq_owned_note(const char *run, const struct aq_owner *owner, bool checkpointed);

/* The marker is still there and ours: before something is written that a vanished disk must not get. AQ_NOTFOUND. */
enum aq_status aq_owned_check(const char *path, enum aq_owned_kind kind, uint64_t id);

/*
 * Remove this run's files of the checkpoint of `step`, and its folder if it is empty then. AQ_OK also if something
 * stays, which is logged. AQ_REFUSED: the folder is not ours.
 */
enum aq_status aq_owned_forget(const char *checkpoint, const struct aq_owner *owner, uint64_t step);

/* Remove all of this run's checkpoints and `complete` (--fresh); else as aq_owned_forget. */
enum aq_status aq_owned_clear_checkpoints(const char *checkpoint, const struct aq_owner *owner);

/* Remove the contents of this run's caches (--fresh): index and slab of each stage. The caches' locks stay. */
enum aq_status aq_owned_clear_caches(const char *cache, const struct aq_owner *owner);

/* Remove what a run leaves in its folder (--fresh): metrics, report, model, trace, logs, and the files of TensorBoard
 * and W&B (output.report_to); those of W&B by the id in report_to.json. */
enum aq_status aq_owned_clear_run(const char *run, const struct aq_owner *owner);

/* Makes a scratch folder: `path` ends in XXXXXX and gets its name. */
enum aq_status aq_owned_scratch_make(char *path);

/* Remove everything below `name` in a scratch folder; name NULL: the whole folder. AQ_REFUSED: it is no scratch
 * folder. */
enum aq_status aq_owned_scratch_remove(const char *path, const char *name);

#endif
