//! Code and constants in memory that differ from the file, and not by redirects of ours: a debugger's
//! breakpoints, the kernel's uprobes, hooks of other tools, text relocations.
//!
//! A version is a copy of the *file's* instructions and jump tables, so the functions that hold such bytes,
//! or jump by such tables, have to stay: their changes would be lost in a copy. Only pages that the process
//! has of its own can differ; the kernel's page table tells which they are. (Pages that the file's own
//! permissions let be written are the process's own in any case, with relocations in them: what somebody has
//! changed there by hand, in a table that the loader has made read-only, is not found.)

use crate::attached_process::AttachedProcess;
use crate::entry_patch::{LEN, destination};
use crate::error::ProcessError;
use crate::own_pages::own_pages;
use crate::target::Module;
use restitch_address::{Avma, AvmaRange, PAGE, Svma, SvmaRange};
use restitch_image::Segment;
use restitch_tracee::Memory;
use restitch_x86::patch::Patch;

impl AttachedProcess {
    /// The pieces of module number `module`'s code and constants whose bytes are neither the file's nor a
    /// redirect into a version, by stated address, sorted.
    ///
    /// # Errors
    /// If the process cannot be read.
    pub fn foreign_code(&self, module: usize) -> Result<Vec<SvmaRange>, ProcessError> {
        let versions: Vec<AvmaRange> = self.journal().versions.iter().map(|v| v.range()).collect();
        foreign(self.target().pid(), &self.target().modules[module], &versions)
    }
}

fn foreign(pid: i32, module: &Module, versions: &[AvmaRange]) -> Result<Vec<SvmaRange>, ProcessError> {
    let memory = Memory::open_read_only(pid)?;
    let mut found = Vec::new();
    for segment in module.image.segments().iter().filter(|s| s.executable || !s.writable) {
        let pages = own_pages(&memory, module, segment);
        let requests: Vec<(Avma, usize)> = pages.iter().map(|at| (*at, PAGE as usize)).collect();
        for (at, bytes) in pages.into_iter().zip(memory.read_many(&requests)) {
            if let Some(bytes) = bytes {
                compare(module, segment, at, &bytes, versions, &mut found);
            }
        }
    }
    Ok(found)
}

/// Adds what differs in the page at `at`.
fn compare(
    module: &Module,
    segment: &Segment,
    at: Avma,
    bytes: &[u8],
    versions: &[AvmaRange],
    found: &mut Vec<SvmaRange>,
) {
    let first = module.bias.to_stated(at);
    for (i, byte) in bytes.iter().enumerate() {
        let place = first + i as u64;
        let original = module.image.read(place, 1).filter(|_| segment.file_backed().contains(place));
        if original.is_some_and(|original| original[0] != *byte) && !in_redirect(at, bytes, i, versions) {
            add(found, place);
        }
    }
}

/// Whether byte number `i` of the page belongs to a jump into a version. (No redirect crosses a page.)
fn in_redirect(page: Avma, bytes: &[u8], i: usize, versions: &[AvmaRange]) -> bool {
    (0..LEN).filter_map(|back| i.checked_sub(back)).any(|start| {
        let to =
            Patch::beginning_of(&bytes[start..]).and_then(|found| destination(page + start as u64, found));
        to.is_some_and(|to| versions.iter().any(|version| version.contains(to)))
    })
}

fn add(found: &mut Vec<SvmaRange>, at: Svma) {
    match found.last_mut() {
        Some(last) if last.end == at => last.end = at + 1,
        _ => found.push(SvmaRange::new(at, 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_target::running;

    #[test]
    fn foreign_bytes_are_found_and_redirects_are_not() {
        let Some((_process, target)) = running("loops.c") else { return };
        let pid = target.pid();
        let module = &target.modules[target.program];
        let memory = Memory::open(pid).expect("ours to change");
        let code = module.image.segments().iter().find(|s| s.executable).expect("it has code").file_backed();
        // The end of `_fini`, which does not run before the end.
        let at = code.end.offset(-8);
        let original = module.image.read(at, 5).expect("in the file");
        let change = |bytes: &[u8]| memory.write(module.bias.to_actual(at), bytes).expect("written");
        let version = AvmaRange::new(module.bias.to_actual(at) + 5 + 0x12_3000, 0x1000);
        let found = |versions: &[AvmaRange]| foreign(pid, module, versions).expect("readable");
        assert_eq!(found(&[version]), []);
        change(&[!original[0]]);
        assert_eq!(found(&[version]), [SvmaRange::new(at, 1)]);
        change(&[0xe9, 0x56, 0x34, 0x12, 0]);
        assert!(!found(&[]).is_empty(), "a jump to nowhere of ours");
        assert_eq!(found(&[version]), []);
        change(original);
        assert_eq!(found(&[]), []);
        // A constant, which is where jump tables are.
        let constants = module.image.section(".rodata").expect("it has constants").range;
        let (at, original) =
            (constants.end - 1, module.image.read(constants.end - 1, 1).expect("in the file"));
        let change = |byte: u8| memory.write(module.bias.to_actual(at), &[byte]).expect("written");
        change(!original[0]);
        assert_eq!(found(&[]), [SvmaRange::new(at, 1)]);
        change(original[0]);
        assert_eq!(found(&[]), []);
    }
}
