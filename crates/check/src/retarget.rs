//! Ways from the code that stays straight into the version.
//!
//! A branch that goes to a block's copy does what it did, since being there equals being at the block. An
//! address in data may be used for other things than jumps, so it has to be one of a label: of a block that
//! indirect jumps reach, and that is neither a function's entry nor called nor named; and no code, known or
//! not, makes an address inside of its function, since a program could compare the two.

use crate::finding::Problem;
use crate::walk::Walk;
use iced_x86::{Code, Decoder, DecoderOptions};
use restitch_address::{Svma, SvmaRange};
use restitch_emit::{Retarget, RetargetKind};
use restitch_image::RelocationKind;
use restitch_program::{BlockAttrs, CallTarget, FuncId};
use std::collections::BTreeSet;

impl Walk<'_, '_> {
    /// Checks all of them; the walk has to be over.
    pub fn retargets(&mut self) {
        let retargets = &self.s.version.retargets;
        let len = |s: &Retarget| s.kind.bytes() as i64;
        let mut wrong: Vec<(Retarget, &str)> = retargets
            .windows(2)
            .filter(|pair| pair[1].at.offset_from(pair[0].at) < len(&pair[0]))
            .map(|pair| (pair[1], "it overlaps the one before it, or they are not sorted"))
            .collect();
        let patched = |s: &Retarget| {
            let range = SvmaRange::new(s.at, len(s) as u64);
            self.s.version.redirects.iter().any(|r| SvmaRange::new(r.at, 5).overlaps(&range))
        };
        wrong.extend(retargets.iter().filter(|s| patched(s)).map(|s| (*s, "a redirect overwrites it")));
        wrong.extend(retargets.iter().filter_map(|s| Some((*s, self.retarget(s).err()?))));
        wrong.extend(self.known_to_code());
        self.report.retargets += retargets.len() as u64;
        for (retarget, why) in wrong {
            self.findings.at(retarget.to, retarget.at, Problem::Retarget(why));
        }
    }

    fn retarget(&self, retarget: &Retarget) -> Result<(), &'static str> {
        if self.s.copy_at(retarget.to, retarget.original).is_none() {
            return Err("it does not lead to the copy of its target");
        }
        match retarget.kind {
            RetargetKind::Displacement => self.displacement(retarget),
            RetargetKind::Pointer => self.pointer(retarget),
            // Looked at all together.
            RetargetKind::Function | RetargetKind::Lea | RetargetKind::Symbol => Ok(()),
        }
    }

    fn displacement(&self, retarget: &Retarget) -> Result<(), &'static str> {
        let at = retarget.at.offset(-1);
        let block = self.s.program.block_at(at).ok_or("it is in no block")?;
        if self.s.program.block(block).attrs.contains(BlockAttrs::UNREACHED) {
            return Err("nothing is known to lead to the branch: it may be data");
        }
        let bytes = self.s.image.read(at, 5).ok_or("it is not in the file")?;
        let branch = Decoder::with_ip(64, bytes, at.get(), DecoderOptions::NONE).decode();
        if !matches!(branch.code(), Code::Call_rel32_64 | Code::Jmp_rel32_64) {
            return Err("no direct call or jump is there");
        }
        if Svma::new(branch.near_branch64()) != retarget.original {
            return Err("the branch goes somewhere else");
        }
        let known = self.s.program.calls.binary_search_by_key(&at, |c| c.at).is_ok()
            || self.s.program.block(block).terminator_at() == at;
        if !known {
            return Err("the program knows no branch there");
        }
        let reaches = i32::try_from(retarget.to.offset_from(at + 5)).is_ok();
        if reaches { Ok(()) } else { Err("it does not reach") }
    }

    fn pointer(&self, retarget: &Retarget) -> Result<(), &'static str> {
        let found = self.s.image.relocation_at(retarget.at).map(|r| &r.kind);
        if found != Some(&RelocationKind::Relative { target: retarget.original }) {
            return Err("the loader does not put that address there");
        }
        let block = self.s.program.block_starting_at(retarget.original).ok_or("no block starts there")?;
        let attrs = self.s.program.block(block).attrs;
        if !attrs.contains(BlockAttrs::INDIRECT)
            || attrs.intersects(BlockAttrs::ENTRY | BlockAttrs::LANDING_PAD)
            || self.s.image.symbol_at(retarget.original).is_some()
        {
            return Err("it is the address of something else than a label");
        }
        let called = CallTarget::Direct(retarget.original);
        let is_called = self.called.get_or_init(|| {
            self.s.program.calls.iter().map(|c| c.target).filter(|t| *t != CallTarget::Indirect).collect()
        });
        if is_called.contains(&called) { Err("what it points to is called") } else { Ok(()) }
    }

    /// Labels of functions of which code makes an address inside.
    fn known_to_code(&self) -> Vec<(Retarget, &'static str)> {
        let s = self.s;
        let function = |at: Svma| s.program.block_at(at).map(|b| s.program.block(b).function);
        let labels: Vec<(Retarget, FuncId)> = s
            .version
            .retargets
            .iter()
            .filter(|r| r.kind == RetargetKind::Pointer)
            .filter_map(|r| Some((*r, function(r.original)?)))
            .collect();
        let owners: BTreeSet<FuncId> = labels.iter().map(|(_, owner)| *owner).collect();
        let mut known = BTreeSet::new();
        if !owners.is_empty() {
            self.possible_operands(|field, target| {
                let owner = function(target).filter(|owner| owners.contains(owner));
                let Some(owner) = owner.filter(|f| s.program.function(*f).range.start != target) else {
                    return;
                };
                let around = s.program.block_at(field).map(|b| s.program.block(b).attrs);
                let is_known = around.is_some_and(|attrs| !attrs.contains(BlockAttrs::UNREACHED));
                let is_made = || match self.instruction_of(field) {
                    Some(i) => Svma::new(i.ip_rel_memory_address()) == target,
                    None => !is_known,
                };
                if !known.contains(&owner) && is_made() {
                    known.insert(owner);
                }
            });
        }
        let labels = labels.into_iter().filter(|(_, owner)| known.contains(owner));
        labels.map(|(label, _)| (label, "code may make an address inside of its function")).collect()
    }
}
