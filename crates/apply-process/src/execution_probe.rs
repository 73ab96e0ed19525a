//! Knowing that nobody was in a retired version while memory was searched.
//!
//! Problem: memory is searched while the process runs. Somebody who comes back into a retired version by a
//! stale return address may call from there, so that a new return address comes to lie where the search has
//! been already, and leave by the old one before the search gets there. Idea: in the stop before the search
//! the version loses its pages ([`set`]: the file is still mapped, but the page table is empty). Whoever
//! executes an instruction in it afterwards brings a page back, which the page table tells in the stop behind
//! the search ([`touched`]). If none came back, nobody ran there, and no new address arose.
//!
//! Nothing is taken from the process: a page that is needed comes back by itself. So a kill at any moment is
//! harmless, and what is wrong at most is that a version stays for longer.
//!
//! Headers and tables of a version are read by unwinders at any time, so pages of code hold nothing else
//! (`emit`), and code is advised to be read at random: that makes a mapping of its own of it, at whose ends
//! the kernel's reading of neighbouring pages stops (`fault_around_bytes`). Redirects at a retired version's
//! function entries go with its private pages; without them its code is that of the file, which is as right.

use crate::installed_version::InstalledVersion;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_procfs::Pagemap;
use restitch_tracee::Batch;

/// Adds the calls that take a version's pages out of the page table.
pub(crate) fn set(batch: &mut Batch, old: &InstalledVersion) {
    // Locked pages cannot be dropped. (A process that locks all its memory locks versions, too.)
    batch.munlock(old.range);
    if let Some(code) = code(old) {
        batch.madvise(code, libc::MADV_RANDOM);
    }
    batch.madvise(old.range, libc::MADV_DONTNEED);
}

/// Whether somebody may have executed code of the version since [`set`]: the first page that shows it.
/// `pages`: `None` if the kernel does not tell, which counts as all of them.
pub(crate) fn touched(pages: Option<&Pagemap>, old: &InstalledVersion) -> Option<Avma> {
    if old.stored.map.pieces.is_empty() && !old.map_lost {
        // There is no code in it: nobody can have executed any.
        return None;
    }
    let Some(code) = code(old) else { return Some(old.range.start) };
    // What the kernel does not tell may have happened.
    let Some(states) = pages.and_then(|pages| pages.states(code).ok()) else { return Some(code.start) };
    let first = states.iter().position(|page| page.present || page.swapped)?;
    Some(code.start + first as u64 * PAGE)
}

