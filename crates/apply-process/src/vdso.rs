//! The vdso: a module that is mapped from no file.
//!
//! Problem: the kernel maps an image of its own into each process, whose functions read the clock without a
//! system call. It is an ELF image like any other, but no path leads to it, and what lies there is not what
//! the kernel was built with: the kernel exchanges instructions by the processor that it finds
//! (alternatives). Idea: it is read from the process's memory, and its content is its identity. It belongs to
//! nobody who could lay it out anew, so it gets tracing versions and no others.
//!
//! Limits: a breakpoint that somebody has set in it before it is read passes for its code (as it is executed,
//! so is its copy).

use restitch_image::Image;
use restitch_procfs::{Device, FileIdentity, Mapping};
use restitch_tracee::Memory;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

/// What stands for its path, as in `/proc/PID/maps` and in recordings of `perf`.
pub(crate) const NAME: &str = "[vdso]";
/// More bytes are no vdso. (That of Linux 6.18 has 8 KiB.)
const MOST_BYTES: u64 = 1 << 20;

/// Images of the vdso that were seen. All processes of a system mostly have the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known(Vec<Arc<Image>>);

impl Known {
    /// The vdso of process `pid` among `maps`: its line, what is there, and the identity of that. `None` if
    /// the process has none, or it cannot be read or understood: its code is in no module then.
    pub fn read<'m>(
        &mut self,
        pid: i32,
        maps: &'m [Mapping],
    ) -> Option<(&'m Mapping, Arc<Image>, FileIdentity)> {
        let code = maps.iter().find(|m| m.is_special(NAME) && m.permissions.execute)?;
        if code.range.len() > MOST_BYTES {
            return None;
        }
        let memory = Memory::open_read_only(pid).ok()?;
        let bytes = memory.read_vec(code.range.start, code.range.len() as usize).ok()?;
        let mut content = DefaultHasher::new();
        bytes.hash(&mut content);
        let image = match self.0.iter().find(|image| image.data() == bytes) {
            Some(image) => image.clone(),
            None => {
                self.0.push(Arc::new(Image::parse(bytes).ok()?));
                self.0.last()?.clone()
            }
        };
        // The maps say inode 0 of all that is no file; another content is another module.
        Some((code, image, FileIdentity { device: Device::default(), inode: content.finish() | 1 }))
    }
}

/// Whether that is what stands for the vdso's path.
pub fn is_vdso(path: &Path) -> bool {
    path == Path::new(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_procfs as procfs;

    fn maps() -> Vec<Mapping> {
        procfs::maps(std::process::id() as i32).expect("our own")
    }

    #[test]
    fn the_vdso_is_read_from_memory_and_shared() {
        let (pid, maps, mut known) = (std::process::id() as i32, maps(), Known::default());
        let Some(line) = maps.iter().find(|m| m.is_special(NAME)) else {
            restitch_testkit::skip!("this process has no vdso");
        };
        let (code, image, identity) = known.read(pid, &maps).expect("it is an ELF image");
        assert!(code == line && image.segments().iter().any(|s| s.executable));
        let (_, again, same) = known.read(pid, &maps).expect("as before");
        assert!(Arc::ptr_eq(&image, &again) && identity == same);
    }

    #[test]
    fn a_process_without_a_vdso_has_none() {
        let mut maps = maps();
        maps.retain(|m| !m.is_special(NAME));
        assert!(Known::default().read(std::process::id() as i32, &maps).is_none());
    }

    #[test]
    fn what_is_no_image_is_no_vdso() {
        let mut maps = maps();
        // The program's writable data, say, under the vdso's name.
        maps.retain(|m| !m.is_special(NAME) && m.permissions.write && m.range.len() < MOST_BYTES);
        let line = &mut maps[0];
        line.name = procfs::MappingName::Special(NAME.into());
        line.permissions.execute = true;
        assert!(Known::default().read(std::process::id() as i32, &maps).is_none());
    }
}
