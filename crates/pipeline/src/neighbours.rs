//! What the modules of a process have to know of each other: which functions of others look at who called
//! them.
//!
//! Problem: a call to such a function has to push the original return address, and a wrapper in another
//! library (`jmp dlsym`), or one that says who called it, is not known by its name. Idea: of each module,
//! those functions are looked at whose names others refer to, and what they jump to; what is found in one may
//! make such code of what jumps there in another.
//!
//! Limits: functions of one name count as one, whoever defines it. What is called through a pointer, and
//! modules that are loaded later, are not seen.

use crate::parallel;
use restitch_cfi::UnwindInfo;
use restitch_image::Image;
use restitch_program::exports_that_look;
use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, OnceLock};

/// The modules of a process.
#[derive(Debug, Clone, Default)]
pub struct Neighbours {
    images: Vec<Arc<Image>>,
    looking: Arc<OnceLock<BTreeSet<String>>>,
}

impl Neighbours {
    /// These modules. They are looked at when it is first asked for.
    pub fn new(images: Vec<Arc<Image>>) -> Self {
        Self { images, looking: Arc::default() }
    }

    /// Whether it is these modules, in this order.
    pub fn are(&self, images: &[Arc<Image>]) -> bool {
        let pairs = self.images.iter().zip(images);
        self.images.len() == images.len() && pairs.into_iter().all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// Names of functions in them that look at their return addresses, and that others refer to.
    pub fn looking(&self) -> &BTreeSet<String> {
        self.looking.get_or_init(|| found_in(&self.images))
    }
}

/// Names that a module has from others.
fn imports(image: &Image) -> HashSet<&str> {
    let undefined = image.names().filter(|name| !name.is_defined);
    undefined.filter_map(|name| str::from_utf8(name.text).ok()).map(without_version).collect()
}

fn without_version(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}

fn found_in(images: &[Arc<Image>]) -> BTreeSet<String> {
    let imports: Vec<HashSet<&str>> = images.iter().map(|image| imports(image)).collect();
    let wanted: HashSet<&str> = imports.iter().flatten().copied().collect();
    let mut found = BTreeSet::new();
    let mut open: Vec<&Image> = images.iter().map(|image| &**image).collect();
    while !open.is_empty() {
        let look = |image| of_module(image, &wanted, &found);
        let seen: BTreeSet<String> = parallel::map(open, look).into_iter().flatten().collect();
        let new: Vec<&String> = seen.difference(&found).collect();
        let refers = |names: &HashSet<&str>| new.iter().any(|name| names.contains(name.as_str()));
        let again = images.iter().zip(&imports).filter(|(_, names)| refers(names));
        open = again.map(|(image, _)| &**image).collect();
        found.extend(seen);
    }
    found
}

/// Those that `image` defines. What cannot be read has none: nothing of it is copied either.
fn of_module(image: &Image, wanted: &HashSet<&str>, found: &BTreeSet<String>) -> BTreeSet<String> {
    let unwind = image
        .eh_frame()
        .and_then(|at| UnwindInfo::parse(image.read(at.start, at.len() as usize)?, at.start).ok());
    unwind.map(|unwind| exports_that_look(image, &unwind, wanted, found)).unwrap_or_default()
}