/// The pages with code; all pages if it is not known which these are.
fn code(old: &InstalledVersion) -> Option<AvmaRange> {
    if old.map_lost {
        return Some(old.range);
    }
    let pieces = &old.stored.map.pieces;
    let start = pieces.iter().map(|p| p.version).min()?;
    let end = pieces.iter().map(|p| p.version + u64::from(p.len)).max()?;
    let (start, end) = (old.bias.to_actual(start).align_down(PAGE), old.bias.to_actual(end).align_up(PAGE));
    let inside = old.range.start <= start && end <= old.range.end && start < end;
    inside.then(|| AvmaRange::between(start, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::map_file::StoredMap;
    use crate::stub::{borrow, stub_site};
    use crate::target::Target;
    use restitch_address::{LoadBias, Svma};
    use restitch_emit::{AddressMap, MapPiece, PieceKind};
    use restitch_testkit::{Guarded, compile, require, scratch};
    use restitch_tracee::Stopped;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    /// Maps 32 pages of a file, all of them `ret`, and tells where; then for each line: `c N` calls byte N,
    /// `r N` reads it.
    const CALLS: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
int main(int argc, char **argv) {
    int fd = open(argv[1], O_RDONLY);
    unsigned char *code = mmap(NULL, 32 * 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
    char what;
    unsigned at;
    if (argc != 2 || code == MAP_FAILED) return 1;
    for (int i = 0; i < 32; i++)
        if (code[i * 4096] != 0xc3) return 2;
    printf("%p\n", (void *)code);
    fflush(stdout);
    while (scanf(" %c %u", &what, &at) == 2) {
        if (what == 'c') ((void (*)(void))(code + at))();
        if (what == 'l' && mlock(code, 32 * 4096)) return 3;
        printf("%d\n", what == 'r' ? code[at] : 0);
        fflush(stdout);
    }
    return 0;
}
"#;

    #[test]
    fn whoever_executes_an_instruction_is_seen_and_readers_of_tables_are_not() {
        let folder = scratch();
        let (source, file) = (folder.path().join("calls.c"), folder.path().join("code"));
        std::fs::write(&source, CALLS).expect("writable");
        std::fs::write(&file, [0xc3; 32 * PAGE as usize]).expect("writable");
        let program = require!(compile(&source, &["-O1"]).ok(), "gcc");
        let mut command = Command::new(program);
        let mut child =
            Guarded::spawn(command.arg(&file).stdin(Stdio::piped()).stdout(Stdio::piped())).expect("started");
        let pid = child.pid() as i32;
        let mut input = child.child().stdin.take().expect("a pipe");
        let mut output = BufReader::new(child.child().stdout.take().expect("a pipe"));
        let mut answer = move || {
            let mut line = String::new();
            output.read_line(&mut line).expect("an answer");
            line.trim().to_owned()
        };
        let start = u64::from_str_radix(answer().trim_start_matches("0x"), 16).expect("an address");
        let mut say = |command: &str| {
            writeln!(input, "{command}").expect("it lives");
            answer()
        };
        // Code in pages 8 to 23.
        let piece = |page: u64, len| MapPiece {
            version: Svma::new(start + page * PAGE),
            original: Svma::new(0),
            len,
            kind: PieceKind::Linear,
        };
        let map = AddressMap { pieces: vec![piece(8, 100), piece(23, 4000)], ..AddressMap::default() };
        let old = InstalledVersion {
            number: 1,
            range: AvmaRange::new(Avma::new(start), 32 * PAGE),
            bias: LoadBias::between(Svma::new(0), Avma::new(0)),
            module: None,
            stored: StoredMap { map, redirects: Vec::new() },
            by_pointers: false,
            map_lost: false,
        };
        let target = Target::open(pid).expect("it lives");
        let reset = || {
            let mut stopped = Stopped::seize_all(pid).expect("it can be stopped");
            let (stub, maps) =
                (stub_site(&target, |_| false).expect("room"), stopped.maps().expect("readable"));
            let mut borrow = borrow(&mut stopped, &stub, &maps).expect("a thread");
            let mut batch = Batch::new();
            set(&mut batch, &old);
            borrow.run(&batch).expect("it calls");
            borrow.finish().expect("it goes back");
            stopped.resume();
        };
        // Where it is not known what is code, whoever reads tables looks like somebody who executes.
        let lost = InstalledVersion { stored: StoredMap::default(), map_lost: true, ..old.clone() };
        let seen_in = |old| touched(Some(&Pagemap::open(pid).expect("readable")), old).is_some();
        let touched = || seen_in(&old);
        assert!(touched() && seen_in(&lost), "all was read");
        for (command, seen) in [("r 0", false), ("c 98000", true), ("r 102400", false), ("c 32768", true)] {
            reset();
            assert!(!touched() && !seen_in(&lost), "at once");
            say(command);
            assert_eq!(touched(), seen, "{command}");
            assert!(seen_in(&lost), "{command}");
        }
        // Locked pages as well.
        say("l 0");
        assert!(touched());
        reset();
        assert!(!touched(), "locked pages stay");
        say("c 32769");
        assert!(touched());
    }

    #[test]
    fn nobody_executes_a_version_without_code() {
        let old = InstalledVersion {
            number: 1,
            range: AvmaRange::new(Avma::new(0x1000), PAGE),
            bias: LoadBias::between(Svma::new(0), Avma::new(0)),
            module: None,
            stored: StoredMap { map: AddressMap::default(), redirects: Vec::new() },
            by_pointers: false,
            map_lost: false,
        };
        let pages = Pagemap::open(std::process::id() as i32).expect("it lives");
        assert_eq!(touched(Some(&pages), &old), None);
        // That its map cannot be read is no reason to believe that it has none.
        let lost = InstalledVersion { map_lost: true, ..old };
        assert_eq!(touched(None, &lost), Some(lost.range.start));
    }
}
