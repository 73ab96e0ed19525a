//! The modules that followed processes run: each is analysed once, and each counting version of it is made
//! once for each place, however many processes run it.

use restitch_address::Svma;
use restitch_apply_process::{AttachedProcess, Incoming, Module, ProcessError, RetargetedSlots, VersionKind};
use restitch_check::CheckedVersion;
use restitch_image::Image;
use restitch_pipeline::analysis::{Analyzed, analyze_image_among};
use restitch_pipeline::counting_version::{Counters, CountingDraft};
use restitch_pipeline::derivation;
use restitch_pipeline::make::Place;
use restitch_pipeline::neighbours::Neighbours;
use restitch_processes::SessionError;
use restitch_processes::refusal::left_alone;
use restitch_profile::{Derived, ModuleProfile, Vote, Weights, add_votes, derive};
use restitch_program::FuncId;
use restitch_report as report;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A module, its versions, and what was counted in them.
struct CountedImage {
    path: PathBuf,
    analyzed: Analyzed,
    draft: CountingDraft,
    missing: Vec<u32>,
    /// By number and place.
    versions: BTreeMap<(u32, Svma), CheckedVersion>,
    sums: Vec<u64>,
    votes: Vec<Vote>,
}

/// A counting version that is made for a process, to be installed in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    /// Index of the module in the process.
    module: usize,
    /// Index of the image.
    pub image: usize,
    /// Number of the version.
    pub number: u32,
    /// Where it begins.
    start: Svma,
}

/// A counting version in a process: the image, and the version's number.
pub(crate) type InForce = Vec<(usize, u32)>;

/// All modules seen so far.
#[derive(Default)]
pub(crate) struct CountedImages {
    images: Vec<CountedImage>,
    /// By build id, or by path where there is none, and content: the index, or that there is nothing to
    /// count.
    known: BTreeMap<Key, Option<usize>>,
    /// Images whose content was hashed, with that.
    contents: Vec<(Arc<Image>, u64)>,
    refused: Vec<String>,
}

/// What modules are told apart by: a build id stays when a file is changed.
type Key = (Vec<u8>, u64);

fn name_of(module: &Module) -> Vec<u8> {
    match module.image.build_id() {
        Some(id) => id.as_bytes().to_vec(),
        None => module.path.as_os_str().as_encoded_bytes().to_vec(),
    }
}

impl CountedImages {
    fn key_of(&mut self, module: &Module) -> Key {
        let image = &module.image;
        let content = match self.contents.iter().find(|(known, _)| Arc::ptr_eq(known, image)) {
            Some((_, content)) => *content,
            None => {
                let content = restitch_apply_preload::content(image);
                self.contents.push((image.clone(), content));
                content
            }
        };
        (name_of(module), content)
    }

    /// The versions for the process in `live`, reserved and made.
    ///
    /// A module of which none can be made (the checker refuses it, say) runs as it is in this and all other
    /// processes: see [`Self::refused`].
    ///
    /// # Errors
    /// If there is no room for any.
    pub fn versions_for(&mut self, live: &AttachedProcess) -> Result<Vec<Ready>, SessionError> {
        let (mut found, mut taken, mut no_room) = (Vec::new(), Vec::new(), None);
        let modules = &live.target().modules;
        let neighbours = Neighbours::new(modules.iter().map(|module| module.image.clone()).collect());
        for (index, module) in modules.iter().enumerate() {
            let Some(image) = self.image_of(module, &neighbours) else { continue };
            let it = &self.images[image];
            let room = it.draft.room(&it.analyzed.program);
            let held = match live.reserve(index, room.whole(), &taken, &[], restitch_address::PAGE) {
                Err(error @ ProcessError::NoRoom { .. }) => {
                    no_room.get_or_insert(error);
                    continue;
                }
                held => held?,
            };
            taken.push((index, held));
            let ready = Ready { module: index, image, number: held.number, start: held.start };
            // Without a load bias: the same version serves every process.
            match self.make_version(image, room.at(held.number, held.start, None)) {
                Ok(()) => found.push(ready),
                Err(why) => {
                    let key = self.key_of(module);
                    self.known.insert(key, None);
                    self.refused.push(why.to_string());
                }
            }
        }
        match no_room {
            Some(error) if found.is_empty() => return Err(error.into()),
            Some(error) => self.note_no_room(&error),
            None => {}
        }
        Ok(found)
    }

