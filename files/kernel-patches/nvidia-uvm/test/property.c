// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Random use of ptslab against a model, then misuse, draining and threads.
 *
 *   property SEED STEPS SLOTS KEEP [THREADS]
 *
 * With THREADS > 1 only the threaded part runs: it is meant for ThreadSanitizer.
 */
#include "model.h"

static unsigned int bits(const unsigned long *map, unsigned int size)
{
	unsigned int bit, sum = 0;

	for (bit = 0; bit < size; bit++)
		sum += test_bit(bit, map);
	return sum;
}

static void audit_page(struct ptslab_pool *pool, struct ptslab_page *page, struct list_head *list)
{
	unsigned int bucket, bit;

	CHECK(page->pool == pool);
	CHECK(page->used == bits(page->taken, pool->slots));
	CHECK(page->used == bits(page->taken, PTSLAB_MAX_SLOTS));
	for (bit = 0; bit < pool->slots; bit++)
		CHECK(!test_bit(bit, page->retired) || test_bit(bit, page->taken));
	CHECK((list == &pool->empty) == (page->used == 0));
	CHECK((list == &pool->full) == (page->used == pool->slots));
	for (bucket = 0; bucket < PTSLAB_BUCKETS; bucket++)
		if (list == &pool->partial[bucket])
			CHECK(bucket == page->used * PTSLAB_BUCKETS / pool->slots);
}

static void audit(struct ptslab_pool *pool, unsigned long live)
{
	struct list_head *lists[PTSLAB_BUCKETS + 2], *node;
	unsigned long pages = 0, empty = 0, used = 0, retired = 0;
	unsigned int i;

	lists[0] = &pool->empty;
	lists[1] = &pool->full;
	for (i = 0; i < PTSLAB_BUCKETS; i++)
		lists[i + 2] = &pool->partial[i];
	for (i = 0; i < PTSLAB_BUCKETS + 2; i++)
		for (node = lists[i]->next; node != lists[i]; node = node->next) {
			struct ptslab_page *page = container_of(node, struct ptslab_page, node);

			CHECK(node->next->prev == node);
			audit_page(pool, page, lists[i]);
			pages++;
			empty += i == 0;
			used += page->used;
			retired += bits(page->retired, pool->slots);
		}
	CHECK(pages == pool->nr_pages);
	CHECK(empty == pool->nr_empty);
	CHECK(empty <= pool->keep_empty);
	CHECK(pool->nr_live == live);
	CHECK(used == live + retired);
	/* The promise to the operator: never worse than one page a table. */
	CHECK(pages <= live + retired + pool->keep_empty);
}

static void random_use(struct ptslab_pool *pool, unsigned int seed, unsigned long steps, unsigned char owner,
		       bool alone)
{
	struct model_slot *live = calloc(steps, sizeof(*live));
	unsigned int state = seed * 2654435761u | 1, growth = 50;
	unsigned long step, count = 0;

	CHECK(live);
	for (step = 0; step < steps; step++) {
		if (step % 997 == 0)
			growth = 20 + model_random(&state) % 61;
		if (!count || model_random(&state) % 100 < growth) {
			live[count++] = model_take(pool, owner);
		} else {
			unsigned long pick = model_random(&state) % count;

			model_drop(pool, live[pick], owner);
			live[pick] = live[--count];
		}
		if (alone && step % 64 == 0)
			audit(pool, count);
	}
	while (count)
		model_drop(pool, live[--count], owner);
	free(live);
}

static void misuse(unsigned int slots)
{
	struct ptslab_page *release = NULL, *page;
	struct ptslab_pool pool, other;
	struct model_page *only = calloc(1, sizeof(*only));
	unsigned int slot;
	int first;

	CHECK(only);
	CHECK(ptslab_init(&pool, 0, 0) == -EINVAL);
	CHECK(ptslab_init(&pool, PTSLAB_MAX_SLOTS + 1, 0) == -EINVAL);
	CHECK(ptslab_init(&pool, slots, 0) == 0 && ptslab_init(&other, slots, 0) == 0);
	first = ptslab_add(&pool, &only->slab);
	CHECK(first >= 0);

	CHECK(ptslab_put(&pool, &only->slab, slots, false, &release) == -EINVAL && !release);
	CHECK(ptslab_put(&pool, &only->slab, ~0u, false, &release) == -EINVAL && !release);
	CHECK(ptslab_put(&other, &only->slab, first, false, &release) == -EINVAL && !release);
	if (slots > 1)
		CHECK(ptslab_put(&pool, &only->slab, (first + 1) % slots, false, &release) == -EINVAL && !release);
	audit(&pool, 1);

	/* A retired slot is returned once, never handed out again, and pins its page. */
	CHECK(ptslab_put(&pool, &only->slab, first, true, &release) == 0 && !release);
	CHECK(ptslab_put(&pool, &only->slab, first, true, &release) == -EINVAL && !release);
	CHECK(ptslab_put(&pool, &only->slab, first, false, &release) == -EINVAL && !release);
	audit(&pool, 0);
	for (slot = 1; slot < slots; slot++) {
		int got = ptslab_get(&pool, &page);

		CHECK(got >= 0 && got != first && page == &only->slab);
	}
	CHECK(ptslab_get(&pool, &page) == -ENOSPC);
	audit(&pool, slots - 1);
	for (slot = 0; slot < slots; slot++)
		if ((int)slot != first)
			CHECK(ptslab_put(&pool, &only->slab, slot, false, &release) == 0 && !release);
	audit(&pool, 0);
	CHECK(pool.nr_pages == 1 && !ptslab_drain(&pool));
	free(only);
}

