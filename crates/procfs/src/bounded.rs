//! Files that the kernel writes while they are read: whoever maps faster than somebody reads has a memory map
//! without an end.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

/// Most bytes that are read of one: twice what `smaps` says of as many mappings as a process may have (65,530
/// by default), all of files with the longest names.
const MOST: u64 = 512 << 20;

/// Reads a file.
///
/// # Errors
/// If it cannot be read, or does not end.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_up_to(File::open(path)?, MOST)
}

fn read_up_to(file: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("it is longer than {most} bytes, as if somebody mapped memory all the time");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// The lines of a file, as far as it is read. (Names of files in them need not be text.)
pub(crate) fn lines(reader: impl BufRead) -> impl Iterator<Item = io::Result<String>> {
    let lines = reader.take(MOST).split(b'\n');
    lines.map(|line| line.map(|line| String::from_utf8_lossy(&line).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_is_not_read_to_its_end() {
        assert_eq!(read_up_to(&b"1234"[..], 4).expect("so many"), b"1234");
        let error = read_up_to(io::repeat(b'x'), 4).expect_err("without an end");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(!read(Path::new("/proc/self/maps")).expect("our own").is_empty());
    }

    #[test]
    fn lines_need_not_be_text() {
        let found: io::Result<Vec<String>> = lines(&b"a \xff\nVmFlags: rd\n"[..]).collect();
        assert_eq!(found.expect("lines"), ["a \u{fffd}", "VmFlags: rd"]);
    }
}
