//! The rule that a file imports from the module that defines what it needs.
//!
//! What a crate's root exports is for those outside. A file of the crate that takes it from there hides from
//! its readers, and from the rule about circles, which other file it needs.

use crate::{Finding, Tree, code_only, heads_behind};
use std::collections::{BTreeMap, BTreeSet};

/// Exported name to where the root takes it from, without `crate::`.
type Exports = BTreeMap<String, String>;

/// No file of a crate names what another one defines by the root's export of it.
pub fn defining_modules(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (folder, root) in roots(tree) {
        let exports = exports(tree, folder, &root);
        let files = tree.rust().filter(|file| file.path.starts_with(folder) && !is_root(folder, &file.path));
        for file in files {
            let code = code_only(&file.text);
            for (at, name) in heads_behind("crate::", &code) {
                let Some(path) = exports.get(name).filter(|_| !code[..at].ends_with("$crate::")) else {
                    continue;
                };
                let line = code[..at].matches('\n').count() + 1;
                let what = format!("crate::{name} is the root's export for others: name crate::{path}");
                findings.push(Finding { path: file.path.clone(), line, what });
            }
        }
    }
    findings
}

/// The folders with a crate's sources, and the code of its root.
fn roots(tree: &Tree) -> Vec<(&str, String)> {
    let all = tree.rust().filter(|file| file.is_product());
    all.filter_map(|file| {
        let folder = file.path.strip_suffix("lib.rs").or(file.path.strip_suffix("main.rs"))?;
        folder.ends_with("/src/").then(|| (folder, code_only(&file.text)))
    })
    .collect()
}

fn is_root(folder: &str, path: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|name| ["lib.rs", "main.rs"].contains(&name))
}

/// What the root in `folder` takes from its modules. A name that is also one of a module, or of something
/// that it defines itself, is none: `crate::name` may mean that.
fn exports(tree: &Tree, folder: &str, root: &str) -> Exports {
    let modules: BTreeSet<&str> = declared(root, &["mod"]).collect();
    let own: BTreeSet<&str> = declared(root, ITEMS).chain(modules.iter().copied()).collect();
    let mut exports = Exports::new();
    for path in imports(root).filter(|path| modules.contains(first(path))) {
        match path.strip_suffix("::*") {
            Some(module) => exports.extend(items_of(tree, folder, module)),
            None => exports.extend(last(&path).map(|name| (name.to_owned(), path.clone()))),
        }
    }
    exports.retain(|name, _| !own.contains(name.as_str()));
    exports
}

/// The words that stand in front of the name of an item.
const ITEMS: &[&str] = &["struct", "enum", "fn", "trait", "type", "const", "static"];

/// What a module defines for others, or takes from others for them, by its file.
fn items_of(tree: &Tree, folder: &str, module: &str) -> Exports {
    let path = format!("{folder}{}", module.replace("::", "/"));
    let is_it =
        |file: &&crate::File| file.path == format!("{path}.rs") || file.path == format!("{path}/mod.rs");
    let Some(code) = tree.rust().find(is_it).map(|file| code_only(&file.text)) else { return Exports::new() };
    let public: String =
        code.lines().filter(|line| line.starts_with("pub")).map(|line| format!("{line}\n")).collect();
    let defined = declared(&public, ITEMS).map(|name| (name.to_owned(), format!("{module}::{name}")));
    defined.collect()
}

/// The names that are declared at the left margin of `code` behind one of `words`.
fn declared<'c>(code: &'c str, words: &'c [&str]) -> impl Iterator<Item = &'c str> {
    code.lines().filter(|line| line.starts_with(|c: char| c.is_alphabetic())).filter_map(|line| {
        let mut rest = line.split_whitespace().skip_while(|word| !words.contains(word));
        let name = rest.nth(1)?;
        Some(&name[..name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len())])
    })
}

/// The paths that a root imports, without `crate::` and `self::`; those under another name are left out.
fn imports(code: &str) -> impl Iterator<Item = String> {
    let uses = code.match_indices("use ").filter(|(at, _)| {
        let line = code[..*at].rsplit('\n').next().unwrap_or_default();
        line.is_empty() || line.starts_with("pub")
    });
    let trees = uses.filter_map(|(at, found)| code[at + found.len()..].split(';').next());
    trees.flat_map(|tree| leaves(&tree.split_whitespace().collect::<Vec<_>>().join(" "))).filter_map(|path| {
        let path = path.strip_prefix("crate::").or(path.strip_prefix("self::")).unwrap_or(&path);
        (!path.contains(' ')).then(|| path.to_owned())
    })
}

/// The paths of a tree of imports: of `a::{b, c::d}` they are `a::b` and `a::c::d`.
fn leaves(tree: &str) -> Vec<String> {
    let Some((prefix, group)) = tree.split_once('{') else { return vec![tree.trim().to_owned()] };
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    let mut depth = 0;
    let parts = group.split(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let parts = parts.map(str::trim).filter(|part| !part.is_empty());
    parts.flat_map(leaves).map(|path| format!("{}{path}", prefix.trim())).collect()
}

fn first(path: &str) -> &str {
    path.split("::").next().unwrap_or(path)
}

/// The last component of a path of several.
fn last(path: &str) -> Option<&str> {
    path.rsplit_once("::").map(|(_, name)| name).filter(|name| *name != "self")
}
