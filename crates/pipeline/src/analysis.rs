//! From bytes to a [`Program`], with the unwind tables that later stages need too.

use crate::neighbours::Neighbours;
use restitch_address::{Svma, SvmaRange};
use restitch_apply::Why;
use restitch_cfi::UnwindInfo;
use restitch_image::Image;
use restitch_program::{Movability, Program, analyze_among};
use restitch_report as report;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One analysed module.
#[derive(Debug, Clone)]
pub struct Analyzed {
    /// The file.
    pub image: Arc<Image>,
    /// Its unwind tables.
    pub unwind: UnwindInfo,
    /// Its code.
    pub program: Program,
}

/// Analyses one image.
///
/// # Errors
/// Why it cannot be analysed, in words that follow the file's name.
pub fn analyze_image(image: Arc<Image>) -> Result<Analyzed, Why> {
    analyze_image_among(image, &Neighbours::default())
}

/// Analyses one image of a process that has these modules.
///
/// # Errors
/// Those of [`analyze_image`].
pub fn analyze_image_among(image: Arc<Image>, neighbours: &Neighbours) -> Result<Analyzed, Why> {
    let Some(at) = image.eh_frame() else {
        let kind = image.run_time().and_then(|found| found.why().split(',').next());
        let kind = kind.map_or_else(String::new, |kind| format!("it {kind}; "));
        let why = format!("{kind}it has no unwind tables (.eh_frame), so its functions cannot be found");
        return Err(why.into());
    };
    let bytes = image.read(at.start, at.len() as usize).ok_or("its unwind tables are not in the file")?;
    let unwind = UnwindInfo::parse(bytes, at.start)?;
    let program = analyze_among(&image, (&unwind).into(), &neighbours.looking_of(&image))?;
    Ok(Analyzed { image, unwind, program })
}

impl Analyzed {
    /// Leaves functions that hold a byte of `changed`, which is not the file's, where they are, or jump by a
    /// table that does.
    pub fn leave_changed(&mut self, changed: &[SvmaRange]) {
        let tables = self.program.tables.iter();
        let tables = tables.filter(|t| changed.iter().any(|c| c.overlaps(&t.range())));
        let jumps: Vec<Svma> = tables.map(|t| t.jump_at).collect();
        let functions = &mut self.program.functions;
        for f in functions.iter_mut().filter(|f| jumps.iter().any(|at| f.range.contains(*at))) {
            f.movability = Movability::ChangedInMemory;
        }
        self.leave(changed, Movability::ChangedInMemory);
    }

    /// Leaves functions that hold a byte of `code`, which the process may write to, where they are.
    pub fn leave_writable(&mut self, code: &[SvmaRange]) {
        self.leave(code, Movability::WritableCode);
    }

    fn leave(&mut self, ranges: &[SvmaRange], why: Movability) {
        let functions = &mut self.program.functions;
        for range in ranges {
            let first = functions.partition_point(|f| f.range.end <= range.start);
            for f in functions[first..].iter_mut().take_while(|f| f.range.start < range.end) {
                f.movability = why;
            }
        }
    }

    /// The reportable facts.
    pub fn report(&self, path: &str) -> report::Module {
        let bytes = |f: &restitch_program::Function| f.range.len();
        let (mut all, mut movable) = (0, 0);
        let mut reasons: BTreeMap<Movability, (u64, u64)> = BTreeMap::new();
        for f in &self.program.functions {
            all += bytes(f);
            if f.movability == Movability::Movable {
                movable += bytes(f);
            } else {
                let reason = reasons.entry(f.movability).or_default();
                *reason = (reason.0 + 1, reason.1 + bytes(f));
            }
        }
        let reason = |(why, (functions, bytes)): (&Movability, &(u64, u64))| report::Reason {
            reason: words(*why).into(),
            functions: *functions,
            bytes: *bytes,
        };
        report::Module {
            path: path.into(),
            build_id: self.image.build_id().map(|b| b.to_string()),
            functions: self.program.functions.len() as u64,
            blocks: self.program.blocks.len() as u64,
            code_bytes: all,
            movable_share: if all == 0 { 0.0 } else { movable as f64 / all as f64 },
            not_movable: reasons.iter().map(reason).collect(),
            layout: None,
            version: None,
            counting: None,
            samples: 0,
            plan: None,
            hottest: Vec::new(),
        }
    }
}

