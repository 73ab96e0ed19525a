//! A block of the analysis, as a block of a group: its code with what depends on its place, its end, and what
//! tables say of it.

use crate::error::{Obstacle, Why};
use crate::pieces::Pieces;
use crate::placed::Placed;
use restitch_address::{Svma, SvmaRange};
use restitch_kernel::{Block, Code, End, Kernel, Site, SiteKind};
use restitch_kernel_group as group;
use restitch_kernel_group::{Exception, Fixup, Target, UnwindRow, Warning};
use restitch_x86::kernel_code::{LOCK, is_near_return, traced_by};
use restitch_x86::module_code::{SITE, through_thunk_len};

/// Makes blocks of one kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockMaker<'k> {
    pub(crate) kernel: &'k Kernel,
}

/// A block of a group.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) block: group::Block,
    /// The kernel's entries about the block's warnings, in their order.
    pub(crate) entries: Vec<Svma>,
}

/// A block in the making.
struct Making<'k> {
    kernel: &'k Kernel,
    pieces: Pieces,
    made: group::Block,
    entries: Vec<Svma>,
    /// Until it is put.
    counter: Option<Placed>,
}

impl<'k> BlockMaker<'k> {
    /// The block of a group that `block` of `code` is, with a counter.
    pub(crate) fn block(&self, code: &Code, block: &Block, counter: Option<Placed>) -> Result<Made, Why> {
        let obstacle = |obstacle| Why::Obstacle { obstacle, at: block.range.start };
        let ending = self.ending(block).map_err(obstacle)?;
        let body = SvmaRange::between(block.range.start, ending.from);
        let bytes = self.kernel.known.memory.bytes(body).ok_or(obstacle(Obstacle::Unreadable))?;
        let made = group::Block {
            address: body.start,
            code: Vec::new(),
            fixups: Vec::new(),
            end: ending.end,
            unwind: Vec::new(),
            exceptions: Vec::new(),
            warnings: Vec::new(),
        };
        let pieces = Pieces::new(body.start);
        let mut making = Making { kernel: self.kernel, pieces, made, entries: Vec::new(), counter };
        making.body(body, bytes, code.sites_in(block.range))?;
        making.unwind(body, counter).map_err(obstacle)?;
        making.made.code = making.pieces.code;
        Ok(Made { block: making.made, entries: making.entries })
    }

    fn ending(&self, block: &Block) -> Result<Ending, Obstacle> {
        let next = block.range.end;
        let end = match block.end {
            // Nobody says for certain that a callee never returns: then control goes on where it did.
            End::Next | End::NoReturn => group::End::Next(next),
            End::Jump(to) => group::End::Jump(to),
            End::Conditional { condition, taken } => group::End::Conditional { condition, taken, next },
            End::StaticKey { key, taken, is_inverted, is_initially_on, .. } => {
                group::End::StaticKey { key, taken, next, is_inverted, is_initially_on }
            }
            End::Return if self.is_plain_return(block) => group::End::Return,
            // It leaves an interrupt or the kernel, or drops arguments: as it stands.
            End::Return => return Ok(Ending { from: next, end: group::End::Stop }),
            End::IndirectJump(register) => group::End::IndirectJump(register),
            End::StaticJump { key } => {
                let target = begins_as(self.kernel, key, block.branch);
                group::End::StaticJump { key, target: target.ok_or(Obstacle::NoTrampoline)? }
            }
            End::Trap => group::End::Stop,
            End::TableJump | End::ShortConditional(_) => return Err(Obstacle::OddBranch),
        };
        Ok(Ending { from: block.branch, end })
    }

    /// Whether it is a return or a jump to the thunk of one.
    fn is_plain_return(&self, block: &Block) -> bool {
        let bytes = self.kernel.known.memory.at(block.branch).unwrap_or_default();
        is_near_return(bytes) || traced_by(bytes, block.branch).is_some()
    }
}

/// How a block of a group ends, and where in the original that begins.
struct Ending {
    from: Svma,
    end: group::End,
}

/// The trampoline of a static call, by the names of its key and of that; where it has none, what is called
/// now.
fn begins_as(kernel: &Kernel, key: Svma, at: Svma) -> Option<Svma> {
    let names = kernel.symbols.within(SvmaRange::new(key, 1)).iter();
    let trampoline = names
        .filter_map(|symbol| symbol.name.strip_prefix("__SCK__"))
        .find_map(|name| kernel.symbols.address(&format!("__SCT__{name}")));
    trampoline.or_else(|| traced_by(kernel.known.memory.at(at)?, at))
}

/// What stands in place of an instruction.
struct Replacement {
    /// Its bytes.
    len: u32,
    fixup: Fixup,
}

