//! Modules that the program closes, or opens elsewhere, while restitch is at work on it: a web server that
//! reads its configuration anew, an interpreter with its extensions.
//!
//! Problem: what was found out of a process when it was opened (which file lies where) is used seconds later,
//! and a journal for as long as the process lives. Where a module was there may be nothing by then, or the
//! code of another one. Idea: before a switch, and once more in the stop, the memory map says whether each
//! module is still where it was. A version for one that is not is refused ([`ProcessError::Moved`]); all else
//! works on the process as it is now ([`AttachedProcess::now`]), and knows nothing of frames in modules that
//! have gone since. What a journal has to undo where a module no longer is, is forgotten: its redirects have
//! gone with it.

use crate::attached_process::AttachedProcess;
use crate::entry_patch::LEN;
use crate::error::ProcessError;
use crate::memory::writing::leads_into_version;
use crate::state::journal::{Journal, JournalPatch, VersionKind};
use crate::switch_plan::Incoming;
use crate::target::{ImageCache, Target};
use restitch_address::Avma;
use restitch_procfs::{self as procfs, Mapping};
use restitch_tracee::Memory;
use restitch_x86::patch::Patch;
use std::collections::BTreeMap;
use std::path::PathBuf;

impl AttachedProcess {
    /// The process and its modules as they are now; those of [`AttachedProcess::target`] unless some have
    /// gone or moved.
    pub(crate) fn now(&self) -> &Target {
        self.renewed.as_ref().unwrap_or(&self.target)
    }

    /// Looks at the process anew if modules have gone or moved.
    pub(crate) fn renew(&mut self) -> Result<(), ProcessError> {
        const MOST_LOOKS: u32 = 4;
        for _ in 0..MOST_LOOKS {
            if self.now().moved_modules(&procfs::maps(self.target.pid())?).is_empty() {
                break;
            }
            self.renewed = Some(Target::open_even_moved(self.target.pid(), &mut ImageCache::default())?);
            self.compared = false;
        }
        Ok(())
    }

    /// Takes the modules as they are now for those of [`AttachedProcess::target`]. Module numbers may differ
    /// then.
    ///
    /// # Errors
    /// If the process cannot be read.
    pub fn look_again(&mut self) -> Result<(), ProcessError> {
        self.renew()?;
        if let Some(now) = self.renewed.take() {
            self.target = now;
        }
        Ok(())
    }
}

/// # Errors
/// [`ProcessError::Moved`] if modules for which there are versions are no longer where they were, by `maps`
/// of the process. (To tracing versions nothing leads; who puts a thread into one makes sure of its module.)
pub(crate) fn refuse_moved(
    target: &Target,
    incoming: &[Incoming<'_>],
    maps: &[Mapping],
) -> Result<(), ProcessError> {
    if !incoming.is_empty() && target.text_moved {
        target.clone().with_text_of_its_file()?;
    }
    let is_led_to = |new: &&Incoming<'_>| new.kind != VersionKind::Burst;
    let wanted: Vec<usize> = incoming.iter().filter(is_led_to).map(|new| new.module).collect();
    let gone = target.moved_modules(maps);
    let modules: Vec<PathBuf> = gone.iter().map(|module| target.modules[*module].path.clone()).collect();
    match gone.iter().any(|module| wanted.contains(module)) {
        false => Ok(()),
        true => Err(ProcessError::Moved { pid: target.pid(), modules }),
    }
}

/// Forgets what the journal lists where neither the file's bytes nor a redirect of ours stand any more
/// because the module is no longer there: there is nothing mapped, or no code of a file, or exactly what
/// another file has there.
pub(crate) fn forget_gone(attached: &mut AttachedProcess) -> Result<(), ProcessError> {
    let pid = attached.target.pid();
    if std::mem::replace(&mut attached.compared, true) || attached.journal.patches.is_empty() {
        return Ok(());
    }
    let odd = odd_places(&attached.journal, &Memory::open_read_only(pid)?);
    if odd.is_empty() {
        return Ok(());
    }
    let (now, maps) = (Target::open_even_moved(pid, &mut ImageCache::default())?, procfs::maps(pid)?);
    let is_gone = |p: &JournalPatch| {
        let at = Avma::new(p.at);
        odd.get(&at).is_some_and(|found| holds_nothing_of_ours(&now, &maps, at, found.as_deref()))
    };
    attached.journal.patches.retain(|p| !is_gone(p));
    Ok(())
}

/// The places of the journal that hold neither the file's bytes nor a redirect, with what they hold, if they
/// can be read.
fn odd_places(journal: &Journal, memory: &Memory) -> BTreeMap<Avma, Option<Vec<u8>>> {
    let places: Vec<(Avma, usize)> = journal.patches.iter().map(|p| (Avma::new(p.at), LEN)).collect();
    let is_known = |patch: &JournalPatch, found: &[u8]| match Patch::beginning_of(found) {
        Some(found) => found == patch.original || leads_into_version(journal, Avma::new(patch.at), found),
        None => false,
    };
    let both = journal.patches.iter().zip(memory.read_many(&places));
    let odd = both.filter(|(patch, found)| !found.as_deref().is_some_and(|found| is_known(patch, found)));
    odd.map(|(patch, found)| (Avma::new(patch.at), found)).collect()
}

/// Whether what was `found` at `at` is not code that somebody has changed.
fn holds_nothing_of_ours(now: &Target, maps: &[Mapping], at: Avma, found: Option<&[u8]>) -> bool {
    let is_code = |m: &Mapping| m.range.contains(at) && m.permissions.execute && m.inode != 0;
    let of_file = || {
        let module = &now.modules[now.module_at(at)?];
        module.image.read(module.bias.to_stated(at), LEN)
    };
    !maps.iter().any(is_code) || found.is_some() && of_file() == found
}
