// SPDX-License-Identifier: MIT OR GPL-2.0
#include "ptslab.h"

static struct list_head *home(struct ptslab_pool *pool, unsigned int used)
{
	if (!used)
		return &pool->empty;
	if (used == pool->slots)
		return &pool->full;
	return &pool->partial[used * PTSLAB_BUCKETS / pool->slots];
}

static void set_used(struct ptslab_pool *pool, struct ptslab_page *page, unsigned int used)
{
	struct list_head *from = home(pool, page->used);
	struct list_head *to = home(pool, used);

	page->used = used;
	if (from == to)
		return;
	list_move(&page->node, to);
	if (from == &pool->empty)
		pool->nr_empty--;
	if (to == &pool->empty)
		pool->nr_empty++;
}

/* The page has a free slot. */
static int take(struct ptslab_pool *pool, struct ptslab_page *page)
{
	unsigned int slot = find_next_zero_bit(page->taken, pool->slots, page->hint);

	if (slot >= pool->slots)
		slot = find_next_zero_bit(page->taken, pool->slots, 0);
	__set_bit(slot, page->taken);
	page->hint = slot + 1;
	pool->nr_live++;
	set_used(pool, page, page->used + 1);
	return slot;
}

static struct ptslab_page *detach_empty(struct ptslab_pool *pool)
{
	struct ptslab_page *page = list_first_entry_or_null(&pool->empty, struct ptslab_page, node);

	if (page) {
		list_del_init(&page->node);
		page->pool = NULL;
		pool->nr_empty--;
		pool->nr_pages--;
	}
	return page;
}

int ptslab_init(struct ptslab_pool *pool, unsigned int slots, unsigned int keep_empty)
{
	unsigned int i;

	if (!slots || slots > PTSLAB_MAX_SLOTS)
		return -EINVAL;
	spin_lock_init(&pool->lock);
	pool->slots = slots;
	pool->keep_empty = keep_empty;
	pool->nr_empty = 0;
	pool->nr_pages = 0;
	pool->nr_live = 0;
	INIT_LIST_HEAD(&pool->empty);
	INIT_LIST_HEAD(&pool->full);
	for (i = 0; i < PTSLAB_BUCKETS; i++)
		INIT_LIST_HEAD(&pool->partial[i]);
	return 0;
}

int ptslab_get(struct ptslab_pool *pool, struct ptslab_page **page)
{
	struct ptslab_page *found = NULL;
	unsigned int i = PTSLAB_BUCKETS;
	int slot = -ENOSPC;

	spin_lock(&pool->lock);
	while (i-- && !found)
		found = list_first_entry_or_null(&pool->partial[i], struct ptslab_page, node);
	if (!found)
		found = list_first_entry_or_null(&pool->empty, struct ptslab_page, node);
	if (found) {
		slot = take(pool, found);
		*page = found;
	}
	spin_unlock(&pool->lock);
	return slot;
}

int ptslab_add(struct ptslab_pool *pool, struct ptslab_page *page)
{
	int slot;

	page->pool = pool;
	page->used = 0;
	page->hint = 0;
	bitmap_zero(page->taken, PTSLAB_MAX_SLOTS);
	bitmap_zero(page->retired, PTSLAB_MAX_SLOTS);

	spin_lock(&pool->lock);
	list_add(&page->node, &pool->empty);
	pool->nr_empty++;
	pool->nr_pages++;
	slot = take(pool, page);
	spin_unlock(&pool->lock);
	return slot;
}

int ptslab_put(struct ptslab_pool *pool, struct ptslab_page *page, unsigned int slot, bool retire,
	       struct ptslab_page **release)
{
	int err = 0;

	*release = NULL;
	spin_lock(&pool->lock);
	if (page->pool != pool || slot >= pool->slots || !test_bit(slot, page->taken) ||
	    test_bit(slot, page->retired)) {
		err = -EINVAL;
		goto unlock;
	}
	pool->nr_live--;
	if (retire) {
		__set_bit(slot, page->retired);
		goto unlock;
	}
	__clear_bit(slot, page->taken);
	set_used(pool, page, page->used - 1);
	if (pool->nr_empty > pool->keep_empty)
		*release = detach_empty(pool);
unlock:
	spin_unlock(&pool->lock);
	return err;
}

struct ptslab_page *ptslab_drain(struct ptslab_pool *pool)
{
	struct ptslab_page *page;

	spin_lock(&pool->lock);
	page = detach_empty(pool);
	spin_unlock(&pool->lock);
	return page;
}
