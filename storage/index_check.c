/*
 * index_check.c -- walks LMDB's file as LMDB would, with every number checked against the file's size before it is
 * followed.
 *
 * It checks, from the newer of the two meta pages: version, page size, flags; both trees (free pages and keys): each
 * page is reached once and lies in the file, its kind and number are right, nodes lie inside it, do not overlap and
 * fill exactly what the header says, keys rise, depths and counts agree with the meta page; keys are 16 bytes and
 * values small; lists of free pages name pages of the file that nothing else uses. Anything the index would not write
 * is refused, even where LMDB could read it. The layout is LMDB 0.9's (lmdb.h, mdb.c: MDB_meta, MDB_page, MDB_node) on
 * 64 bits.
 */
#include "index_check.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "record.h"

enum {
    PAGE_BYTES = 4096,
    HEADER_BYTES = 16,
    NODE_BYTES = 8,
    DEPTH_MAX = 16, /* a page of keys branches more than tenfold: 10^16 keys are more than a disk */
    PAGE_BRANCH = 0x01,
    PAGE_LEAF = 0x02,
    PAGE_OVERFLOW = 0x04,
    PAGE_META = 0x08,
    NODE_BIGDATA = 0x01,
    DB_INTEGERKEY = 0x08,
    ENV_NOSUBDIR = 0x4000,
    IDL_MAX = (1 << 16) - 1
};
#define LMDB_MAGIC   0xBEEFC0DEu
#define LMDB_NO_ROOT UINT64_MAX

struct tree_head { /* MDB_db */
    uint32_t pad;
    uint16_t flags;
    uint16_t depth;
    uint64_t branch_pages, leaf_pages, overflow_pages, entries, root;
};

struct meta { /* MDB_meta, behind the page header */
    uint32_t magic, version;
    uint64_t address, map_bytes;
    struct tree_head trees[2]; /* free pages, keys */
    uint64_t last_page, txn;
};

struct page_head { /* MDB_page */
    uint64_t number;
    uint16_t pad, flags;
    uint16_t lower, upper; /* overflow: together the count of pages */
};

struct check {
    const char *path;
    int fd;
    uint64_t pages; /* in the file, and not beyond the meta page's last one */
    uint8_t *seen;  /* one bit a page */
    const struct meta *meta;
    bool keys; /* which tree */
    struct tree_head found;
    uint64_t last_txn;
    bool any;
    uint8_t last_key[AQ_RECORD_KEY_BYTES];
};

static enum aq_status bad(const struct check *check, uint64_t page, const char *reason)
{
    return aq_fail(AQ_CORRUPT, "cache", "%s: page %" PRIu64 ": %s", check->path, page, reason);
}

static enum aq_status page_read(const struct check *check, uint64_t number, uint8_t out[PAGE_BYTES])
{
    const ssize_t got = pread(check->fd, out, PAGE_BYTES, (off_t)(number * PAGE_BYTES));
    if (got == -1) return aq_fail_errno("cache", "%s: read of page %" PRIu64, check->path, number);
    return got == PAGE_BYTES ? AQ_OK : bad(check, number, "the file ends within it");
}

/* Marks a page as used; false if it is not a page of the file, or used already. */
static bool page_claim(struct check *check, uint64_t number)
{
    if (number < 2 || number >= check->pages) return false;
    uint8_t *byte = &check->seen[number / 8];
    const uint8_t bit = (uint8_t)(1u << (number % 8));
    if (*byte & bit) return false;
    *byte |= bit;
    return true;
}

/* A node as it is in a page; false if it is not inside [upper, end). */
struct node {
    uint32_t at, bytes;
    uint32_t low;
    uint16_t flags, key_bytes;
    const uint8_t *key;
};

static bool node_read(const uint8_t *page, const struct page_head *head, uint32_t index, struct node *out)
{
    uint16_t at;
    memcpy(&at, page + HEADER_BYTES + 2 * index, 2);
    if (at % 2 != 0 || at < head->upper || at > PAGE_BYTES - NODE_BYTES) return false;
    uint16_t words[4];
    memcpy(words, page + at, sizeof(words));
    *out = (struct node){.at = at,
                         .low = words[0] | (uint32_t)words[1] << 16,
                         .flags = words[2],
                         .key_bytes = words[3],
                         .key = page + at + NODE_BYTES};
    uint64_t bytes = (uint64_t)NODE_BYTES + out->key_bytes;
    if (head->flags == PAGE_LEAF) bytes += (out->flags & NODE_BIGDATA) ? sizeof(uint64_t) : out->low;
    bytes += bytes & 1;
    if (bytes > (uint64_t)(PAGE_BYTES - at)) return false;
    out->bytes = (uint32_t)bytes;
    return true;
}

