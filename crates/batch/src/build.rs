//! Which module a file is: by its identity, and by what is loaded of it.
//!
//! **Problem.** A build id says from which link a file came. It stays when the file is changed afterwards: a
//! patched constant, an edited table. What was counted in the one, or made of it, is nothing for the other.
//!
//! **Idea.** Files of the cache are named by the identity, which copies of a program in other places share,
//! stripped ones too. Whatever is kept says of which content it is as well, and is used for that alone.

use restitch_apply_preload::content;
use restitch_image::Image;
use std::path::Path;

/// A build of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Build {
    /// Its build id, or the hash of its file; in hexadecimal digits.
    pub id: String,
    /// The hash of what is loaded of it.
    pub content: u64,
}

impl Build {
    /// That of a module.
    pub fn of(image: &Image) -> Self {
        Self { id: image.identity().to_string(), content: content(image) }
    }

    /// That of the module at `path`, if it is one.
    pub fn at(path: &Path) -> Option<Self> {
        let bytes = restitch_apply::read_regular(path).ok()?;
        Some(Self::of(&Image::parse(bytes).ok()?))
    }
}