impl Making<'_> {
    fn body(&mut self, body: SvmaRange, bytes: &[u8], sites: &[Site]) -> Result<(), Why> {
        let mut from = body.start;
        let part = |from: Svma, to: Svma| {
            bytes.get(from.offset_from(body.start) as usize..to.offset_from(body.start) as usize)
        };
        for sites in sites.chunk_by(|a, b| a.at == b.at) {
            let (at, end) = (sites[0].at, sites[0].at + u64::from(sites[0].len));
            let obstacle = |obstacle| Why::Obstacle { obstacle, at };
            let (Some(before), Some(own)) = (part(from, at), part(at, end)) else {
                return Err(obstacle(Obstacle::KnownBranch));
            };
            self.copy(from, before);
            self.instruction(sites, own).map_err(obstacle)?;
            from = end;
        }
        self.copy(from, part(from, body.end).unwrap_or_default());
        Ok(())
    }

    /// Copies bytes from `from` on, and puts the counter if it is to stand in front of one of them or behind
    /// the last one.
    fn copy(&mut self, from: Svma, bytes: &[u8]) {
        let offset = self.counter.map(|counter| counter.spot.at.get().wrapping_sub(from.get()) as usize);
        let Some((counter, offset)) = self.counter.zip(offset).filter(|(_, offset)| *offset <= bytes.len())
        else {
            return self.pieces.copy(bytes);
        };
        let (before, behind) = bytes.split_at(offset);
        self.pieces.copy(before);
        self.made.fixups.push(counter.fixup(self.pieces.len()));
        self.pieces.room(counter.spot.at, 0, counter.len());
        self.pieces.copy(behind);
        self.counter = None;
    }

    /// An instruction that is no plain copy, which the sites are all about.
    fn instruction(&mut self, sites: &[Site], bytes: &[u8]) -> Result<(), Obstacle> {
        let (here, at) = (self.pieces.len(), sites[0].at);
        let mut replacement = None;
        for site in sites {
            replacement = replacement.or(self.replacement(site)?);
        }
        match replacement {
            Some(Replacement { len, fixup }) => {
                self.pieces.room(at, bytes.len() as u64, len);
                self.made.fixups.push(fixup);
            }
            None => self.pieces.copy(bytes),
        }
        sites.iter().try_for_each(|site| self.beside(site, here))
    }

    /// What is written anew as a whole.
    fn replacement(&self, site: &Site) -> Result<Option<Replacement>, Obstacle> {
        let at = self.pieces.len();
        Ok(match site.kind {
            SiteKind::Trace => Some(Replacement { len: SITE, fixup: Fixup::Trace { at } }),
            SiteKind::Call(target) if u32::from(site.len) == SITE => {
                Some(Replacement { len: SITE, fixup: Fixup::Call { at, target } })
            }
            SiteKind::IndirectCall(Some(register)) => {
                let fixup = Fixup::IndirectCall { at, register };
                Some(Replacement { len: through_thunk_len(register), fixup })
            }
            SiteKind::StaticCall { key, .. } => {
                let target = begins_as(self.kernel, key, site.at).ok_or(Obstacle::NoTrampoline)?;
                Some(Replacement { len: SITE, fixup: Fixup::StaticCall { at, key, target } })
            }
            _ => None,
        })
    }

    /// What is said of an instruction at `here` that is not written anew as a whole.
    fn beside(&mut self, site: &Site, here: u32) -> Result<(), Obstacle> {
        let end = here + u32::from(site.len);
        match site.kind {
            SiteKind::Relative { field, target } => {
                let (field, target) = (here + u32::from(field), Target::Data(target));
                self.made.fixups.push(Fixup::Relative { field, end, target });
            }
            SiteKind::Call(to) if u32::from(site.len) != SITE => {
                let target = Target::Code(to);
                self.made.fixups.push(Fixup::Relative { field: end - 4, end, target });
            }
            SiteKind::Unlocked => {
                let first = self.pieces.code.get_mut(here as usize);
                *first.ok_or(Obstacle::Unreadable)? = LOCK;
            }
            SiteKind::Exception(entry) => {
                let (fixup, data) = (entry.fixup, entry.data);
                self.made.exceptions.push(Exception { offset: here, fixup, data });
            }
            SiteKind::Bug { entry, .. } => {
                let warning = self.warning(here, entry)?;
                self.made.warnings.push(warning);
                self.entries.push(entry);
            }
            SiteKind::Trace | SiteKind::Call(_) | SiteKind::IndirectCall(_) | SiteKind::StaticCall { .. } => {
            }
        }
        Ok(())
    }

    fn warning(&self, offset: u32, entry: Svma) -> Result<Warning, Obstacle> {
        let tables = &self.kernel.known.tables;
        if !tables.has_types {
            return Err(Obstacle::UnknownWarning);
        }
        let bytes = self.kernel.known.memory.bytes(SvmaRange::new(entry, tables.bug_len as u64));
        let bytes = bytes.ok_or(Obstacle::Unreadable)?;
        let pointer = |field: &u32| {
            let word = i32::from_le_bytes(*bytes.get(*field as usize..)?.first_chunk()?);
            Some((*field, (entry + u64::from(*field)).offset(word.into())))
        };
        let pointers = tables.bug_pointers.iter().map(pointer).collect::<Option<_>>();
        Ok(Warning { offset, entry: bytes.to_vec(), pointers: pointers.ok_or(Obstacle::UnknownWarning)? })
    }

    /// The row in force at the start, those that follow, and that of the end.
    fn unwind(&mut self, body: SvmaRange, counter: Option<Placed>) -> Result<(), Obstacle> {
        let tables = &self.kernel.known.tables;
        let first = tables.unwind_at(body.start).ok_or(Obstacle::NoUnwindRow)?;
        let mut rows = vec![UnwindRow { offset: 0, row: first.row }];
        let inside = SvmaRange::between(body.start + 1, body.end + 1);
        for entry in tables.unwind_in(inside) {
            let row = UnwindRow { offset: self.pieces.offset(entry.at), row: entry.row };
            // Of two for one place the last one holds.
            rows.pop_if(|last| last.offset == row.offset);
            rows.push(row);
        }
        if let Some(counter) = counter.filter(|counter| counter.spot.keeps_flags) {
            let row = tables.unwind_at(counter.spot.at).ok_or(Obstacle::NoUnwindRow)?.row;
            if row == [0; UnwindRow::LEN] {
                return Err(Obstacle::NoStack);
            }
            let place = self.pieces.offset(counter.spot.at);
            rows.retain(|row| row.offset != place);
            rows.extend(counter.rows(place, row));
            rows.sort_by_key(|row| row.offset);
        }
        self.made.unwind = rows;
        Ok(())
    }
}
