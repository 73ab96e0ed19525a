/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the plugin has to know of x86-64 instructions: where branches are, and entries of interrupts. */
#ifndef INSTRUCTIONS_H
#define INSTRUCTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * What the last instruction of a unit is. Numbers below LEAVES are written into files. FAULT is no instruction: a way
 * from one that faulted to where execution went on, if that is not the same one.
 */
enum kind { PLAIN, CONDITIONAL, JUMP, INDIRECT_JUMP, CALL, INDIRECT_CALL, RETURN, TRAP, FAULT, LEAVES };

/* The opcode behind prefixes. */
struct opcode {
	const uint8_t *bytes;
	size_t left;
	bool repeated;
};

static inline struct opcode opcode(const uint8_t *bytes, size_t size)
{
	struct opcode found = { bytes, size, false };

	for (; found.left > 1; found.bytes++, found.left--) {
		uint8_t byte = *found.bytes;

		if (byte == 0xf2 || byte == 0xf3)
			found.repeated = true;
		else if (!(byte == 0x66 || byte == 0x67 || byte == 0x2e || byte == 0x3e || byte == 0x26 ||
			   byte == 0x36 || byte == 0x64 || byte == 0x65 || (byte & 0xf0) == 0x40))
			break;
	}
	return found;
}

static inline enum kind kind_of_long(const uint8_t *bytes, size_t left)
{
	if (left < 2)
		return PLAIN;
	if ((bytes[1] & 0xf0) == 0x80)
		return CONDITIONAL;
	if (bytes[1] == 0x0b || bytes[1] == 0xb9 || bytes[1] == 0xff)
		return TRAP;
	return bytes[1] == 0x07 || bytes[1] == 0x35 ? LEAVES : PLAIN;
}

static inline enum kind kind_of(struct opcode of)
{
	switch (of.bytes[0]) {
	case 0x70 ... 0x7f:
	case 0xe0 ... 0xe3:
		return CONDITIONAL;
	case 0x0f:
		return kind_of_long(of.bytes, of.left);
	case 0xe9:
	case 0xeb:
		return JUMP;
	case 0xe8:
		return CALL;
	case 0xff:
		switch (of.left > 1 ? of.bytes[1] >> 3 & 7 : 0) {
		case 2:
		case 3:
			return INDIRECT_CALL;
		case 4:
		case 5:
			return INDIRECT_JUMP;
		default:
			return PLAIN;
		}
	case 0xc2:
	case 0xc3:
	case 0xca:
	case 0xcb:
		return RETURN;
	case 0xcc:
	case 0xcd:
	case 0xd6:
	case 0xf1:
		return TRAP;
	case 0xcf:
		return LEAVES;
	default:
		return PLAIN;
	}
}

static inline bool repeats(struct opcode of)
{
	uint8_t byte = of.bytes[0];

	return of.repeated && ((byte >= 0xa4 && byte <= 0xa7) || (byte >= 0xaa && byte <= 0xaf) ||
			       (byte >= 0x6c && byte <= 0x6f));
}

/* Where a direct jump goes that ends at `end`. */
static inline uint64_t target_of(struct opcode of, uint64_t end)
{
	int32_t distance;

	if (of.bytes[0] == 0xeb && of.left == 2)
		return end + (int8_t)of.bytes[1];
	if (of.bytes[0] != 0xe9 || of.left != 1 + sizeof distance)
		return 0;
	memcpy(&distance, of.bytes + 1, sizeof distance);
	return end + distance;
}

/*
 * Whether code looks like an entry of interrupts or faults. Each clears the flag AC (or has a no-operation in its
 * place) and then the direction flag, or pushes the number of the interrupt and jumps; in kernels with indirect
 * branch tracking endbr64 stands in front. What a frame has to hold decides, when it is executed.
 */
static inline bool is_entry(const uint8_t *bytes, size_t size)
{
	static const uint8_t endbr[] = { 0xf3, 0x0f, 0x1e, 0xfa };
	static const uint8_t clac[] = { 0x0f, 0x01, 0xca, 0xfc }, plain[] = { 0x0f, 0x1f, 0x00, 0xfc };
	bool tracked = size >= 4 && !memcmp(bytes, endbr, sizeof endbr);

	bytes += tracked ? 4 : 0;
	size -= tracked ? 4 : 0;
	if (size >= 3 && bytes[0] == 0x6a)
		return bytes[2] == 0xe9 || bytes[2] == 0xeb;
	/* Behind endbr64 there is nothing else that clears AC. */
	if (tracked && size >= 3 && !memcmp(bytes, clac, 3))
		return true;
	return size >= 4 && (!memcmp(bytes, clac, sizeof clac) || !memcmp(bytes, plain, sizeof plain));
}

#endif