    /// That there is no room near a module: the same of all processes, so it is said once.
    fn note_no_room(&mut self, error: &ProcessError) {
        let ProcessError::NoRoom { module, .. } = error else { return };
        let refused = format!("{} was not counted: there is no room within 2 GiB of it", module.display());
        if !self.refused.contains(&refused) {
            self.refused.push(refused);
        }
    }

    /// Why modules were left out.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// The versions that [`Self::versions_for`] has found, to be installed.
    pub fn incoming(&self, found: &[Ready]) -> Vec<Incoming<'_>> {
        let one = |ready: &Ready| {
            let version = self.images[ready.image].versions.get(&(ready.number, ready.start))?;
            Some(Incoming {
                module: ready.module,
                version,
                kind: VersionKind::Counting,
                retargeted_slots: RetargetedSlots::None,
            })
        };
        found.iter().filter_map(one).collect()
    }

    fn make_version(&mut self, image: usize, place: Place) -> Result<(), SessionError> {
        let it = &mut self.images[image];
        if it.versions.contains_key(&(place.number, place.start)) {
            return Ok(());
        }
        let version = it.draft.build(&it.path, &it.analyzed, place)?;
        it.missing.extend(version.counters.iter().flat_map(|c| &c.missing));
        it.missing.sort_unstable();
        it.missing.dedup();
        it.versions.insert((place.number, place.start), version);
        Ok(())
    }

    /// The image of a module, analysed if it is seen for the first time. `None` if nothing of it can be
    /// counted.
    fn image_of(&mut self, module: &Module, neighbours: &Neighbours) -> Option<usize> {
        if module.is_vdso() {
            return None;
        }
        let name = module.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with("ld-linux") || name.starts_with("ld-musl") {
            return None;
        }
        let key = self.key_of(module);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        if let Some(why) = left_alone(module) {
            self.refused.push(format!("{} ran uncounted: {why}", module.path.display()));
            self.known.insert(key, None);
            return None;
        }
        let analyzed = analyze_image_among(module.image.clone(), neighbours);
        let image = analyzed.ok().and_then(|analyzed| {
            let program = &analyzed.program;
            let functions: Vec<FuncId> = program.function_ids().collect();
            let draft = CountingDraft::of(program, &functions, Counters::wide(Weights::Static, true));
            if draft.counts_nothing() {
                return None;
            }
            let sums = vec![0; draft.plan.counted.len()];
            let path = module.path.clone();
            let (missing, versions, votes) = (Vec::new(), BTreeMap::new(), Vec::new());
            self.images.push(CountedImage { path, analyzed, draft, missing, versions, sums, votes });
            Some(self.images.len() - 1)
        });
        self.known.insert(key, image);
        image
    }

    /// Adds what a process that has ended (or was left) has counted.
    pub fn collect(&mut self, live: &AttachedProcess, versions: &InForce) {
        for &(image, number) in versions {
            // Counters that cannot be read any more are lost; the profile is one of the others.
            let values = live.read_counters(number).unwrap_or_default();
            for (sum, value) in self.images[image].sums.iter_mut().zip(values) {
                *sum = sum.wrapping_add(value);
            }
            add_votes(&mut self.images[image].votes, &live.read_votes(number).unwrap_or_default());
        }
    }

    /// The profile of each module that ran, with its report, the one that ran most first.
    pub fn profiles(&self) -> Vec<(ModuleProfile, report::Module)> {
        let mut out = Vec::new();
        for it in self.images.iter().filter(|it| it.sums.iter().any(|n| *n > 0)) {
            let program = &it.analyzed.program;
            let known = it.draft.plan.known_without(program, &it.sums, &it.missing);
            let mut derived: Derived = derive(program, &known);
            derived.profile.adopt_votes(program, &it.draft.votes, &it.votes);
            let path = it.path.to_string_lossy();
            let mut entry = it.analyzed.report(&path);
            entry.counting = Some(derivation::summary(program, &it.draft.plan, it.missing.len(), &derived));
            let id = crate::instrument::build_id(&it.analyzed);
            let total = derived.profile.blocks.iter().copied().fold(0, u64::saturating_add);
            out.push((total, ModuleProfile::of(program, &derived.profile, &id, &path), entry));
        }
        out.sort_by_key(|o| std::cmp::Reverse(o.0));
        out.into_iter().map(|(_, profile, entry)| (profile, entry)).collect()
    }
}
