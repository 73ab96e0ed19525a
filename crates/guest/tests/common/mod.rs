//! What tests with guests share.
#![allow(dead_code, reason = "some of it is for tests of other subjects")]

pub(crate) mod counting;
pub(crate) mod truth;

use std::path::{Path, PathBuf};
use std::process::Command;

use restitch_guest::{Error, FileIn, Kernel, Lab, Source};

/// The kernel of these tests, unless `RESTITCH_GUEST_KERNEL` names another line: `bench/verify/guests.py`
/// takes all in turn.
pub(crate) fn line() -> String {
    std::env::var("RESTITCH_GUEST_KERNEL").unwrap_or_else(|_| "6.1".into())
}

/// The value, or the end of the test if packages or programs are not to be had here.
macro_rules! had {
    ($made:expr) => {
        match $made {
            Ok(value) => value,
            Err(error) if error.is_missing() => restitch_testkit::skip_unsupported!("{error}"),
            Err(error) => panic!("{error}"),
        }
    };
}
pub(crate) use had;

pub(crate) struct Bench {
    pub(crate) lab: Lab,
    pub(crate) kernel: Kernel,
}

pub(crate) fn bench() -> Result<Bench, Error> {
    let lab = Lab::open()?;
    let kernel = lab.kernel(&line())?;
    Ok(Bench { lab, kernel })
}

/// The project's folder.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file for the guest, at this path there.
pub(crate) fn file(guest: &str, source: Source) -> FileIn {
    FileIn { guest: guest.into(), source, executable: true }
}

/// A program of `tests/guest` for the guest, at this path there; none without a compiler.
pub(crate) fn program(name: &str, guest: &str, folder: &Path) -> Option<FileIn> {
    let to = folder.join(name);
    let mut gcc = Command::new(restitch_testkit::find_program("gcc")?);
    gcc.args(["-O2", "-static", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&to);
    let output = gcc.arg(root().join(format!("tests/guest/{name}.c"))).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(file(guest, Source::Path(to)))
}

/// The address of a symbol in a view.
pub(crate) fn address_of(view: &Path, symbol: &str) -> Option<u64> {
    let text = std::fs::read_to_string(view.join("proc/kallsyms")).unwrap();
    let line = text.lines().find(|line| line.split_whitespace().nth(2) == Some(symbol))?;
    u64::from_str_radix(line.split_whitespace().next()?, 16).ok()
}

/// What a core file has from an address on.
pub(crate) fn memory_at(core: &[u8], address: u64) -> Option<&[u8]> {
    let word = |at: usize| u64::from_le_bytes(core[at..at + 8].try_into().unwrap());
    let count = usize::from(u16::from_le_bytes([core[56], core[57]]));
    let headers = (0..count).map(|at| 64 + 56 * at).filter(|&at| core[at] == 1);
    let (at, begin) = headers
        .map(|at| (at, word(at + 16)))
        .find(|&(at, begin)| address.checked_sub(begin).is_some_and(|offset| offset < word(at + 32)))?;
    let begin = (word(at + 8) + (address - begin)) as usize;
    Some(&core[begin..])
}
