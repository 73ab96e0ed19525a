//! Reading whole files that others have named or made: regular ones, up to a bound.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// More than this is no program, library or stored profile: no output can be larger either, whose record of
/// the original has 32-bit offsets.
pub const MOST_BYTES: u64 = 4 << 30;
/// More than this is not read of what a user names: recordings of whole machines are the largest.
pub const MOST_NAMED: u64 = 16 << 30;
/// More than this is not taken from a pipe, of which nothing tells how much will come.
pub const MOST_PIPED: u64 = 1 << 30;

/// `O_NONBLOCK`: neither opening nor reading a pipe waits for its other end. It means nothing for a regular
/// file.
pub(crate) const NONBLOCK: i32 = 0o4000;

/// The content of a regular file, whose name need not be the user's.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a pipe, socket or device, [`ErrorKind::FileTooLarge`] for more than
/// [`MOST_BYTES`], else the system's reason.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    read_opened(&mut open_without_waiting(path)?, MOST_BYTES)
}

/// Opens a file for reading; of a pipe it does not wait for the other end.
///
/// # Errors
/// The system's reason.
pub fn open_without_waiting(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)
}

/// As [`read_regular`], of a file that is open, and at most `most` bytes.
///
/// # Errors
/// As there.
pub fn read_opened(file: &mut File, most: u64) -> io::Result<Vec<u8>> {
    let metadata = file.metadata()?;
    let kind = metadata.file_type();
    let special = [
        (kind.is_fifo(), "it is a pipe, not a file; name a file"),
        (kind.is_socket(), "it is a socket, not a file; name a file"),
        (kind.is_char_device() || kind.is_block_device(), "it is a device, not a file; name a file"),
    ];
    if let Some((_, why)) = special.iter().find(|(is, _)| *is) {
        return Err(io::Error::new(ErrorKind::InvalidInput, *why));
    }
    if metadata.len() > most {
        return Err(too_large(metadata.len(), most));
    }
    read_bounded(file, metadata.len(), most)
}

/// What `from` gives up to its end: some `expected` bytes, `most` at most.
///
/// # Errors
/// [`ErrorKind::FileTooLarge`] for more, else the system's reason.
pub(crate) fn read_bounded(from: &mut impl Read, expected: u64, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One more, so that the last read meets the end without more room.
    bytes.try_reserve_exact(expected.min(most) as usize + 1)?;
    from.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(too_large(bytes.len() as u64, most));
    }
    Ok(bytes)
}

fn too_large(len: u64, most: u64) -> io::Error {
    let why =
        format!("it has {len} bytes or more, and at most {} MiB are read; name another file", most >> 20);
    io::Error::new(ErrorKind::FileTooLarge, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_a_sane_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"content").unwrap();
        assert_eq!(read_regular(&path).unwrap(), b"content");
        let kind = |path: &Path| read_regular(path).unwrap_err().kind();
        assert_eq!(kind(Path::new("/dev/zero")), ErrorKind::InvalidInput);
        assert_eq!(kind(&folder.path().join("none")), ErrorKind::NotFound);
        assert_eq!(kind(folder.path()), ErrorKind::IsADirectory);
        // A file with a hole, that takes no room.
        File::create(&path).unwrap().set_len(MOST_BYTES + 1).unwrap();
        let error = read_regular(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("4294967297 bytes") && error.to_string().contains("4096 MiB"));
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        assert_eq!(kind(&pipe), ErrorKind::InvalidInput, "nobody waits for a writer");
    }

    #[test]
    fn what_says_less_than_it_has_is_bounded_too() {
        assert_eq!(read_bounded(&mut &[7u8; 10][..], 3, 10).unwrap(), [7; 10]);
        assert_eq!(read_bounded(&mut io::repeat(7), 0, 100).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }
}
