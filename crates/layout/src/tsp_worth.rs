//! What the extended-TSP score gives for what (Newell and Pupyrev, IEEE Transactions on Computers 2020), and
//! what we add to it.

/// What a fall-through is worth.
pub(crate) const FALL: f64 = 1.0;
/// What a jump over no bytes at all would be worth.
pub(crate) const SHORT: f64 = 0.1;
/// Reach of a forward jump that counts, in bytes.
pub(crate) const FORWARD: f64 = 1024.0;
/// Reach of a backward jump that counts, in bytes.
pub(crate) const BACKWARD: f64 = 640.0;
/// What a fall-through is worth on top of that, if it makes a jump superfluous: a block's only way out then
/// takes no instruction. (Loops turn so that their condition stands at the end.)
pub(crate) const JUMP: f64 = 0.5;
/// What it is worth that two blocks share a line, for each window of execution in which both ran. (A line
/// that comes from the second-level cache costs as much as two dozen fall-throughs save, but a block with
/// several such neighbours saves it once only. Of a quarter, a half and all of this the last was best in the
/// laboratory, by half a percent of the cost; seven times as much parts what follows each other.)
pub(crate) const AFFINITY: f64 = 0.2;
/// Bytes of a line.
pub(crate) const LINE: f64 = 64.0;
