//! Crates of `Cargo.lock` with known faults, by the advisory database of RustSec.
//!
//! `cargo audit` and `cargo deny` know that too, but CI would have to build one, with hundreds of crates.
//! What is needed of them is little: an advisory is a file with a table of the versions that are right.
//! **Limits**: whether the workspace calls the functions that an advisory names is not looked at, and crates
//! that are withdrawn (yanked) without an advisory are not noticed.

use semver::{Version, VersionReq};
use std::{fs, io, path::Path};

/// Advisories that apply to a crate of `Cargo.lock` and are lived with, with the reason.
const ACCEPTED: [(&str, &str); 0] = [];

/// A crate of the lock file that came from a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locked {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: Version,
}

/// What is known of a crate.
#[derive(Clone, Debug, PartialEq)]
pub struct Advisory {
    /// Its number: `RUSTSEC-2026-0097`.
    pub id: String,
    /// What is wrong, in one line.
    pub title: String,
    /// Versions that have it no more, or never had it.
    right: Vec<VersionReq>,
}

impl Advisory {
    /// From the text of its file; `None` if it was withdrawn.
    ///
    /// # Errors
    /// If that is no advisory, in words.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        let parts = text.strip_prefix("```toml\n").and_then(|rest| rest.split_once("\n```"));
        let (table, words) = parts.ok_or("it does not begin with a table in ```toml")?;
        let table: toml::Table = table.parse().map_err(|error| format!("its table: {error}"))?;
        let about = table.get("advisory").and_then(toml::Value::as_table).ok_or("it has no [advisory]")?;
        if about.contains_key("withdrawn") {
            return Ok(None);
        }
        let id = about.get("id").and_then(toml::Value::as_str).ok_or("it has no id")?.to_owned();
        let title = words.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default().to_owned();
        let versions = table.get("versions").and_then(toml::Value::as_table).ok_or("it has no [versions]")?;
        let lists = ["patched", "unaffected"].map(|key| requirements(versions, key));
        let [mut right, unaffected] = lists;
        right.as_mut().map_err(|error| error.clone())?.extend(unaffected?);
        Ok(Some(Self { id, title, right: right? }))
    }

    /// Whether a version has what this says. Versions before a release (`1.0.0-rc.1`) count as such that have
    /// it, unless a requirement names one.
    pub fn applies_to(&self, version: &Version) -> bool {
        !self.right.iter().any(|right| right.matches(version))
    }
}

/// A list of requirements; none if there is none of that name.
fn requirements(versions: &toml::Table, key: &str) -> Result<Vec<VersionReq>, String> {
    let list = versions.get(key).and_then(toml::Value::as_array).into_iter().flatten();
    let texts = list.map(|one| one.as_str().ok_or_else(|| format!("{key} is no list of texts")));
    texts.map(|text| VersionReq::parse(text?).map_err(|error| format!("{key}: {error}"))).collect()
}

/// The crates of a lock file that come from elsewhere.
///
/// # Errors
/// If it is none, in words.
pub fn locked(text: &str) -> Result<Vec<Locked>, String> {
    let lock: toml::Table = text.parse().map_err(|error| format!("Cargo.lock: {error}"))?;
    let packages = lock.get("package").and_then(toml::Value::as_array).ok_or("Cargo.lock has no packages")?;
    let foreign = packages.iter().filter(|package| package.get("source").is_some());
    let one = |package: &toml::Value| {
        let text = |key| package.get(key).and_then(toml::Value::as_str).ok_or("a package without a name");
        let version = Version::parse(text("version")?).map_err(|error| format!("Cargo.lock: {error}"))?;
        Ok(Locked { name: text("name")?.to_owned(), version })
    };
    foreign.map(one).collect()
}

/// What an audit has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Crates that were looked up.
    pub crates: usize,
    /// Advisories on some version of them.
    pub advisories: usize,
    /// What applies and is not accepted, a line each.
    pub findings: Vec<String>,
}

/// Looks all `crates` up in the database in the folder `database`.
///
/// # Errors
/// If that is no database, or an advisory on one of the crates cannot be understood, in words.
pub fn audit(crates: &[Locked], database: &Path) -> Result<Audit, String> {
    let all = database.join("crates");
    if !all.is_dir() {
        return Err(format!(
            "{} is no advisory database: it has no folder `crates`; name a copy of github.com/rustsec/advisory-db",
            database.display()
        ));
    }
    let mut found = Audit { crates: crates.len(), ..Audit::default() };
    for one in crates {
        for advisory in advisories(&all.join(&one.name))? {
            found.advisories += 1;
            let accepted = ACCEPTED.iter().any(|(id, _)| *id == advisory.id);
            if !accepted && advisory.applies_to(&one.version) {
                let Advisory { id, title, .. } = &advisory;
                found.findings.push(format!(
                    "{} {}: {id}: {title}; update it, or add it to ACCEPTED with the reason",
                    one.name, one.version
                ));
            }
        }
    }
    Ok(found)
}

/// The advisories in a crate's folder, in the order of their names; none if there is no such folder.
fn advisories(folder: &Path) -> Result<Vec<Advisory>, String> {
    let said = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| said(folder, &error))?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    let mut paths = paths.map_err(|error| said(folder, &error))?;
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "md"));
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let text = fs::read_to_string(path).map_err(|error| said(path, &error))?;
        Advisory::parse(&text).map_err(|error| said(path, &error))
    };
    paths.iter().filter_map(|path| read(path).transpose()).collect()
}
