//! The repository's text files, in memory.

use std::{fmt, fs, io, path::Path};

/// Folders that hold what is built or measured, not what is written.
const GENERATED: [&str; 3] = ["target", "out", ".git"];

/// What stands in front of a file's unit tests.
const MARK: &str = "\n#[cfg(test)]\n";

/// One text file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path from the repository's root, with `/` between components.
    pub path: String,
    /// What it holds.
    pub text: String,
}

impl File {
    /// The crate that the file belongs to, by its folder: `crates/emit/src/map.rs` gives `emit`.
    pub fn krate(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    /// Whether this is Rust source that ends up in a crate's library or program.
    pub fn is_product(&self) -> bool {
        self.path.starts_with("crates/")
            && self.path.ends_with(".rs")
            && self.path.split('/').nth(2) == Some("src")
    }

    /// The part before the file's unit tests; nothing of a file that holds tests only.
    pub fn before_tests(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        if name == "tests.rs" {
            return "";
        }
        let begins = |text: &str| {
            let text = text.strip_prefix("pub(super) ").or(text.strip_prefix("pub(crate) ")).unwrap_or(text);
            text.starts_with("mod ")
        };
        let mut marks = self.text.match_indices(MARK).filter(|(at, _)| begins(&self.text[at + MARK.len()..]));
        match marks.next().map(|(at, _)| (at, &self.text[at..])) {
            // `mod tests;` declares a file; what follows it is still part of the product.
            Some((at, rest)) if !rest.lines().nth(2).is_some_and(|line| line.ends_with(';')) => {
                &self.text[..at + 1]
            }
            _ => &self.text,
        }
    }
}

/// The folder of this repository, which holds `xtask`.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub path: String,
    /// The line, counted from 1; 0 when the whole file is meant.
    pub line: usize,
    /// What is wrong, and what to do.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// All text files of a repository, and the names of the others.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Text files by path.
    pub files: Vec<File>,
    /// Every path, folders and files that are not text included.
    pub paths: std::collections::BTreeSet<String>,
}

impl Tree {
    /// Reads the repository that this crate was built from.
    pub fn of_this_repository() -> io::Result<Self> {
        let mut tree = Self::default();
        tree.read(root(), "")?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    /// A tree of files given as path and text, for tests of rules.
    pub fn of_files(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for &(path, text) in files {
            tree.files.push(File { path: path.into(), text: text.into() });
            for (at, _) in path.match_indices('/').chain([(path.len(), "")]) {
                tree.paths.insert(path[..at].into());
            }
        }
        tree
    }

    fn read(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if GENERATED.contains(&name.as_str()) {
                continue;
            }
            let path = format!("{prefix}{name}");
            if entry.file_type()?.is_dir() {
                self.read(&entry.path(), &format!("{path}/"))?;
            } else if let Ok(text) = fs::read_to_string(entry.path()) {
                self.files.push(File { path: path.clone(), text });
            }
            self.paths.insert(path);
        }
        Ok(())
    }

    /// The Rust sources of crates, build scripts, tests and examples.
    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }
}
