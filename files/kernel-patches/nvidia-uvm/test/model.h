/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* What the tests share: pages that know the owner of each slot, and a full audit of a pool. */
#ifndef MODEL_H
#define MODEL_H

#include "ptslab.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                             \
	do {                                                                         \
		if (!(condition)) {                                                  \
			fprintf(stderr, "%s:%d: wanted %s\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                     \
		}                                                                    \
	} while (0)

struct model_page {
	struct ptslab_page slab;
	unsigned char owner[PTSLAB_MAX_SLOTS]; /* 0 = nobody */
};

struct model_slot {
	struct model_page *page;
	unsigned int slot;
};

static inline struct model_page *model_page(struct ptslab_page *page)
{
	return container_of(page, struct model_page, slab);
}

/* xorshift32: the same seed gives the same run everywhere. */
static inline unsigned int model_random(unsigned int *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	return *state ^= *state << 5;
}

/* Take a slot as a driver would, growing when there is none; nobody else may own it. */
static inline struct model_slot model_take(struct ptslab_pool *pool, unsigned char owner)
{
	struct ptslab_page *page = NULL;
	struct model_slot got;
	int slot = ptslab_get(pool, &page);

	if (slot == -ENOSPC) {
		struct model_page *fresh = calloc(1, sizeof(*fresh));

		CHECK(fresh);
		page = &fresh->slab;
		slot = ptslab_add(pool, page);
	}
	CHECK(slot >= 0 && slot < (int)pool->slots);
	got.page = model_page(page);
	got.slot = slot;
	CHECK(got.page->owner[slot] == 0);
	got.page->owner[slot] = owner;
	return got;
}

/* Return a slot; a page handed back for disposal must be owned by nobody. */
static inline void model_drop(struct ptslab_pool *pool, struct model_slot slot, unsigned char owner)
{
	struct ptslab_page *release;
	unsigned int i;

	CHECK(slot.page->owner[slot.slot] == owner);
	slot.page->owner[slot.slot] = 0;
	CHECK(ptslab_put(pool, &slot.page->slab, slot.slot, false, &release) == 0);
	if (!release)
		return;
	for (i = 0; i < PTSLAB_MAX_SLOTS; i++)
		CHECK(model_page(release)->owner[i] == 0);
	free(model_page(release));
}

static inline void model_drain(struct ptslab_pool *pool)
{
	struct ptslab_page *page;

	while ((page = ptslab_drain(pool)))
		free(model_page(page));
}

#endif
