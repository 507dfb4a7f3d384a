/* cpu_gemm_pack_ends.inc.h -- the entries of a packing, included behind its pack_typed. */
static void pack(const struct pack_source *s, bool rows, bool lanes_together, uint32_t *out)
{
    if (s->type == AQ_BF16)
        pack_typed(s, AQ_BF16, rows, lanes_together, out);
    else if (s->type == AQ_F16)
        pack_typed(s, AQ_F16, rows, lanes_together, out);
    else
        pack_typed(s, AQ_F32, rows, lanes_together, out);
}

static void pack_rows(const struct cpu_operand *x, uint64_t first, uint64_t lanes, uint64_t k, uint64_t depth,
                      uint32_t *out)
{
    const struct pack_source source = {
        .data = cpu_operand_at(x, first, k), .type = x->type, .step = x->stride, .lanes = lanes, .depth = depth};
    pack(&source, true, x->transposed, out);
}

static void pack_columns(const struct cpu_operand *x, uint64_t first, uint64_t lanes, uint64_t k, uint64_t depth,
                         uint32_t *out)
{
    const struct pack_source source = {
        .data = cpu_operand_at(x, k, first), .type = x->type, .step = x->stride, .lanes = lanes, .depth = depth};
    pack(&source, false, !x->transposed, out);
}
