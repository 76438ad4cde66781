// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The byte table of the README, by filling real pools and counting their pages.
 *
 *   bytes_table TABLES
 */
#include "model.h"

static unsigned long long backing(unsigned long tables, unsigned long page_bytes, unsigned long spacing)
{
	struct ptslab_pool pool;
	struct model_slot *slots = calloc(tables, sizeof(*slots));
	unsigned long long bytes;
	unsigned long i;

	CHECK(slots && ptslab_init(&pool, page_bytes / spacing, 0) == 0);
	for (i = 0; i < tables; i++)
		slots[i] = model_take(&pool, 1);
	bytes = (unsigned long long)pool.nr_pages * page_bytes;
	while (i--)
		model_drop(&pool, slots[i], 1);
	free(slots);
	return bytes;
}

int main(int argc, char **argv)
{
	static const unsigned long kib[] = { 4, 16, 64 };
	unsigned long tables = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
	unsigned int i;

	CHECK(tables > 0);
	printf("| kernel page | unpacked | 4 KiB apart | 256 B apart |\n| ---: | ---: | ---: | ---: |\n");
	for (i = 0; i < 3; i++) {
		unsigned long page = kib[i] * 1024;

		printf("| %lu KiB | %llu | %llu | %llu |\n", kib[i], backing(tables, page, page),
		       backing(tables, page, 4096), backing(tables, page, 256));
	}
	return 0;
}