/* After a peak a few survivors pin every page; ordinary churn must bring them together again. */
static void drains(unsigned int seed, unsigned int slots)
{
	unsigned long high = slots * 60ul, low = slots * 6ul, count = 0, step, peak;
	struct model_slot *live = calloc(high, sizeof(*live));
	unsigned int state = seed * 2654435761u | 1;
	struct ptslab_pool pool;

	CHECK(live && ptslab_init(&pool, slots, 0) == 0);
	while (count < high)
		live[count++] = model_take(&pool, 1);
	peak = pool.nr_pages;
	CHECK(peak == 60);
	while (count > low) {
		unsigned long pick = model_random(&state) % count;

		model_drop(&pool, live[pick], 1);
		live[pick] = live[--count];
	}
	for (step = 0; step < 8 * high; step++) {
		unsigned long pick = model_random(&state) % count;

		model_drop(&pool, live[pick], 1);
		live[pick] = model_take(&pool, 1);
	}
	audit(&pool, low);
	/* 6 would be perfect; emptiest-first settles near the peak. */
	CHECK(slots < 16 || pool.nr_pages <= 9);
	while (count)
		model_drop(&pool, live[--count], 1);
	CHECK(pool.nr_pages == 0);
	free(live);
}

/* Kept pages spare the driver a mapping, so at the end exactly the asked number is there. */
static void keeps(unsigned int slots, unsigned int keep)
{
	struct model_slot *live = calloc(slots * (keep + 2ul), sizeof(*live));
	unsigned long count = 0;
	struct ptslab_pool pool;

	CHECK(live && ptslab_init(&pool, slots, keep) == 0);
	while (count < slots * (keep + 2ul))
		live[count++] = model_take(&pool, 1);
	while (count)
		model_drop(&pool, live[--count], 1);
	audit(&pool, 0);
	CHECK(pool.nr_pages == keep);
	model_drain(&pool);
	audit(&pool, 0);
	CHECK(pool.nr_pages == 0);
	free(live);
}

struct job {
	struct ptslab_pool *pool;
	unsigned int number, seed;
	unsigned long steps;
};

static void *thread(void *argument)
{
	struct job *job = argument;

	random_use(job->pool, job->seed + job->number, job->steps, job->number + 1, false);
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned long number[5] = { 1, 20000, 256, 1, 1 };
	struct ptslab_pool pool;
	unsigned int i;

	for (i = 1; i < (unsigned int)argc && i <= 5; i++)
		number[i - 1] = strtoul(argv[i], NULL, 10);
	CHECK(number[4] >= 1 && number[4] <= 16);
	CHECK(ptslab_init(&pool, number[2], number[3]) == 0);
	if (number[4] > 1) {
		struct job job[16];
		pthread_t id[16];

		for (i = 0; i < number[4]; i++) {
			job[i] = (struct job){ &pool, i, number[0], number[1] };
			CHECK(pthread_create(&id[i], NULL, thread, &job[i]) == 0);
		}
		for (i = 0; i < number[4]; i++)
			CHECK(pthread_join(id[i], NULL) == 0);
	} else {
		random_use(&pool, number[0], number[1], 1, true);
		misuse(number[2]);
		keeps(number[2], number[3]);
		drains(number[0], number[2]);
	}
	audit(&pool, 0);
	model_drain(&pool);
	CHECK(pool.nr_pages == 0);
	printf("ok: seed %lu, %lu steps, %lu slots, keep %lu, %lu thread(s)\n", number[0], number[1], number[2],
	       number[3], number[4]);
	return 0;
}
