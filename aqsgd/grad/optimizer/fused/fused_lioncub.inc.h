/* fused_lioncub.inc.h -- Lion Cub: values[1] is what makes a level of a vector's value, size is K. */
AQ_FUSED(LIONCUB_VECTOR, 0, 0, false)
AQ_FUSED(LIONCUB_VECTOR_SIZES, 2, 2, false)
AQ_FUSED(LIONCUB_VECTOR_LOGS, 2, 0, false)
AQ_FUSED(LIONCUB_VECTOR_POWERS, 1, 0, false)
AQ_FUSED(LIONCUB_VOTE, 0, 0, false)
AQ_FUSED(LIONCUB_QUANTIZE, 0, 0, false)
AQ_FUSED_WORDS(LIONCUB_PACK)
AQ_FUSED_WORDS(LIONCUB_UNPACK)
AQ_FUSED_WORDS(LIONCUB_USED)
AQ_FUSED_WORDS(LIONCUB_MASK)
AQ_FUSED(LIONCUB_STEP, 0, 0, false)

#ifdef AQ_BODY
AQ_BODY(LIONCUB_VECTOR)
{
    w.c[i] = element_lion_vector(w, i);
}

AQ_BODY(LIONCUB_VECTOR_SIZES)
{
    const float c = element_lion_vector(w, i);
    w.c[i] = c;
    terms[0] = terms[1] = fabs((double)c);
}

/* L0: logarithms of what is not zero, and how many there are. */
AQ_BODY(LIONCUB_VECTOR_LOGS)
{
    const float c = element_lion_vector(w, i);
    w.c[i] = c;
    terms[0] = c == 0.0f ? 0.0 : element_log(fabs((double)c));
    terms[1] = c == 0.0f ? 0.0 : 1.0;
}

AQ_BODY(LIONCUB_VECTOR_POWERS)
{
    const float c = element_lion_vector(w, i);
    w.c[i] = c;
    terms[0] = element_power(fabs((double)c), (double)w.norm);
}

AQ_BODY(LIONCUB_VOTE)
{
    w.codes[i] = (uint8_t)(w.tie ? w.c[i] >= 0.0f : w.c[i] > 0.0f);
}

AQ_BODY(LIONCUB_QUANTIZE)
{
    const float q = rintf(values[1] * w.c[i]), low = q < -w.size ? -w.size : q;
    w.codes[i] = (uint8_t)((low > w.size ? w.size : low) + w.size);
}

/* Word i of the lanes of codes. */
AQ_BODY_WORD(LIONCUB_PACK)
{
    const uint64_t each = 64 / w.lane_bits, first = i * each;
    const uint64_t end = w.count - first < each ? w.count : first + each;
    uint64_t word = 0;
    for (uint64_t j = first; j < end; j++)
        word |= (uint64_t)w.codes[j] << (j - first) * w.lane_bits;
    w.lanes[i] = word;
}

/* c = sign(S) of a word: a tie is equal to the middle. */
AQ_BODY_WORD(LIONCUB_UNPACK)
{
    const uint64_t each = 64 / w.lane_bits, first = i * each;
    const uint64_t end = w.count - first < each ? w.count : first + each, word = w.lanes[i];
    const uint32_t lane = (1u << w.lane_bits) - 1;
    for (uint64_t j = first; j < end; j++) {
        const uint32_t sum = ((uint32_t)(word >> (j - first) * w.lane_bits) & lane) * w.times;
        w.c[j] = (float)((sum > w.middle) - (sum < w.middle));
    }
}

/* Is there any c in row i? */
AQ_BODY_WORD(LIONCUB_USED)
{
    const struct aq_flat_piece row = w.rows[i];
    uint64_t j = row.first;
    while (j < row.first + row.count && w.c[j] == 0.0f)
        j++;
    w.used[i] = j < row.first + row.count ? 1.0f : 0.0f;
}

AQ_BODY_WORD(LIONCUB_MASK)
{
    const struct aq_flat_piece row = w.rows[i];
    for (uint64_t j = row.first; w.used[i] == 0.0f && j < row.first + row.count; j++)
        w.c[j] = 0.0f;
}

AQ_BODY(LIONCUB_STEP)
{
    element_lion_step(w, values, i, w.c[i]);
}
#endif
