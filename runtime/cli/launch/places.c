/* places.c -- see the header. */
#include "places.h"

/* Of one stage: a text, or a list with each replica's own. */
static void add_stage(const struct aq_job *job, aq_place_text text, const void *context, uint32_t stage, bool address,
                      struct aq_text *out)
{
    const uint32_t W = job->pipeline.replicas, P = job->pipeline.stage_count;
    if (W > 1) aq_text_add(out, "[");
    for (uint32_t w = 0; w < W; w++) {
        aq_text_add(out, w > 0 ? ", \"" : "\"");
        text(context, w * P + stage, address, out);
        aq_text_add(out, "\"");
    }
    if (W > 1) aq_text_add(out, "]");
}

enum aq_status aq_places_settings(const struct aq_job *job, aq_place_text text, const void *context,
                                  struct aq_text *out)
{
    if (!job->pipeline.listed) aq_text_add(out, "pipeline.stages=[");
    for (uint32_t s = 0; s < job->pipeline.stage_count; s++) {
        if (!job->pipeline.listed) {
            aq_text_add(out, "%s{host: ", s ? ", " : "");
            add_stage(job, text, context, s, false, out);
            aq_text_add(out, ", address: ");
            add_stage(job, text, context, s, true, out);
            aq_text_add(out, "}");
            continue;
        }
        aq_text_add(out, "pipeline.stages.%u.host=", s);
        add_stage(job, text, context, s, false, out);
        aq_text_add(out, "\n");
        if (job->pipeline.stages[s].address) continue;
        aq_text_add(out, "pipeline.stages.%u.address=", s);
        add_stage(job, text, context, s, true, out);
        aq_text_add(out, "\n");
    }
    if (!job->pipeline.listed) aq_text_add(out, "]\n");
    return out->status;
}
