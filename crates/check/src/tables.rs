//! Copies of jump tables.

use crate::finding::Problem;
use crate::map::Boundary;
use crate::row::RowAt;
use crate::walk::{Current, Walk};
use iced_x86::{Instruction, OpKind};
use restitch_address::{Avma, Svma, SvmaRange};
use restitch_program::{JumpTable, TableEncoding};

impl<'a> Walk<'_, 'a> {
    /// The load of a table's entry, if the version changes it to load from a copy: the same instruction with
    /// another displacement. Gives the address behind it; `None` if it is not changed.
    pub fn table_load(
        &mut self,
        c: &mut Current<'a>,
        table: &'a JumpTable,
        original: &Instruction,
        v: Svma,
    ) -> Option<Svma> {
        let copy = self.s.decode(v)?;
        let distance = copy.memory_displacement64().wrapping_sub(original.memory_displacement64());
        if distance == 0 || !differs_in_displacement_only(&copy, original) {
            return None;
        }
        let o = table.load_at;
        self.visit(v, copy.len() as u32, Boundary::Copied(o), RowAt::of(o));
        let end = v + copy.len() as u64;
        if end.offset_from(c.range.end) > 0 {
            self.findings.at(v, o, Problem::Placement("the copy is longer than its range"));
        }
        if !table.copyable {
            self.findings.at(v, o, Problem::Table("the table must not be copied"));
        }
        self.report.tables += 1;
        self.table_copy(table, table.table + distance, v);
        c.copied = Some(table);
        Some(end)
    }

    /// Every entry of the copy at `copy` leads to the equivalent of the original's.
    fn table_copy(&mut self, table: &JumpTable, copy: Svma, load: Svma) {
        let size = match table.encoding {
            TableEncoding::Absolute8 => 8,
            TableEncoding::Relative4 => 4,
        };
        let count = (table.targets.len() + table.tail.len()) as u64;
        let bytes = Some(SvmaRange::new(copy, count * size))
            .filter(|range| self.s.version.tables.covers(range))
            .and_then(|range| self.s.bytes(range));
        let Some(bytes) = bytes else {
            let why = "it is not wholly in the version's tables, or shorter than the original";
            return self.findings.at(load, table.load_at, Problem::Table(why));
        };
        for (i, stated) in table.targets.iter().chain(&table.tail).enumerate() {
            let entry = &bytes[i * size as usize..][..size as usize];
            let at = table.table + i as u64 * size;
            if self.original_entry(table, at) != Some(*stated) {
                let why = "the original entry is not what the analysis states";
                self.findings.at(copy + i as u64 * size, at, Problem::Table(why));
                continue;
            }
            let Some(to) = self.copied_entry(table, entry) else {
                let why = "absolute entries need the load bias";
                return self.findings.at(load, table.load_at, Problem::Table(why));
            };
            self.report.table_entries += 1;
            if to == *stated {
                self.exits.push(to);
            } else if self.s.copy_at(to, *stated).is_none() {
                let problem = Problem::TableEntry { index: i as u32, to, want: *stated };
                self.findings.at(copy + i as u64 * size, at, problem);
            }
        }
    }

    fn original_entry(&self, table: &JumpTable, at: Svma) -> Option<Svma> {
        match table.encoding {
            TableEncoding::Absolute8 => self.s.original_pointer(at),
            TableEncoding::Relative4 => Some(table.base.offset(self.s.image.read_i32(at)?.into())),
        }
    }

    fn copied_entry(&self, table: &JumpTable, entry: &[u8]) -> Option<Svma> {
        match table.encoding {
            TableEncoding::Absolute8 => {
                let actual = Avma::new(u64::from_le_bytes(entry.try_into().ok()?));
                Some(self.s.bias?.to_stated(actual))
            }
            TableEncoding::Relative4 => {
                Some(table.base.offset(i32::from_le_bytes(entry.try_into().ok()?).into()))
            }
        }
    }
}

/// Whether two instructions with a memory operand do the same at another displacement. The displacement may
/// have another size, so the bytes may differ in length.
fn differs_in_displacement_only(a: &Instruction, b: &Instruction) -> bool {
    let memory = |i: &Instruction| (0..i.op_count()).any(|op| i.op_kind(op) == OpKind::Memory);
    let mut moved = *a;
    moved.set_ip(b.ip());
    moved.set_len(b.len());
    moved.set_memory_displacement64(b.memory_displacement64());
    moved.set_memory_displ_size(b.memory_displ_size());
    memory(a) && memory(b) && !a.is_ip_rel_memory_operand() && moved == *b
}