/* A list of free pages: their count, then their numbers, falling. */
static enum aq_status free_list_check(struct check *check, uint64_t page, const uint8_t *bytes, uint64_t byte_count)
{
    uint64_t count, before = UINT64_MAX;
    if (byte_count < 8) return bad(check, page, "a list of free pages is too short");
    memcpy(&count, bytes, 8);
    if (count > IDL_MAX * UINT64_C(1024) || byte_count != 8 + 8 * count) {
        return bad(check, page, "a list of free pages has the wrong length");
    }
    for (uint64_t i = 0; i < count; ++i) {
        uint64_t number;
        memcpy(&number, bytes + 8 + 8 * i, 8);
        if (number >= before || !page_claim(check, number))
            return bad(check, page, "a page of the free list is used twice, or outside the file");
        before = number;
    }
    return AQ_OK;
}

static enum aq_status overflow_check(struct check *check, uint64_t page, uint64_t first, uint64_t byte_count)
{
    enum aq_status status = AQ_OK;
    const uint64_t count = (HEADER_BYTES + byte_count + PAGE_BYTES - 1) / PAGE_BYTES;
    struct page_head head;
    if (count > check->pages) return bad(check, page, "a value is larger than the file");
    for (uint64_t i = 0; i < count; ++i) {
        if (first > check->pages || !page_claim(check, first + i))
            return bad(check, page, "a value's pages are not its own");
    }
    uint8_t *bytes;
    AQ_TRY(AQ_NEW(count * PAGE_BYTES, &bytes));
    for (uint64_t i = 0; i < count; ++i)
        AQ_TRY_GOTO(page_read(check, first + i, bytes + i * PAGE_BYTES), out);
    memcpy(&head, bytes, sizeof(head));
    if (head.number != first || head.flags != PAGE_OVERFLOW || (head.lower | (uint32_t)head.upper << 16) != count) {
        status = bad(check, first, "it is not a page of a long value");
        goto out;
    }
    check->found.overflow_pages += count;
    status = free_list_check(check, first, bytes + HEADER_BYTES, byte_count);
out:
    aq_free(bytes);
    return status;
}

/* A leaf's node: its key rises, its value is one that the index writes. */
static enum aq_status leaf_node_check(struct check *check, uint64_t page, const struct node *node)
{
    ++check->found.entries;
    if (!check->keys) {
        uint64_t txn;
        if (node->key_bytes != 8 || (node->flags & ~NODE_BIGDATA) != 0)
            return bad(check, page, "a free list's key is wrong");
        memcpy(&txn, node->key, 8);
        if (txn <= check->last_txn || txn > check->meta->txn) return bad(check, page, "free lists are out of order");
        check->last_txn = txn;
        if (!(node->flags & NODE_BIGDATA)) return free_list_check(check, page, node->key + 8, node->low);
        uint64_t first;
        memcpy(&first, node->key + 8, 8);
        return overflow_check(check, page, first, node->low);
    }
    if (node->key_bytes != AQ_RECORD_KEY_BYTES || node->flags != 0 || node->low == 0 ||
        node->low > sizeof(struct aq_record_head)) {
        return bad(check, page, "a key or value has a wrong size");
    }
    if (check->any && memcmp(node->key, check->last_key, AQ_RECORD_KEY_BYTES) <= 0) {
        return bad(check, page, "keys are out of order");
    }
    check->any = true;
    memcpy(check->last_key, node->key, AQ_RECORD_KEY_BYTES);
    return AQ_OK;
}

/* The page's own structure: header, and nodes that tile [upper, end) exactly. */
static enum aq_status page_check(struct check *check, uint64_t number, const uint8_t *page, uint32_t level)
{
    struct page_head head;
    struct node node;
    uint8_t taken[PAGE_BYTES / 2] = {0};
    memcpy(&head, page, sizeof(head));
    const uint16_t wanted = level + 1 == check->found.depth ? PAGE_LEAF : PAGE_BRANCH;
    if (head.number != number || head.flags != wanted) return bad(check, number, "its number or kind is wrong");
    if (head.lower < HEADER_BYTES || head.lower % 2 != 0 || head.lower > head.upper || head.upper > PAGE_BYTES) {
        return bad(check, number, "its bounds are wrong");
    }
    const uint32_t count = (head.lower - HEADER_BYTES) / 2u;
    if (count < (wanted == PAGE_LEAF ? 1u : 2u)) return bad(check, number, "it has too few nodes");
    uint32_t filled = 0;
    for (uint32_t i = 0; i < count; ++i) {
        if (!node_read(page, &head, i, &node)) return bad(check, number, "a node lies outside");
        if (wanted == PAGE_BRANCH && node.key_bytes > AQ_RECORD_KEY_BYTES)
            return bad(check, number, "a key is too long");
        if (wanted == PAGE_BRANCH && i > 0 && node.key_bytes != (check->keys ? AQ_RECORD_KEY_BYTES : 8)) {
            return bad(check, number, "a key has a wrong size");
        }
        for (uint32_t at = node.at; at < node.at + node.bytes; at += 2) {
            if (taken[at / 2]) return bad(check, number, "two nodes overlap");
            taken[at / 2] = 1;
        }
        filled += node.bytes;
    }
    return filled == (uint32_t)(PAGE_BYTES - head.upper) ? AQ_OK : bad(check, number, "its nodes do not fill it");
}

