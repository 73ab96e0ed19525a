//! Numbers for places of code that outlive the processes they were seen in: modules may be opened elsewhere,
//! and workers replaced.

use crate::program_phases::Seen;
use restitch_address::Svma;
use restitch_apply_process::Module;
use restitch_cfi::UnwindInfo;
use restitch_image::Image;
use restitch_processes::sampling::IpSamples;
use std::path::PathBuf;

/// Code in lines of so many bytes.
const LINE: u64 = 64;

/// The modules that samples were in, by number.
#[derive(Debug, Default)]
pub(crate) struct StableLocations {
    modules: Vec<(PathBuf, Vec<Svma>)>,
}

impl StableLocations {
    /// The functions and lines of `samples`, whose modules are these.
    pub fn of(&mut self, modules: &[Module], samples: &IpSamples) -> Seen {
        let mut seen = Seen::default();
        for (&index, addresses) in &samples.by_module {
            let number = self.number(&modules[index]);
            let starts = &self.modules[number].1;
            for (at, n) in addresses {
                // Code without unwind information counts as a part of what is before it.
                let function = starts.partition_point(|start| start <= at);
                seen.functions.add(number as u32, function as u64, *n);
                seen.lines.add(number as u32, at.get() / LINE, *n);
            }
        }
        seen
    }

    fn number(&mut self, module: &Module) -> usize {
        self.modules.iter().position(|(path, _)| *path == module.path).unwrap_or_else(|| {
            self.modules.push((module.path.clone(), starts(&module.image)));
            self.modules.len() - 1
        })
    }
}

/// Where functions begin, in order; none if that cannot be read: the module is one function then.
fn starts(image: &Image) -> Vec<Svma> {
    let info = image.eh_frame().and_then(|at| {
        let bytes = image.read(at.start, at.len() as usize)?;
        UnwindInfo::parse(bytes, at.start).ok()
    });
    let mut starts: Vec<Svma> =
        info.iter().flat_map(|info| info.entries()).map(|entry| entry.range.start).collect();
    starts.sort_unstable();
    starts
}
