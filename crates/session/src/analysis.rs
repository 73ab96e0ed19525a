//! From bytes to a [`Program`], with the unwind tables that later stages need too.

use restitch_cfi::UnwindInfo;
use restitch_image::Image;
use restitch_program::{Movability, Program, analyze};
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
pub fn analyze_image(image: Arc<Image>) -> Result<Analyzed, String> {
    let at =
        image.eh_frame().ok_or("it has no unwind tables (.eh_frame), so its functions cannot be found")?;
    let bytes = image.read(at.start, at.len() as usize).ok_or("its unwind tables are not in the file")?;
    let unwind = UnwindInfo::parse(bytes, at.start).map_err(|e| e.to_string())?;
    let program = analyze(&image, &unwind).map_err(|e| e.to_string())?;
    Ok(Analyzed { image, unwind, program })
}

impl Analyzed {
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
            hottest: Vec::new(),
        }
    }
}

/// Why a function is not moved, in words.
fn words(why: Movability) -> &'static str {
    match why {
        Movability::Movable => "movable",
        Movability::Undecodable => {
            "its bytes are not all instructions, or a branch goes into the middle of one or out of the module"
        }
        Movability::RestartableSequence => "a restartable sequence (rseq)",
        Movability::OddUnwindInfo => "a signal frame, or unwind information that depends on its position",
        Movability::ComparedByRuntime => "the C library compares program counters with its addresses",
        Movability::Linkage => "procedure linkage stubs",
        Movability::Overlapping => "overlaps another function",
    }
}
