//! Code in memory that the process itself may write to at this moment: it was mapped so, or `mprotect` has
//! made it so.
//!
//! The file's own flags are the analysis's business; here is what the process has done since. (restitch
//! writes redirects through the kernel, and makes nothing writable for that.)

use crate::attached_process::AttachedProcess;
use crate::error::ProcessError;
use crate::target::Module;
use restitch_address::{AvmaRange, SvmaRange};
use restitch_procfs as procfs;
use restitch_procfs::Mapping;

impl AttachedProcess {
    /// The pieces of module number `module`'s code that are writable, by stated address, sorted.
    ///
    /// # Errors
    /// If the process has ended, or may not be seen.
    pub fn writable_code(&self, module: usize) -> Result<Vec<SvmaRange>, ProcessError> {
        Ok(writable(&self.target().modules[module], &procfs::maps(self.target().pid())?))
    }
}

fn writable(module: &Module, maps: &[Mapping]) -> Vec<SvmaRange> {
    let writable = maps.iter().filter(|m| m.permissions.write && m.permissions.execute).map(|m| m.range);
    let stated = |range: AvmaRange| [range.start, range.end].map(|at| module.bias.to_stated(at));
    let inside = |range: AvmaRange| {
        let [start, end] = stated(range);
        let code = module.image.segments().iter().filter(|s| s.executable).map(|s| s.range);
        code.map(move |code| (code.start.max(start), code.end.min(end)))
    };
    let mine = writable.filter(|range| range.overlaps(&module.range));
    mine.flat_map(inside).filter(|(start, end)| start < end).map(|(a, b)| SvmaRange::between(a, b)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_target::running;
    use restitch_address::PAGE;

    #[test]
    fn the_writable_part_of_a_module_s_code_is_found() {
        let Some((_process, target)) = running("loops.c") else { return };
        let module = &target.modules[target.program];
        let mut maps = procfs::maps(target.pid()).expect("readable");
        assert_eq!(writable(module, &maps), [], "nor are its data code, or what is between modules");
        let is_code = |m: &&mut Mapping| m.permissions.execute && module.range.overlaps(&m.range);
        let code = maps.iter_mut().find(is_code).expect("it has code");
        code.permissions.write = true;
        // `mprotect` splits a mapping: here is its first page.
        code.range.end = code.range.start + PAGE;
        let segment = module.image.segments().iter().find(|s| s.executable).expect("it has code").range;
        let end = (module.bias.to_stated(code.range.start) + PAGE).min(segment.end);
        assert_eq!(writable(module, &maps), [SvmaRange::between(segment.start, end)]);
    }
}
