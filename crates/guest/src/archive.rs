//! Debian's archive by apt, with sources, lists and state of its own: the machine's packages stay as they
//! are.
//!
//! Where the archive is, the machine's own sources say; the suites are replaced by those of
//! [`crate::packages::SUITES`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::cache::Cache;
use crate::command::{finish, pipe, run, tail};
use crate::error::Error;
use crate::packages::{Family, NEWER, Pinned, SUITES, Suite};

/// Where the keys are that Debian's archives are signed with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The environment variables that name archives where the machine's sources do not.
const MIRROR: &str = "RESTITCH_GUEST_MIRROR";
const SECURITY_MIRROR: &str = "RESTITCH_GUEST_SECURITY_MIRROR";

/// apt with a configuration of its own.
pub(crate) struct Archive {
    folder: PathBuf,
}

/// The addresses of the archive and of its security updates.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mirrors {
    main: Option<String>,
    security: Option<String>,
}

impl Archive {
    /// Writes the configuration into the cache.
    pub(crate) fn open(cache: &Cache) -> Result<Self> {
        let folder = cache.root().join("apt");
        let archive = Self { folder };
        for name in ["lists/partial", "archives/partial", "none"] {
            let path = archive.folder.join(name);
            fs::create_dir_all(&path).map_err(Error::file("make the folder", &path))?;
        }
        archive.write("installed", "")?;
        archive.write("sources.list", &sources(&mirrors()?)?)?;
        archive.write("preferences", &preferences())?;
        archive.write("apt.conf", &archive.configuration())?;
        Ok(archive)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(Error::file("write", &path))
    }

    fn configuration(&self) -> String {
        let folder = self.folder.display();
        let lines = [
            format!("Dir::Etc::sourcelist \"{folder}/sources.list\""),
            format!("Dir::Etc::sourceparts \"{folder}/none\""),
            format!("Dir::Etc::preferences \"{folder}/preferences\""),
            format!("Dir::Etc::preferencesparts \"{folder}/none\""),
            format!("Dir::State \"{folder}\""),
            format!("Dir::State::lists \"{folder}/lists\""),
            // Nothing counts as installed, so that the closure of a package is complete.
            format!("Dir::State::status \"{folder}/installed\""),
            format!("Dir::Cache \"{folder}\""),
            format!("Dir::Cache::archives \"{folder}/archives\""),
            "APT::Architecture \"amd64\"".into(),
            "APT::Architectures { \"amd64\"; }".into(),
            "APT::Install-Recommends \"0\"".into(),
            "APT::Sandbox::User \"\"".into(),
            "Acquire::Languages \"none\"".into(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\"".into(),
            "Acquire::Retries \"3\"".into(),
        ];
        lines.map(|line| line + ";\n").concat()
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.folder.join("apt.conf")).env("LC_ALL", "C.UTF-8");
        command
    }

    fn update(&self) -> Result<()> {
        let output = finish(self.apt("apt-get").args(["-q", "-o", "APT::Update::Error-Mode=any", "update"]))?;
        if output.status.success() {
            return Ok(());
        }
        let said = tail(&String::from_utf8_lossy(&output.stderr), 600);
        Err(Error::missing(
            format!("Debian's lists of packages cannot be had; apt says: {said}"),
            format!("see that apt reaches Debian's archives, or set {MIRROR} and {SECURITY_MIRROR}"),
        ))
    }

    /// Does something that needs lists of packages; if it fails with the present ones, with new ones.
    fn with_lists<T>(&self, mut act: impl FnMut() -> Result<T>) -> Result<T> {
        let lists = self.folder.join("lists");
        let has_lists = fs::read_dir(&lists)
            .map_err(Error::file("read the folder", &lists))?
            .filter_map(|entry| entry.ok())
            .any(|entry| entry.file_name().to_string_lossy().contains("_Packages"));
        if has_lists && let Ok(done) = act() {
            return Ok(done);
        }
        self.update()?;
        act()
    }

    /// Fetches the packages of those names, each `NAME` or `NAME=VERSION`, and unpacks them below `to`.
    pub(crate) fn unpack(&self, packages: &[String], to: &Path) -> Result<()> {
        self.with_lists(|| {
            let fetched = self.fresh_folder()?;
            let mut command = self.apt("apt-get");
            let output = finish(command.args(["-q", "download"]).args(packages).current_dir(&fetched))?;
            self.check(&output, packages)?;
            unpack_all(&fetched, to)
        })
    }

    /// The same with everything that they depend on, taken from that suite first.
    pub(crate) fn unpack_closure(&self, packages: &[String], suite: &str, to: &Path) -> Result<()> {
        self.with_lists(|| {
            let fetched = self.fresh_folder()?;
            let mut command = self.apt("apt-get");
            command.args(["-q", "-y", "--download-only", "--no-install-recommends", "-t", suite]);
            command.arg("-o").arg(format!("Dir::Cache::archives={}", fetched.display()));
            let output = finish(command.arg("install").args(packages))?;
            self.check(&output, packages)?;
            unpack_all(&fetched, to)
        })
    }

    /// The emulator, or another package with its dependencies; the newest of the suite if the version is
    /// gone.
    pub(crate) fn unpack_pinned(&self, pinned: &Pinned, to: &Path) -> Result<()> {
        let exact = [format!("{}={}", pinned.name, pinned.version)];
        match self.unpack_closure(&exact, pinned.suite, to) {
            Err(error) if error.is_missing() => {
                self.unpack_closure(&[pinned.name.into()], pinned.suite, to).map_err(|_| error)
            }
            done => done,
        }
    }