/* One tree, depth first and left to right, with a stack of pages instead of recursion. */
static enum aq_status tree_check(struct check *check, const struct tree_head *tree, uint8_t *stack)
{
    uint64_t numbers[DEPTH_MAX];
    uint32_t next[DEPTH_MAX];
    check->found = (struct tree_head){.depth = tree->depth};
    if (tree->root == LMDB_NO_ROOT) {
        return tree->depth == 0 && tree->entries == 0 ? AQ_OK : bad(check, 0, "an empty tree has a depth");
    }
    if (tree->depth < 1 || tree->depth > DEPTH_MAX) return bad(check, 0, "a tree is too deep");
    uint64_t enter = tree->root;
    for (uint32_t level = 0;;) {
        uint8_t *page = stack + (size_t)level * PAGE_BYTES;
        struct page_head head;
        struct node node;
        if (enter != LMDB_NO_ROOT) {
            if (!page_claim(check, enter)) return bad(check, enter, "it is reached twice, or outside the file");
            AQ_TRY(page_read(check, enter, page));
            AQ_TRY(page_check(check, enter, page, level));
            numbers[level] = enter;
            next[level] = 0;
            enter = LMDB_NO_ROOT;
        }
        memcpy(&head, page, sizeof(head));
        const uint32_t count = (head.lower - HEADER_BYTES) / 2u;
        if (head.flags == PAGE_BRANCH && next[level] < count) {
            AQ_ASSERT(node_read(page, &head, next[level]++, &node));
            enter = node.low | (uint64_t)node.flags << 32;
            ++level; /* page_check allows a branch only above the leaves' level */
            continue;
        }
        if (head.flags == PAGE_BRANCH) ++check->found.branch_pages;
        if (head.flags == PAGE_LEAF) ++check->found.leaf_pages;
        for (uint32_t i = 0; head.flags == PAGE_LEAF && i < count; ++i) {
            AQ_ASSERT(node_read(page, &head, i, &node));
            AQ_TRY(leaf_node_check(check, numbers[level], &node));
        }
        if (level == 0) break;
        --level;
    }
    if (check->found.branch_pages != tree->branch_pages || check->found.leaf_pages != tree->leaf_pages ||
        check->found.overflow_pages != tree->overflow_pages || check->found.entries != tree->entries) {
        return bad(check, tree->root, "the tree's counts are wrong");
    }
    return AQ_OK;
}

static enum aq_status meta_check(const struct check *check, uint64_t number, struct meta *out)
{
    uint8_t page[PAGE_BYTES];
    struct page_head head;
    AQ_TRY(page_read(check, number, page));
    memcpy(&head, page, sizeof(head));
    memcpy(out, page + HEADER_BYTES, sizeof(*out));
    if (head.number != number || head.flags != PAGE_META || out->magic != LMDB_MAGIC || out->version != 1) {
        return bad(check, number, "it is not a meta page of LMDB 0.9");
    }
    if (out->trees[0].pad != PAGE_BYTES || (out->trees[0].flags & ~ENV_NOSUBDIR) != DB_INTEGERKEY ||
        out->trees[1].flags != 0 || out->last_page < 1 || out->address != 0) {
        return bad(check, number, "its page size or flags are not the index's");
    }
    return AQ_OK;
}

static enum aq_status file_check(struct check *check, uint64_t file_bytes)
{
    enum aq_status status = AQ_OK;
    struct meta metas[2];
    void *seen = NULL, *stack = NULL;
    for (uint64_t i = 0; i < 2; ++i)
        AQ_TRY(meta_check(check, i, &metas[i]));
    check->meta = metas[0].txn < metas[1].txn ? &metas[1] : &metas[0];
    if (check->meta->last_page >= file_bytes / PAGE_BYTES)
        return bad(check, check->meta->last_page, "the file ends before it");
    check->pages = check->meta->last_page + 1;
    AQ_TRY_GOTO(aq_alloc(check->pages / 8 + 1, &seen), out);
    AQ_TRY_GOTO(aq_alloc((size_t)DEPTH_MAX * PAGE_BYTES, &stack), out);
    check->seen = seen;
    for (int i = 0; i < 2; ++i) {
        check->keys = i == 1;
        AQ_TRY_GOTO(tree_check(check, &check->meta->trees[i], stack), out);
    }
out:
    aq_free(seen);
    aq_free(stack);
    return status;
}

enum aq_status aq_index_check(const char *path)
{
    enum aq_status status = AQ_OK;
    struct stat stat_of;
    struct check check = {.path = path, .fd = -1};
    AQ_TRY(aq_file_open(NULL, path, AQ_FILE_READ, &check.fd));
    if (fstat(check.fd, &stat_of) == -1) {
        status = aq_fail_errno("cache", "stat %s", path);
    } else {
        status = file_check(&check, (uint64_t)stat_of.st_size);
    }
    close(check.fd);
    return status;
}
