//! Archives in the form that the kernel unpacks into its first root file system (`newc`).

/// An archive that is being written.
#[derive(Default)]
pub(crate) struct Cpio {
    bytes: Vec<u8>,
    folders: Vec<String>,
    number: u32,
}

/// Kinds of entries, as in the mode of a file.
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;

impl Cpio {
    /// Adds a file with those permissions, and the folders that lead to it. `path` is absolute in the guest.
    pub(crate) fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        let path = path.trim_start_matches('/');
        self.folders_to(path);
        self.entry(path, FILE | permissions, content);
    }

    /// Adds a folder.
    pub(crate) fn folder(&mut self, path: &str) {
        self.folders_to(&format!("{}/", path.trim_matches('/')));
    }

    fn folders_to(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            let folder = &path[..at];
            if !folder.is_empty() && !self.folders.iter().any(|known| known == folder) {
                self.folders.push(folder.into());
                self.entry(folder, FOLDER | 0o755, &[]);
            }
        }
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.number += 1;
        let links = if mode & FOLDER == FOLDER && mode & FILE == 0 { 2 } else { 1 };
        let size = content.len() as u32;
        let name_size = name.len() as u32 + 1;
        // Inode, mode, user, group, links, time, size, device twice (major, minor), size of the name,
        // checksum.
        let fields = [self.number, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// The archive with its end.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn another_reader_finds_the_files_and_their_permissions() {
        let cpio = restitch_testkit::require!(restitch_testkit::find_program("cpio"), "cpio");
        let folder = restitch_testkit::scratch();
        let mut archive = Cpio::default();
        archive.file("/bin/sh", 0o755, b"#!");
        archive.file("/bin/data", 0o644, b"12345");
        archive.folder("/proc");
        let file = folder.path().join("archive");
        std::fs::write(&file, archive.finish()).unwrap();
        let output = Command::new(cpio)
            .args(["-i", "-d", "--quiet", "-F"])
            .arg(&file)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(std::fs::read(folder.path().join("bin/data")).unwrap(), b"12345");
        assert!(folder.path().join("proc").is_dir());
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(folder.path().join("bin/sh")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
    }

    #[test]
    fn sizes_and_names_are_padded_to_four_bytes() {
        let mut archive = Cpio::default();
        archive.file("/a", 0o644, b"xyz");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.starts_with(b"070701"));
    }
}
