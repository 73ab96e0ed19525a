/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Counts by pairs of numbers: a hash table with open addressing that grows and never shrinks. */
#ifndef TABLE_H
#define TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct entry {
	uint64_t first, second;
	uint64_t count;
	/* What belongs to the pair besides; that of who came first. */
	uint64_t more;
};

/* Zeroed memory is an empty table. An entry is free if its count is 0. */
struct table {
	struct entry *entries;
	/* A power of two, or 0. */
	size_t size;
	size_t used;
};

static inline size_t table_place(const struct table *table, uint64_t first, uint64_t second)
{
	uint64_t hash = (first ^ (second << 31 | second >> 33)) * 0x9e3779b97f4a7c15u;
	size_t at = (hash >> 20) & (table->size - 1);

	while (table->entries[at].count != 0 &&
	       (table->entries[at].first != first || table->entries[at].second != second))
		at = (at + 1) & (table->size - 1);
	return at;
}

static inline void table_grow(struct table *table)
{
	struct table larger = { .size = table->size ? 2 * table->size : 1024, .used = table->used };

	larger.entries = calloc(larger.size, sizeof *larger.entries);
	if (!larger.entries)
		abort();
	for (size_t i = 0; i < table->size; i++) {
		const struct entry *entry = &table->entries[i];

		if (entry->count)
			larger.entries[table_place(&larger, entry->first, entry->second)] = *entry;
	}
	free(table->entries);
	*table = larger;
}

static inline void table_add(struct table *table, uint64_t first, uint64_t second, uint64_t count, uint64_t more)
{
	struct entry *entry;

	if (count == 0)
		return;
	if (4 * (table->used + 1) > 3 * table->size)
		table_grow(table);
	entry = &table->entries[table_place(table, first, second)];
	if (entry->count == 0) {
		*entry = (struct entry){ .first = first, .second = second, .more = more };
		table->used++;
	}
	entry->count += count;
}

static inline void table_clear(struct table *table)
{
	if (table->size)
		memset(table->entries, 0, table->size * sizeof *table->entries);
	table->used = 0;
}

#endif