    /// The newest release for which the archive has a package `begin` + release.
    pub(crate) fn newest_release(&self, begin: &str, family: Family) -> Result<Option<String>> {
        let prefix = format!("{begin}{}", family.begin);
        let text = self.with_lists(|| run(self.apt("apt-cache").args(["pkgnames", &prefix])))?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let releases = text.lines().filter_map(|name| name.strip_prefix(begin));
        let releases = releases.filter(|release| release.ends_with(family.end)).map(String::from);
        Ok(releases.max_by_key(|release| numbers(release)))
    }

    fn check(&self, output: &std::process::Output, packages: &[String]) -> Result<()> {
        if output.status.success() {
            return Ok(());
        }
        let said = tail(&String::from_utf8_lossy(&output.stderr), 600);
        Err(Error::missing(
            format!("apt cannot fetch {} ({said})", packages.join(" ")),
            "see that apt reaches Debian's archives, and that they still have these versions",
        ))
    }

    fn fresh_folder(&self) -> Result<PathBuf> {
        let fetched = self.folder.join("fetched");
        if fetched.exists() {
            fs::remove_dir_all(&fetched).map_err(Error::file("remove", &fetched))?;
        }
        let partial = fetched.join("partial");
        fs::create_dir_all(&partial).map_err(Error::file("make the folder", &partial))?;
        Ok(fetched)
    }
}

/// Unpacks all packages in `fetched` below `to`, and removes them. Links between folders that are there
/// already are kept, as the distribution has them at its top.
fn unpack_all(fetched: &Path, to: &Path) -> Result<()> {
    let mut packages: Vec<PathBuf> = fs::read_dir(fetched)
        .map_err(Error::file("read the folder", fetched))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .collect();
    packages.sort();
    for package in packages {
        let mut tar = Command::new("tar");
        tar.args(["-x", "--keep-directory-symlink", "--no-same-owner", "-C"]).arg(to);
        pipe(Command::new("dpkg-deb").arg("--fsys-tarfile").arg(&package), &mut tar)?;
    }
    fs::remove_dir_all(fetched).map_err(Error::file("remove", fetched))
}

/// The numbers in a release, for comparison.
fn numbers(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// The machine's archives of Debian.
fn mirrors() -> Result<Mirrors> {
    let format = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)";
    let text = run(Command::new("apt-get").args(["indextargets", "--format", format]))?;
    let mut found = mirrors_in(&String::from_utf8_lossy(&text));
    let named = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    found.main = named(MIRROR).or(found.main);
    found.security = named(SECURITY_MIRROR).or(found.security);
    Ok(found)
}

/// The same from lines of address, suite and component.
fn mirrors_in(text: &str) -> Mirrors {
    let mut found = Mirrors::default();
    for line in text.lines() {
        let mut parts = line.split('|');
        let (Some(address), Some(suite), Some("main")) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        match suite {
            "bookworm" | "trixie" | "forky" | "sid" | "oldstable" | "stable" | "testing" | "unstable" => {
                found.main.get_or_insert_with(|| address.into());
            }
            _ if suite.ends_with("-security") && address.contains("debian-security") => {
                found.security.get_or_insert_with(|| address.into());
            }
            _ => {}
        }
    }
    found
}

/// Which suites come last, unless they are asked for by name: as for backports.
fn preferences() -> String {
    format!("Package: *\nPin: release n={NEWER}\nPin-Priority: 100\n")
}

/// The sources list.
fn sources(mirrors: &Mirrors) -> Result<String> {
    let Some(main) = &mirrors.main else {
        return Err(Error::missing(
            "apt's sources name no archive of Debian",
            format!(
                "use a machine with Debian, or set {MIRROR} and {SECURITY_MIRROR} to addresses of archives"
            ),
        ));
    };
    if !Path::new(KEYRING).exists() {
        return Err(Error::missing(format!("{KEYRING} is not there"), "install debian-archive-keyring"));
    }
    let line = |suite: &Suite| {
        let address = if suite.security { mirrors.security.as_ref()? } else { main };
        Some(format!("deb [signed-by={KEYRING}] {address} {} main\n", suite.name))
    };
    Ok(SUITES.iter().filter_map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_those_of_the_machine_s_own_sources() {
        let text = "http://a.example/debian/|bookworm|main\nhttp://a.example/debian/|bookworm-updates|main\n\
                    http://b.example/debian-security/|bookworm-security|main\nhttps://c.example/|nodistro|main\n";
        let found = mirrors_in(text);
        assert_eq!(found.main.as_deref(), Some("http://a.example/debian/"));
        assert_eq!(found.security.as_deref(), Some("http://b.example/debian-security/"));
    }

    #[test]
    fn another_distribution_is_no_archive_of_debian() {
        let found = mirrors_in("http://archive.example/ubuntu/|noble|main\n");
        assert_eq!(found, Mirrors::default());
        let error = sources(&found).unwrap_err();
        assert!(error.is_missing() && error.to_string().contains(MIRROR), "{error}");
    }

    #[test]
    fn releases_are_compared_by_their_numbers() {
        assert!(numbers("6.1.0-56-cloud-amd64") > numbers("6.1.0-9-cloud-amd64"));
        assert!(numbers("6.12.107+deb12-cloud-amd64") > numbers("6.12.95+deb12-cloud-amd64"));
    }
}
