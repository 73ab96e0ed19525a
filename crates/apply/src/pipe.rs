//! Pipes, whose other end may be long in coming: opening, reading and writing wait for it in the kernel,
//! where a handler of signals that lets calls go on cannot end the wait. So they are opened without waiting,
//! and it is looked again and again whether this program was asked to end.
//!
//! Only pipes whose other end this user, root or whoever started this program holds are waited for (see
//! [`end_of`]).
//!
//! The end of a pipe is its end only once somebody has written to it: until then, poll(2) says nothing.

use crate::read::{NONBLOCK, read_bounded};
use crate::resolve::{End, end_of, itself};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Whether this program was asked to end: whoever waits, gives up then.
pub type IsAsked<'a> = &'a dyn Fn() -> bool;

/// The reason that an error of [`read_pipe`] and of writing has where this program was asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nobody was at work at the other end of the pipe")]
pub struct GivenUp;

impl GivenUp {
    /// Whether that is why `error` came.
    pub fn is_in(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|why| why.is::<GivenUp>())
    }

    /// That, unless the program goes on.
    fn or_go_on(is_asked: IsAsked<'_>) -> io::Result<()> {
        if is_asked() { Err(io::Error::other(Self)) } else { Ok(()) }
    }
}

/// How long it is waited at most until it is looked whether this program was asked to end.
const LOOK: Duration = Duration::from_millis(20);

/// Who takes nothing for so long is not waited for any more once this program was asked to end. Until then a
/// reader at work gets what that request has ended.
const TAKING: Duration = Duration::from_millis(500);

/// What is written to a pipe until its last writer has closed it: `most` bytes at most.
///
/// # Errors
/// [`GivenUp`] if this program was asked to end before, [`ErrorKind::FileTooLarge`] for more,
/// [`ErrorKind::PermissionDenied`] with words for another user's pipe, else the system's reason.
pub fn read_pipe(path: &Path, most: u64, is_asked: IsAsked<'_>) -> io::Result<Vec<u8>> {
    let End::Object(object) = end_of(path)? else {
        let why = "it was a pipe just now and is a file; try again";
        return Err(io::Error::new(ErrorKind::InvalidInput, why));
    };
    let pipe = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(itself(&object))?;
    read_bounded(&mut Waiting { pipe, is_asked }, 0, most)
}

/// A pipe that is waited for.
pub(crate) struct Waiting<'a> {
    pipe: File,
    is_asked: IsAsked<'a>,
}

