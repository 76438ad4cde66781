/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* As much of the kernel's list, bitmap and lock interface as ptslab.c uses, for a test without a kernel. */
#ifndef KERNEL_SHIM_H
#define KERNEL_SHIM_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef pthread_mutex_t spinlock_t;
#define spin_lock_init(lock) pthread_mutex_init(lock, NULL)
#define spin_lock(lock) pthread_mutex_lock(lock)
#define spin_unlock(lock) pthread_mutex_unlock(lock)

struct list_head {
	struct list_head *next, *prev;
};

static inline void INIT_LIST_HEAD(struct list_head *head)
{
	head->next = head->prev = head;
}

static inline bool list_empty(const struct list_head *head)
{
	return head->next == head;
}

static inline void list_add(struct list_head *entry, struct list_head *head)
{
	entry->next = head->next;
	entry->prev = head;
	head->next->prev = entry;
	head->next = entry;
}

static inline void list_del_init(struct list_head *entry)
{
	entry->prev->next = entry->next;
	entry->next->prev = entry->prev;
	INIT_LIST_HEAD(entry);
}

static inline void list_move(struct list_head *entry, struct list_head *head)
{
	list_del_init(entry);
	list_add(entry, head);
}

#define container_of(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))
#define list_first_entry_or_null(head, type, member) \
	(list_empty(head) ? NULL : container_of((head)->next, type, member))

#define WORD_BITS (8 * sizeof(unsigned long))
#define DECLARE_BITMAP(name, bits) unsigned long name[((bits) + WORD_BITS - 1) / WORD_BITS]

static inline void bitmap_zero(unsigned long *map, unsigned int bits)
{
	memset(map, 0, (bits + WORD_BITS - 1) / WORD_BITS * sizeof(*map));
}

static inline bool test_bit(unsigned int bit, const unsigned long *map)
{
	return map[bit / WORD_BITS] >> bit % WORD_BITS & 1;
}

static inline void __set_bit(unsigned int bit, unsigned long *map)
{
	map[bit / WORD_BITS] |= 1ul << bit % WORD_BITS;
}

static inline void __clear_bit(unsigned int bit, unsigned long *map)
{
	map[bit / WORD_BITS] &= ~(1ul << bit % WORD_BITS);
}

static inline unsigned int find_next_zero_bit(const unsigned long *map, unsigned int size, unsigned int from)
{
	while (from < size && test_bit(from, map))
		from++;
	return from < size ? from : size;
}

#endif
