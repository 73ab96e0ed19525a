//! Reads the archives in which guests give files back (ustar, with GNU's long names).

use std::collections::BTreeMap;

use crate::Result;
use crate::error::Error;

/// The size of a block of the archive, in bytes.
const BLOCK: usize = 512;

/// The regular files of an archive by their names, without a leading `./`. An archive that ends early, or
/// whose names leave the folder, is refused.
pub(crate) fn files(archive: &[u8]) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    let mut at = 0;
    let mut long_name = None;
    loop {
        let header = archive.get(at..at + BLOCK).ok_or_else(|| damaged("it ends early"))?;
        if header.iter().all(|&byte| byte == 0) {
            return Ok(files);
        }
        if !checksum_fits(header) {
            return Err(damaged("a header's checksum is wrong"));
        }
        let size = octal(&header[124..136]).ok_or_else(|| damaged("a size is no number"))?;
        let end = at + BLOCK + size;
        let content = archive.get(at + BLOCK..end).ok_or_else(|| damaged("it ends within a file"))?;
        at = end.next_multiple_of(BLOCK);
        match header[156] {
            b'L' => long_name = Some(text(content)),
            kind => {
                let name = long_name.take().unwrap_or_else(|| short_name(header));
                if matches!(kind, b'0' | 0) {
                    files.insert(safe(&name)?, content.to_vec());
                }
            }
        }
    }
}

fn damaged(why: &str) -> Error {
    Error::damaged("the archive of files from the guest", why)
}

/// Text up to a zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn short_name(header: &[u8]) -> String {
    let (name, prefix) = (text(&header[..100]), text(&header[345..500]));
    let is_ustar = header[257..].starts_with(b"ustar\0");
    if is_ustar && !prefix.is_empty() { format!("{prefix}/{name}") } else { name }
}

fn octal(field: &[u8]) -> Option<usize> {
    usize::from_str_radix(text(field).trim(), 8).ok()
}

/// The sum of a header's bytes, its own field taken as spaces, is what the field says.
fn checksum_fits(header: &[u8]) -> bool {
    let bytes = header.iter().enumerate();
    let sum: usize =
        bytes.map(|(at, &byte)| if (148..156).contains(&at) { 32 } else { usize::from(byte) }).sum();
    octal(&header[148..156]) == Some(sum)
}

/// A name that stays below a folder.
fn safe(name: &str) -> Result<String> {
    let name = name.trim_start_matches("./").trim_start_matches('/');
    if name.split('/').any(|part| part == "..") {
        return Err(damaged("a name leaves the folder"));
    }
    Ok(name.into())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn archive(names: &[&str]) -> Vec<u8> {
        let folder = restitch_testkit::scratch();
        for name in names {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        let output = Command::new("tar")
            .args(["-c", "--format=gnu", "."])
            .current_dir(folder.path())
            .output()
            .unwrap();
        output.stdout
    }

    #[test]
    fn files_come_back_with_short_and_long_names() {
        let long = format!("{}/{}", "a".repeat(90), "b".repeat(90));
        let found = files(&archive(&["one", "two/three", &long])).unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!(found["two/three"], b"two/three");
        assert_eq!(found[&long], long.as_bytes());
    }

    #[test]
    fn an_archive_that_ends_early_or_was_changed_is_refused() {
        let whole = archive(&["one"]);
        let end = whole.iter().rposition(|&byte| byte != 0).unwrap();
        assert!(files(&whole[..end]).is_err());
        let mut changed = whole;
        changed[0] ^= 1;
        assert!(files(&changed).is_err());
    }

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        assert!(safe("a/../../b").is_err());
        assert_eq!(safe("./a/b").unwrap(), "a/b");
    }
}
