//! The counter of executed instructions: a plugin of QEMU, built from `kernel/plugin`, and the program by
//! which guests mark the windows in which it counts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::command::run;
use crate::counts::Counts;
use crate::error::Error;
use crate::image::short_hash;
use crate::lab::Lab;

/// The plugin's sources.
const SOURCES: [(&str, &str); 6] = [
    ("count.c", include_str!("../../../kernel/plugin/count.c")),
    ("instructions.h", include_str!("../../../kernel/plugin/instructions.h")),
    ("model.h", include_str!("../../../kernel/plugin/model.h")),
    ("qemu.h", include_str!("../../../kernel/plugin/qemu.h")),
    ("table.h", include_str!("../../../kernel/plugin/table.h")),
    ("marks.h", include_str!("../../../kernel/plugin/marks.h")),
];
/// The sources of the program that marks windows.
const MARKER: [(&str, &str); 2] = [
    ("window.c", include_str!("../../../kernel/plugin/window.c")),
    ("marks.h", include_str!("../../../kernel/plugin/marks.h")),
];
/// Warnings are errors: there are none.
const FLAGS: [&str; 6] = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"];

/// The begin of names of files in which the plugin leaves what it counted.
const WINDOW: &str = "window-";

/// The plugin, built.
#[derive(Debug, Clone)]
pub struct Plugin {
    library: PathBuf,
}

/// What was counted between two marks.
#[derive(Debug, Clone)]
pub struct Window {
    /// Its number, from 0, in order of time.
    pub number: u32,
    /// What was counted.
    pub counts: Counts,
}

impl Plugin {
    /// Builds the plugin by the machine's C compiler, once for each version of its source.
    pub fn build(lab: &Lab) -> Result<Self> {
        // Symbols stay without versions, so that it can be loaded by an older C library than the compiler's.
        let library =
            compile(lab, "plugin", &SOURCES, &["-fPIC", "-shared", "-nostdlib", "-fvisibility=hidden"])?;
        Ok(Self { library })
    }

    /// The value of QEMU's option.
    pub(crate) fn argument(&self, folder: &Path) -> String {
        format!("file={},out={}", option_value(&self.library), option_value(&folder.join(WINDOW)))
    }
}

/// A path in a list of QEMU's options, where a comma is written twice.
pub(crate) fn option_value(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Builds the program by which guests mark windows: `window begin`, `window end`. It needs no library.
pub fn build_marker(lab: &Lab) -> Result<PathBuf> {
    compile(lab, "marker", &MARKER, &["-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector"])
}

fn compile(lab: &Lab, name: &str, sources: &[(&str, &str)], flags: &[&str]) -> Result<PathBuf> {
    let all: String =
        sources.iter().flat_map(|(name, text)| [*name, *text]).chain(flags.iter().copied()).collect();
    let folder = lab.cache().entry(&format!("{name}-{}", short_hash(all.as_bytes())), |to| {
        for (file, text) in sources {
            let path = to.join(file);
            fs::write(&path, text).map_err(Error::file("write", &path))?;
        }
        let mut gcc = Command::new("gcc");
        gcc.current_dir(to).args(FLAGS).args(flags);
        run(gcc.args(["-o", name, sources[0].0]))?;
        Ok(())
    })?;
    Ok(folder.join(name))
}

/// The windows whose files are in a folder, in order.
pub(crate) fn windows(folder: &Path) -> Result<Vec<Window>> {
    let entries = fs::read_dir(folder).map_err(Error::file("read the folder", folder))?;
    let mut windows = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(number) = name.strip_prefix(WINDOW).and_then(|number| number.parse().ok()) else { continue };
        let bytes = fs::read(&path).map_err(Error::file("read", &path))?;
        windows.push(Window { number, counts: Counts::parse(&bytes)? });
    }
    windows.sort_by_key(|window| window.number);
    Ok(windows)
}
