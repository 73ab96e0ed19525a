//! What the modules of a process have to know of each other: which functions of others look at who called
//! them.
//!
//! Problem: a call to such a function has to push the original return address, and a wrapper in another
//! library (`jmp dlsym`), or one that says who called it, is not known by its name. Idea: of the other
//! modules, those functions are looked at whose names a module refers to, and what they jump to, in the same
//! module or in another one; what is found in one may make such code of what jumps there.
//!
//! Limits: functions of one name count as one, whoever defines it. What is called through a pointer, and
//! modules that are loaded later, are not seen.

use crate::parallel;
use restitch_cfi::UnwindInfo;
use restitch_image::Image;
use restitch_program::{Exports, exports_that_look};
use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, OnceLock};

/// The modules of a process.
#[derive(Debug, Clone, Default)]
pub struct Neighbours {
    modules: Arc<[Neighbour]>,
}

/// One of them.
#[derive(Debug)]
struct Neighbour {
    image: Arc<Image>,
    /// Its functions, read when they are asked for, once. If they cannot be, none of it is copied either.
    functions: OnceLock<Option<UnwindInfo>>,
}

impl Neighbour {
    /// What is found in it.
    fn look(&self, wanted: &HashSet<String>, found: &BTreeSet<String>) -> Exports {
        let image = &self.image;
        let read = || {
            let at = image.eh_frame()?;
            UnwindInfo::parse(image.read(at.start, at.len() as usize)?, at.start).ok()
        };
        let functions = self.functions.get_or_init(read).as_ref();
        functions.map(|unwind| exports_that_look(image, unwind, wanted, found)).unwrap_or_default()
    }
}

impl Neighbours {
    /// These modules. They are looked at when it is asked for.
    pub fn new(images: Vec<Arc<Image>>) -> Self {
        let module = |image| Neighbour { image, functions: OnceLock::new() };
        Self { modules: images.into_iter().map(module).collect() }
    }

    /// Names of functions of these modules that look at their return addresses, among those that `image`
    /// refers to and those that they jump on to.
    pub fn looking_of(&self, image: &Image) -> BTreeSet<String> {
        let (mut wanted, mut found) = (HashSet::new(), BTreeSet::new());
        let mut asked: HashSet<String> = names(image, false).map(str::to_owned).collect();
        let mut news = HashSet::new();
        while !asked.is_empty() || !news.is_empty() {
            wanted.extend(asked.iter().cloned());
            let concerns = |image: &Image| has_any(image, true, &asked) || has_any(image, false, &news);
            let open: Vec<&Neighbour> = self.modules.iter().filter(|m| concerns(&m.image)).collect();
            let seen = parallel::map(open, |module| module.look(&wanted, &found));
            let (looking, onward): (Vec<_>, Vec<_>) = seen.into_iter().map(|e| (e.looking, e.onward)).unzip();
            asked = onward.into_iter().flatten().filter(|name| !wanted.contains(name)).collect();
            news = looking.into_iter().flatten().filter(|name| !found.contains(name)).collect();
            found.extend(news.iter().cloned());
        }
        found
    }
}

/// Names that a module defines, or that it has from others.
fn names(image: &Image, defined: bool) -> impl Iterator<Item = &str> {
    let names = image.names().filter(move |name| name.is_defined == defined);
    names.filter_map(|name| str::from_utf8(name.text).ok()).map(without_version)
}

/// Whether a module defines, or refers to, one of `wanted`.
fn has_any(image: &Image, defined: bool, wanted: &HashSet<String>) -> bool {
    !wanted.is_empty() && names(image, defined).any(|name| wanted.contains(name))
}

fn without_version(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}
