/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * ptslab: several GPU page tables in one CPU page.
 *
 * Bookkeeping only: pages go in, equal, naturally aligned slots come out. It
 * never allocates, never sleeps and never touches the contents of a page, so
 * the same file serves the driver, and a test that has no kernel.
 *
 * The caller owns the pages. It brings one with ptslab_add() when ptslab_get()
 * has none left, and disposes of those that ptslab_put() and ptslab_drain()
 * hand back. That keeps page allocation, DMA mapping and accounting outside
 * the lock and in the driver's own, unchanged code.
 *
 * Every call takes the pool's lock for a few list and bitmap steps. It is a
 * leaf lock: no other lock is taken under it.
 */
#ifndef PTSLAB_H
#define PTSLAB_H

#ifdef __KERNEL__
#include <linux/bitmap.h>
#include <linux/errno.h>
#include <linux/list.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#else
#include "kernel_shim.h"
#endif

/* A 64 KiB page in slots of 256 bytes, the smallest table of the GPU. */
#define PTSLAB_MAX_SLOTS 256u

/* Partly filled pages are sorted into this many lists, by how full they are. */
#define PTSLAB_BUCKETS 4u

struct ptslab_pool;

/* One page. Embed it in whatever the caller knows about the page. */
struct ptslab_page {
	struct list_head node;
	struct ptslab_pool *pool;
	unsigned int used; /* live and retired slots */
	unsigned int hint; /* where to look first for a free slot */
	DECLARE_BITMAP(taken, PTSLAB_MAX_SLOTS); /* live or retired */
	DECLARE_BITMAP(retired, PTSLAB_MAX_SLOTS);
};

struct ptslab_pool {
	spinlock_t lock;
	unsigned int slots; /* slots in a page */
	unsigned int keep_empty; /* empty pages to hold back for reuse */
	unsigned int nr_empty;
	unsigned long nr_pages;
	unsigned long nr_live; /* slots handed out and not returned */
	struct list_head empty;
	struct list_head partial[PTSLAB_BUCKETS];
	struct list_head full;
};

/*
 * Prepare a pool whose pages hold @slots slots each, keeping up to @keep_empty
 * empty pages. -EINVAL when @slots is not in 1..PTSLAB_MAX_SLOTS.
 */
int ptslab_init(struct ptslab_pool *pool, unsigned int slots, unsigned int keep_empty);

/*
 * Take a slot, from the fullest page that has one: sparse pages drain that way.
 * Returns the slot and sets *@page, or -ENOSPC: bring a page with ptslab_add().
 */
int ptslab_get(struct ptslab_pool *pool, struct ptslab_page **page);

/*
 * Give a page to the pool and take its first slot in one step, so that the
 * page cannot be used up or drained by others in between. Returns the slot.
 */
int ptslab_add(struct ptslab_pool *pool, struct ptslab_page *page);

/*
 * Return a slot. With @retire it is never handed out again, and its page never
 * released: for a table the GPU may still be reading.
 *
 * 0, or -EINVAL with nothing changed when the slot is not live or the page is
 * of another pool. *@release is a page to dispose of, or NULL.
 */
int ptslab_put(struct ptslab_pool *pool, struct ptslab_page *page, unsigned int slot, bool retire,
	       struct ptslab_page **release);

/* Detach one of the kept empty pages, or NULL: for teardown and for memory pressure. */
struct ptslab_page *ptslab_drain(struct ptslab_pool *pool);

#endif
