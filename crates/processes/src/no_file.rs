//! Processes that work, but in no code of a file: a just-in-time compiler has made it, or a translator under
//! which the program runs (qemu-user, box64). The text that such a process has mapped is read, and
//! hardly ever executed, so there is nothing in it to be recorded or moved. That is told by where the process
//! was seen, not by names.

use crate::error::SessionError;
use crate::sampling::IpSamples;
use restitch_address::Avma;
use restitch_procfs::{Mapping, MappingName};

/// Fewer samples or records do not tell where a process works.
const ENOUGH: u64 = 3;

/// The error for `who` (a process, a command), in which nothing is worth recording, if it was seen `outside`
/// of all files in more than half of all cases.
pub fn in_no_file(who: &str, outside: u64, all: u64) -> Option<SessionError> {
    let is_most = all >= ENOUGH && 2 * outside > all;
    is_most.then(|| {
        SessionError::nothing_to_do(format!(
            "{who} works in code that is in no file ({outside} of the {all} times that it was looked at): that is made at \
             run time, by a just-in-time compiler or by a translator that the program runs under, as qemu-user; \
             there is nothing to record or to move in its files; run the program without the translator"
        ))
    })
}

/// The same for a process that was seen at `places`, each so often, of `all` times. Only what lies in memory
/// of no file by now counts: a library that was opened or closed meanwhile is in none of the known modules
/// either.
pub fn met_in_no_file(
    pid: i32,
    places: impl IntoIterator<Item = (Avma, u64)>,
    all: u64,
) -> Option<SessionError> {
    let maps = restitch_procfs::maps(pid).ok()?;
    let holds = |at: Avma| maps.iter().any(|mapping| mapping.range.contains(at) && is_made(mapping));
    let outside = places.into_iter().filter(|(at, _)| holds(*at)).map(|(_, n)| n).sum();
    in_no_file(&format!("process {pid}"), outside, all)
}

/// The same for one that was sampled.
pub fn samples_in_no_file(pid: i32, samples: &IpSamples) -> Option<SessionError> {
    met_in_no_file(pid, samples.outside.iter().map(|(at, n)| (*at, *n)), samples.total)
}

/// Whether it may hold code that is of no file, and not the kernel's (`[vdso]`, `[vsyscall]`).
fn is_made(mapping: &Mapping) -> bool {
    let of_no_file = match &mapping.name {
        MappingName::Anonymous => true,
        MappingName::Special(name) => !name.starts_with("[v"),
        MappingName::File { .. } => false,
    };
    of_no_file && mapping.permissions.execute
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_pipeline::ExitCode;

    #[test]
    fn most_of_what_was_seen_decides_and_not_the_little_that_a_quiet_process_shows() {
        let told = |outside, all| in_no_file("process 7", outside, all);
        let error = told(90, 100).expect("it is most");
        assert_eq!(error.exit_code(), ExitCode::NothingToDo);
        assert!(error.to_string().starts_with("process 7 works in code that is in no file (90 of the 100"));
        assert!(told(50, 100).is_none() && told(2, 2).is_none() && told(0, 0).is_none());
    }

    /// A library that has come since the process was opened, and a place where nothing is any more.
    #[test]
    fn code_of_a_file_and_places_that_are_gone_are_not_taken_for_made_code() {
        let own = std::process::id() as i32;
        let here = Avma::new(is_made as fn(&Mapping) -> bool as usize as u64);
        assert!(met_in_no_file(own, [(here, 100)], 100).is_none());
        assert!(met_in_no_file(own, [(Avma::new(0x1000), 100)], 100).is_none());
    }
}