impl Waiting<'_> {
    /// Whether it can be read or written, or has lost its other end, after [`LOOK`] at the latest.
    fn is_ready(&self, what: PollFlags) -> io::Result<bool> {
        let look = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.pipe, what)], Some(&look)) {
            Ok(0) | Err(Errno::INTR) => Ok(false),
            Ok(_) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

impl Read for Waiting<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            while !self.is_ready(PollFlags::IN)? {
                GivenUp::or_go_on(self.is_asked)?;
            }
            match self.pipe.read(bytes) {
                // Somebody else has read it.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

impl Write for Waiting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let begun = Instant::now();
        loop {
            while !self.is_ready(PollFlags::OUT)? {
                GivenUp::or_go_on(&|| begun.elapsed() >= TAKING && (self.is_asked)())?;
            }
            match self.pipe.write(bytes) {
                // Somebody else has filled it.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens what is no file as `options` say, for writing to it: a pipe once somebody reads it. Writing to it
/// waits for whoever reads, until this program was asked to end ([`GivenUp`]).
///
/// # Errors
/// [`GivenUp`] if this program was asked to end before, else the system's reason.
pub(crate) fn open_to_write<'a>(
    path: &str,
    options: &OpenOptions,
    is_asked: IsAsked<'a>,
) -> io::Result<Waiting<'a>> {
    let is_pipe = std::fs::metadata(path).is_ok_and(|about| about.file_type().is_fifo());
    let options = options.clone().custom_flags(NONBLOCK).clone();
    loop {
        match options.open(path) {
            Err(error) if is_pipe && error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                GivenUp::or_go_on(is_asked)?;
                sleep(LOOK);
            }
            opened => return Ok(Waiting { pipe: opened?, is_asked }),
        }
    }
}

/// Writes all of `bytes` to an output that this program was given open, if that is a pipe; `None` if it is
/// none. Whoever reads is waited for as with [`open_to_write`]: the pipe is opened once more for that, so
/// that others who write to it are not touched.
///
/// # Errors
/// [`GivenUp`] if this program was asked to end before all was taken, else the system's reason.
pub fn write_if_pipe(output: BorrowedFd<'_>, bytes: &[u8], is_asked: IsAsked<'_>) -> Option<io::Result<()>> {
    let about = rustix::fs::fstat(output).ok()?;
    if FileType::from_raw_mode(about.st_mode) != FileType::Fifo {
        return None;
    }
    let options = OpenOptions::new().write(true).custom_flags(NONBLOCK).clone();
    // One that may not be opened is another user's (restitch runs for them); one without a reader has lost
    // it. Both are written to as they are.
    let pipe = options.open(itself(&output)).ok()?;
    Some(Waiting { pipe, is_asked }.write_all(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::os::fd::AsFd;
    use std::path::PathBuf;

    fn pipe_in(folder: &tempfile::TempDir) -> PathBuf {
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        pipe
    }

    /// Asked to end at the so-manieth look.
    fn asked_at(look: u32) -> impl Fn() -> bool {
        let looks = Cell::new(0);
        move || look <= looks.replace(looks.get() + 1)
    }

    #[test]
    fn a_pipe_that_nobody_writes_to_is_waited_for_until_this_program_is_to_end() {
        let folder = tempfile::tempdir().unwrap();
        let error = read_pipe(&pipe_in(&folder), 9, &asked_at(3)).unwrap_err();
        assert!(GivenUp::is_in(&error), "{error}");
    }

    #[test]
    fn a_writer_that_is_late_and_slow_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = pipe_in(&folder);
        let (looked, looks) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let pipe = &pipe;
            scope.spawn(move || {
                // Not before somebody waits.
                looks.recv().unwrap();
                let mut writer = OpenOptions::new().write(true).open(pipe).unwrap();
                writer.write_all(b"one ").unwrap();
                while looks.try_recv().is_ok() {}
                looks.recv().unwrap();
                writer.write_all(b"two").unwrap();
            });
            let is_asked = || {
                let _ = looked.send(());
                false
            };
            assert_eq!(read_pipe(pipe, 9, &is_asked).unwrap(), b"one two");
        });
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_waited_for_until_this_program_is_to_end() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = pipe_in(&folder);
        let text = pipe.to_str().unwrap();
        let mut options = OpenOptions::new();
        options.write(true);
        let error = open_to_write(text, &options, &asked_at(3)).err().expect("nobody reads");
        assert!(GivenUp::is_in(&error), "{error}");
        let reader = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(&pipe).unwrap();
        let mut writer = open_to_write(text, &options, &|| true).unwrap();
        writer.write_all(b"text").unwrap();
        drop(writer);
        let mut read = String::new();
        (&reader).read_to_string(&mut read).unwrap();
        assert_eq!(read, "text");
    }

    #[test]
    fn a_full_pipe_that_nobody_reads_is_waited_for_until_this_program_is_to_end() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = pipe_in(&folder);
        let _reader = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(&pipe).unwrap();
        let is_asked = asked_at(3);
        let mut writer =
            open_to_write(pipe.to_str().unwrap(), OpenOptions::new().append(true), &is_asked).unwrap();
        let error = writer.write_all(&vec![7; 4 << 20]).unwrap_err();
        assert!(GivenUp::is_in(&error), "{error}");
    }

    #[test]
    fn an_open_pipe_that_nobody_reads_is_waited_for_until_this_program_is_to_end() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let written = |bytes: &[u8], is_asked: IsAsked<'_>| write_if_pipe(writer.as_fd(), bytes, is_asked);
        written(b"text", &|| true).expect("a pipe").unwrap();
        let mut text = [0; 4];
        reader.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"text");
        let error = written(&vec![7; 4 << 20], &asked_at(3)).expect("a pipe").unwrap_err();
        assert!(GivenUp::is_in(&error), "{error}");
        drop(reader);
        let error = written(b"text", &|| false).expect("a pipe").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        let file = File::open("/dev/null").unwrap();
        assert!(write_if_pipe(file.as_fd(), b"text", &|| true).is_none());
    }

    /// What a request to end has ended goes to a reader at work all the same.
    #[test]
    fn a_reader_at_work_gets_all_though_this_program_is_to_end() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = pipe_in(&folder);
        let reader = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(&pipe).unwrap();
        let mut writer =
            open_to_write(pipe.to_str().unwrap(), OpenOptions::new().append(true), &|| true).unwrap();
        // More than a pipe holds.
        let all = vec![7; 1 << 20];
        let read = std::thread::scope(|scope| {
            let reading = scope.spawn(move || {
                let mut reader = Waiting { pipe: reader, is_asked: &|| false };
                read_bounded(&mut reader, 0, 2 << 20).unwrap()
            });
            writer.write_all(&all).unwrap();
            drop(writer);
            reading.join().unwrap()
        });
        assert_eq!(read, all);
    }
}
