/* next_step.h -- what a person does with the folder of a run that is done: one sentence with the command. */
#ifndef RUNTIME_NEXT_STEP_H
#define RUNTIME_NEXT_STEP_H

#include "job.h"
#include "progress.h"
#include "runtime_text.h"

/*
 * 'wrote run/model.safetensors and run/adapter; try: aqpipe generate run --chat "..."' into out; nothing where the
 * folder has no model. A model of text is asked with --chat if its folder has a chat template, else with --prompt; one
 * of classes or numbers is evaluated.
 */
void aq_next_step(const struct aq_job *job, struct aq_text *out);

/* Prints "done: run" and that sentence. */
void aq_next_step_say(struct aq_progress *progress, const struct aq_job *job);

#endif
