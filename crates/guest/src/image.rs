//! Root images: the distribution's programs with all that they depend on, in a file system.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::Result;
use crate::command::run;
use crate::error::Error;
use crate::lab::Lab;
use crate::packages::SUITES;

/// Changed when images are made in another way.
const RECIPE: &str = "1";
/// What scripts can count on in any image.
const BASE: [&str; 6] = ["base-files", "coreutils", "dash", "grep", "mawk", "sed"];
/// Links that the distribution has at its top; no package holds them.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];
/// Users of services, which packages make when they are installed; an image's are only unpacked.
const USERS: [&str; 6] = ["www-data", "postgres", "mysql", "redis", "memcache", "nobody"];
/// Identifiers of the file system, so that one content gives one image.
const UUID: &str = "8c8e7a52-0001-4000-8000-726573746974";
/// The time of the file system, in seconds since 1970.
const TIME: &str = "1767225600";
/// Room for what the guest writes, in MiB.
const ROOM: u64 = 512;

/// A root image (ext4) with these packages of the guests' distribution and their dependencies; made once for
/// each list of packages. Guests do not change it.
pub fn root_image(lab: &Lab, packages: &[&str]) -> Result<PathBuf> {
    let mut names: Vec<&str> = BASE.iter().chain(packages).copied().collect();
    names.sort_unstable();
    names.dedup();
    let suite = SUITES[0].name;
    let ingredients = format!("{RECIPE} {suite} {}", names.join(" "));
    let folder = lab.cache().entry(&format!("image-{}", short_hash(ingredients.as_bytes())), |to| {
        let tree = to.join("tree");
        prepare(&tree)?;
        let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
        lab.with_archive(|archive| archive.unpack_closure(&names, suite, &tree))?;
        add_users(&tree)?;
        make_image(&tree, &to.join("image"))?;
        let list = to.join("packages");
        fs::write(&list, &ingredients).map_err(Error::file("write", &list))?;
        fs::remove_dir_all(&tree).map_err(Error::file("remove", &tree))
    })?;
    Ok(folder.join("image"))
}

/// A name for a content, of 16 hexadecimal digits.
pub(crate) fn short_hash(content: &[u8]) -> String {
    Sha256::digest(content).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Makes the folders at the top of a distribution.
pub(crate) fn prepare(tree: &Path) -> Result<()> {
    for name in MERGED {
        let folder = tree.join("usr").join(name);
        fs::create_dir_all(&folder).map_err(Error::file("make the folder", &folder))?;
        let link = tree.join(name);
        symlink(Path::new("usr").join(name), &link).map_err(Error::file("make the link", &link))?;
    }
    Ok(())
}

/// Users and groups; each service's home is `/var/lib` with its name.
fn add_users(tree: &Path) -> Result<()> {
    let (mut users, mut groups) = (String::from("root:x:0:0::/:/bin/sh\n"), String::from("root:x:0:\n"));
    for (number, name) in (100..).zip(USERS) {
        users.push_str(&format!("{name}:x:{number}:{number}::/var/lib/{name}:/bin/sh\n"));
        groups.push_str(&format!("{name}:x:{number}:\n"));
    }
    for (name, text) in [("passwd", &users), ("group", &groups), ("hosts", &"127.0.0.1 localhost\n".into())] {
        let path = tree.join("etc").join(name);
        fs::create_dir_all(tree.join("etc")).map_err(Error::file("make the folder of", &path))?;
        fs::write(&path, text).map_err(Error::file("write", &path))?;
    }
    Ok(())
}

fn make_image(tree: &Path, image: &Path) -> Result<()> {
    let used = run(Command::new("du").args(["-sm", "--apparent-size"]).arg(tree))?;
    let used: u64 =
        String::from_utf8_lossy(&used).split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let size = used + used / 2 + ROOM;
    let path = std::env::var("PATH").unwrap_or_default();
    let options = format!("hash_seed={UUID},root_owner=0:0");
    run(Command::new("mke2fs")
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env("E2FSPROGS_FAKE_TIME", TIME)
        .args(["-q", "-F", "-t", "ext4", "-U", UUID, "-E", &options, "-d"])
        .arg(tree)
        .arg(image)
        .arg(format!("{size}M")))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_content_has_one_name() {
        assert_eq!(short_hash(b"a"), "ca978112ca1bbdca");
        assert_ne!(short_hash(b"a"), short_hash(b"b"));
    }
}
