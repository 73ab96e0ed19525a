/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What we use of QEMU's interface to TCG plugins (version 4: QEMU 9.2 to 10.x), declared from its public
 * documentation (docs/devel/tcg-plugins of QEMU): no distribution ships the header.
 */
#ifndef QEMU_H
#define QEMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QEMU_INTERFACE 4

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_scoreboard;
struct qemu_plugin_register;

/* A number for each processor, in an element of a scoreboard. */
typedef struct {
	struct qemu_plugin_scoreboard *score;
	size_t offset;
} qemu_plugin_u64;

/* glib's growing arrays, as far as we look into them. */
struct bytes {
	uint8_t *data;
	unsigned int length;
};
struct array {
	char *data;
	unsigned int length;
};
struct bytes *g_byte_array_new(void);
struct bytes *g_byte_array_set_size(struct bytes *array, unsigned int length);

struct register_name {
	struct qemu_plugin_register *handle;
	const char *name;
	const char *feature;
};

enum registers { NO_REGISTERS, READ_REGISTERS };
enum condition { NEVER, ALWAYS, EQUAL, NOT_EQUAL };
enum operation { ADD, STORE };

typedef void translated(uint64_t plugin, struct qemu_plugin_tb *unit);
typedef void executed(unsigned int processor, void *data);
typedef void on_processor(uint64_t plugin, unsigned int processor);

void qemu_plugin_register_vcpu_init_cb(uint64_t plugin, on_processor *call);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t plugin, translated *call);
void qemu_plugin_register_vcpu_tb_exec_cond_cb(struct qemu_plugin_tb *unit, executed *call, enum registers registers,
					       enum condition condition, qemu_plugin_u64 left, uint64_t right,
					       void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *instruction, executed *call,
					    enum registers registers, void *data);
void qemu_plugin_register_vcpu_insn_exec_cond_cb(struct qemu_plugin_insn *instruction, executed *call,
						 enum registers registers, enum condition condition,
						 qemu_plugin_u64 left, uint64_t right, void *data);
void qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(struct qemu_plugin_insn *instruction,
							 enum operation operation, qemu_plugin_u64 entry,
							 uint64_t value);

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *unit);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *unit, size_t index);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *instruction);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *instruction);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *instruction, void *to, size_t size);

struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t element);
void *qemu_plugin_scoreboard_find(struct qemu_plugin_scoreboard *board, unsigned int processor);
int qemu_plugin_num_vcpus(void);

struct array *qemu_plugin_get_registers(void);
int qemu_plugin_read_register(struct qemu_plugin_register *handle, struct bytes *to);
bool qemu_plugin_read_memory_vaddr(uint64_t address, struct bytes *to, size_t size);
void qemu_plugin_outs(const char *text);

#endif
