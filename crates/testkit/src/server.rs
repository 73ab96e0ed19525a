//! A running `tests/programs/server.c`.

use crate::process::{Guarded, wait_until};
use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// How long a server may take to listen, and to answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server process, killed when dropped, and its socket.
#[derive(Debug)]
pub struct Server {
    process: Guarded,
    socket: PathBuf,
    _folder: TempDir,
}

/// One connection to a [`Server`], served by a thread of its own there.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<UnixStream>,
}

impl Server {
    /// Starts `program`, compiled from `server.c`, and waits until it listens.
    ///
    /// # Errors
    /// If it cannot be started or does not listen in time.
    pub fn start(program: &Path) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("socket");
        let process = Guarded::spawn(Command::new(program).arg(&socket).stdin(Stdio::null()))?;
        let server = Self { process, socket, _folder: folder };
        let listening = wait_until(PATIENCE, || server.connect().ok());
        listening.map(|_| server).ok_or_else(|| Error::new(ErrorKind::TimedOut, "the server does not listen"))
    }
    /// The server's process.
    pub fn process(&mut self) -> &mut Guarded {
        &mut self.process
    }
    /// The server's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
    /// A new connection.
    ///
    /// # Errors
    /// If the server does not accept it.
    pub fn connect(&self) -> Result<Connection> {
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection { stream: BufReader::new(stream) })
    }
}

impl Connection {
    /// The answer to one request line (without line ends).
    ///
    /// # Errors
    /// If the server is gone or does not answer in time.
    pub fn ask(&mut self, request: &str) -> Result<String> {
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(Error::new(ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        Ok(line.trim_end().to_owned())
    }
    /// Asks for a checksum by switches and by formula, and says whether the answers agree.
    ///
    /// # Errors
    /// As [`Connection::ask`].
    pub fn check(&mut self, seed: u32, count: u32) -> Result<bool> {
        Ok(self.ask(&format!("sum {seed} {count}"))? == self.ask(&format!("plain {seed} {count}"))?)
    }
}
