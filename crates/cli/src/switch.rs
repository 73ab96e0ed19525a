//! What can be switched on and off.

use clap::ValueEnum;

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Do it.
    On,
    /// Do not.
    Off,
}
