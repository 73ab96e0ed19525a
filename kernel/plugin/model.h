/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A set-associative cache with replacement of what was used longest ago. Programs' addresses are taken as they
 * are, without their address space: two programs at one address share lines here that they do not share in a
 * processor.
 */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define MOST_SETS 64
#define WAYS 8

struct cache {
	/* For each set the tags plus one, the last used first; 0 is free. */
	uint64_t tags[MOST_SETS][WAYS];
	unsigned int sets;
};

/* 32 KiB in lines of 64 bytes. */
#define LINE_SHIFT 6
#define LINE_SETS 64
/* Translations: of 64 pages of 4 KiB, and of 8 pages of 2 MiB. */
#define PAGE_SHIFT 12
#define PAGE_SETS 8
#define LARGE_SHIFT 21
#define LARGE_SETS 1

/* Whether `piece` (an address without its low bits) is there; it is from now on. */
static inline bool cache_hit(struct cache *cache, uint64_t piece)
{
	uint64_t *tags = cache->tags[piece & (cache->sets - 1)];
	uint64_t tag = piece + 1;
	unsigned int way = 0;
	bool hit;

	while (way < WAYS - 1 && tags[way] != tag)
		way++;
	hit = tags[way] == tag;
	memmove(tags + 1, tags, way * sizeof *tags);
	tags[0] = tag;
	return hit;
}

#endif
