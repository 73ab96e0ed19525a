//! Records on their way from the thread that traces to the one that wants them.
//!
//! For what needs no look at the process: by the time it comes out the process may run another program, or be
//! gone.

use crate::Taken;
use crate::report::{Record, RecordEnd, Sink};
use std::sync::mpsc::{Receiver, Sender, channel};

enum Told {
    Record { pid: i32, tid: i32, branches: Vec<Taken>, end: RecordEnd },
    Forked { pid: i32, parent: i32 },
    Executed { pid: i32 },
}

/// Hands on what it is told, without waiting for anybody: threads may be held until the tracer has time for
/// them. What is told after the receiver's end is lost.
#[derive(Clone)]
pub struct RecordSender(Sender<Told>);

/// Where that comes out, in the order in which it was told.
pub struct RecordReceiver(Receiver<Told>);

/// The two ends of a way for records between threads.
#[must_use]
pub fn relay() -> (RecordSender, RecordReceiver) {
    let (sender, receiver) = channel();
    (RecordSender(sender), RecordReceiver(receiver))
}

impl RecordSender {
    fn tell(&self, told: Told) {
        // An error: nobody wants records any more.
        let _ = self.0.send(told);
    }
}

impl Sink for RecordSender {
    fn record(&mut self, record: Record<'_>) {
        let Record { pid, tid, branches, end } = record;
        self.tell(Told::Record { pid, tid, branches: branches.to_vec(), end });
    }

    fn forked(&mut self, pid: i32, parent: i32) {
        self.tell(Told::Forked { pid, parent });
    }

    fn executed(&mut self, pid: i32) {
        self.tell(Told::Executed { pid });
    }
}

impl RecordReceiver {
    /// Gives `sink` all that comes, until the last sender is gone.
    pub fn hand_to(self, sink: &mut dyn Sink) {
        for told in self.0 {
            match told {
                Told::Record { pid, tid, branches, end } => {
                    sink.record(Record { pid, tid, branches: &branches, end });
                }
                Told::Forked { pid, parent } => sink.forked(pid, parent),
                Told::Executed { pid } => sink.executed(pid),
            }
        }
    }
}