/// Why a function is not moved, in words.
pub fn words(why: Movability) -> &'static str {
    match why {
        Movability::Movable => "movable",
        Movability::Undecodable => {
            "its bytes are not all instructions, or a branch goes into the middle of one or out of the module"
        }
        Movability::RestartableSequence => "a restartable sequence (rseq)",
        Movability::OddUnwindInfo => "a signal frame, or unwind information that depends on its position",
        Movability::ComparedByRuntime => "the C library compares program counters with its addresses",
        Movability::UnwinderLookup => "unwinders look moved code up through it",
        Movability::Linkage => "procedure linkage stubs",
        Movability::WrittenByLoader => "the loader writes addresses into its code (text relocations)",
        Movability::PatchPoint => {
            "it is made to be changed while the program runs (XRay, -fpatchable-function-entry and the like)"
        }
        Movability::WritableCode => "its code is writable, so the program may change it while it runs",
        Movability::ChangedInMemory => {
            "its code or jump tables in memory are not the file's (a breakpoint or a hook of another tool)"
        }
        Movability::ReturnsElsewhere => {
            "it calls code that changes its return address, or reads what stands behind the call"
        }
        Movability::Overlapping => "overlaps another function's unwind range or instruction",
        Movability::RunTime => "the module's run time looks code addresses up in tables of its own",
        Movability::KnownLabels => {
            "addresses inside of it are known to other code or to data, as to handlers that judge where a fault was"
        }
        Movability::ComputedTargets => {
            "a jump goes to places in it that are computed, so each of its instructions may be one"
        }
        Movability::OwnPosition => {
            "it looks at its own program counter (rcx behind a system call, what calls leave below the stack, the state of the x87 unit)"
        }
        Movability::UnknownPersonality => {
            "its language's handler of exceptions is not known to read the tables that moved code needs"
        }
        Movability::DataInside => {
            "there may be data in it: its bytes are read, or nothing leads to some of them"
        }
        Movability::Skipped => "as was asked for (--skip-functions)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_with_changed_bytes_stay() {
        let small = include_bytes!("../../check/tests/data/small.elf");
        let mut analyzed = analyze_image(Arc::new(Image::parse(small.to_vec()).unwrap())).unwrap();
        let ranges: Vec<SvmaRange> = analyzed.program.functions.iter().map(|f| f.range).collect();
        let before: Vec<Movability> = analyzed.program.functions.iter().map(|f| f.movability).collect();
        assert!(ranges.len() >= 3);
        // The last byte of the first function to the first of the third, and a place between functions.
        analyzed.leave_changed(&[SvmaRange::between(ranges[0].end - 1, ranges[2].start + 1)]);
        analyzed.leave_changed(&[SvmaRange::new(ranges[ranges.len() - 1].end + 64, 1)]);
        let table = analyzed.program.tables.last().expect("it has a table").clone();
        let mut other = analyze_image(analyzed.image.clone()).unwrap();
        other.leave_changed(&[SvmaRange::new(table.range().end - 1, 1)]);
        let jumping = other.program.functions.iter().filter(|f| f.movability == Movability::ChangedInMemory);
        assert!(jumping.map(|f| f.range.contains(table.jump_at)).eq([true]), "the function that jumps by it");
        let after: Vec<Movability> = analyzed.program.functions.iter().map(|f| f.movability).collect();
        assert_eq!(after[..3], [Movability::ChangedInMemory; 3]);
        assert_eq!(after[3..], before[3..]);
    }
}
