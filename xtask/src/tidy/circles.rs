//! The rule that the files of a crate use each other in one direction.
//!
//! A crate's modules are what stands directly in its `src` (or what else holds a `lib.rs` or `main.rs`): a
//! file, or a folder as a whole; and likewise what stands in such a folder. One uses another if its code
//! (unit tests aside) names it behind `crate::` (or the folder's path, or `super::`), directly or by
//! something that the root re-exports from it. What is reached by methods alone is not seen.

use crate::{Finding, Tree, code_only, heads_behind};
use std::collections::{BTreeMap, BTreeSet};

/// Module to the modules that it uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// The files of a crate do not use each other in a circle.
pub fn circles(tree: &Tree) -> Vec<Finding> {
    let crates: BTreeSet<&str> = tree.rust().filter(|f| f.is_product()).filter_map(|f| f.krate()).collect();
    let mut findings = Vec::new();
    for name in crates {
        let uses = uses_in(tree, name);
        if let Some(circle) = uses.keys().find_map(|module| circle_of(&uses, module)) {
            let what = format!(
                "a circle: {}; move what both sides need to where both reach it",
                circle.join(" -> ")
            );
            findings.push(Finding { path: format!("crates/{name}/src/{}", circle[0]), line: 0, what });
        }
    }
    findings
}

/// The modules of crate `name`, and what each uses. Those of a folder are named with it: `batch/job`.
fn uses_in(tree: &Tree, name: &str) -> Uses {
    let folder = format!("crates/{name}/");
    let files: Vec<(&str, String)> = tree
        .rust()
        .filter(|f| f.is_product() || f.path.starts_with(&format!("{folder}agent/")))
        .filter_map(|f| Some((f.path.strip_prefix(&folder)?, code_only(f.before_tests()))))
        .collect();
    let roots = files.iter().filter_map(|f| f.0.strip_suffix("/lib.rs").or(f.0.strip_suffix("/main.rs")));
    let mut uses = Uses::new();
    for root in roots {
        let below = format!("{root}/");
        let files: Vec<(&str, &str)> =
            files.iter().filter_map(|f| Some((f.0.strip_prefix(&below)?, &*f.1))).collect();
        let folders: BTreeSet<&str> =
            files.iter().map(|f| f.0.rsplit_once('/').map_or("", |(folder, _)| folder)).collect();
        for folder in folders {
            uses.extend(uses_in_folder(&files, folder));
        }
    }
    uses
}

/// What stands directly in `folder` (nothing: the root) of a crate's `files`, and what of it each uses.
fn uses_in_folder(files: &[(&str, &str)], folder: &str) -> Uses {
    let (above, below) = match folder {
        "" => ("crate::".to_owned(), String::new()),
        folder => (format!("crate::{}::", folder.replace('/', "::")), format!("{folder}/")),
    };
    let files: Vec<(&str, &str)> =
        files.iter().filter_map(|(path, code)| Some((path.strip_prefix(&below)?, *code))).collect();
    let is_root = |path: &str| matches!(path, "lib.rs" | "main.rs" | "mod.rs");
    let modules: BTreeSet<&str> = files.iter().filter(|f| !is_root(f.0)).map(|f| module_of(f.0)).collect();
    let mut exported = BTreeMap::new();
    for (_, code) in files.iter().filter(|f| is_root(f.0)) {
        exported.extend(re_exports(code, &modules));
    }
    let mut uses = Uses::new();
    for (path, code) in files.iter().filter(|f| !is_root(f.0)) {
        let module = module_of(path);
        // In a file of the folder itself, what is behind one `super` stands in the folder, too.
        let code = code.replace("super::super::", "");
        let beside = if path.contains('/') { Vec::new() } else { heads_behind("super::", &code) };
        let named = heads_behind(&above, &code).into_iter().chain(beside).map(|(_, name)| name);
        let used = named.filter_map(|n| modules.get(n).or_else(|| exported.get(n)).copied());
        let used = used.filter(|u| *u != module).map(|u| format!("{below}{u}"));
        uses.entry(format!("{below}{module}")).or_default().extend(used);
    }
    uses
}

/// Seen from above, `profiles/load.rs` and `profiles.rs` are module `profiles`.
fn module_of(path: &str) -> &str {
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

/// What a crate's root re-exports by name, with the module that it is from.
fn re_exports<'a>(code: &str, modules: &BTreeSet<&'a str>) -> BTreeMap<String, &'a str> {
    let mut out = BTreeMap::new();
    for (at, found) in code.match_indices("use ") {
        let path = code[at + found.len()..].split(';').next().unwrap_or_default();
        let path = path.trim_start_matches("crate::").trim_start_matches("self::");
        let Some((module, rest)) = path.split_once("::") else { continue };
        let Some(module) = modules.get(module) else { continue };
        let names = rest.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|n| !n.is_empty());
        out.extend(names.map(|n| (n.to_owned(), *module)));
    }
    out
}

/// The shortest circle through `module`, its name first and last.
fn circle_of(uses: &Uses, module: &str) -> Option<Vec<String>> {
    let ways = uses.get(module)?.iter().filter_map(|next| way(uses, next, module));
    let shortest = ways.min_by_key(Vec::len)?;
    Some(std::iter::once(module.to_owned()).chain(shortest).collect())
}

/// The shortest way along uses, both ends included.
fn way(uses: &Uses, from: &str, to: &str) -> Option<Vec<String>> {
    let mut ways = std::collections::VecDeque::from([vec![from.to_owned()]]);
    let mut seen = BTreeSet::from([from.to_owned()]);
    while let Some(way) = ways.pop_front() {
        let last = way.last()?;
        if last == to {
            return Some(way);
        }
        for next in uses.get(last).into_iter().flatten() {
            if seen.insert(next.clone()) {
                ways.push_back(way.iter().chain([next]).cloned().collect());
            }
        }
    }
    None
}
