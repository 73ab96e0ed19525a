//! What can go wrong.

use crate::registers::Register;
use restitch_address::{Avma, Svma};
use thiserror::Error;

/// Why unwind tables could not be read, translated, written or used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CfiError {
    /// The table ends in the middle of a field.
    #[error(
        "reading {what}: the data ends at {at}, in the middle of a field; the file is cut short or damaged, take a fresh copy of it"
    )]
    Truncated {
        /// The table.
        what: &'static str,
        /// Where the missing bytes should be.
        at: Svma,
    },
    /// A field has a value that makes no sense.
    #[error(
        "reading {what} at {at}: {why}; the file is damaged or made by an unknown tool, leave this function where it is"
    )]
    Malformed {
        /// The table.
        what: &'static str,
        /// The place of the field.
        at: Svma,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A pointer encoding (`DW_EH_PE_*`) that is not used on x86-64.
    #[error(
        "reading {what} at {at}: pointer encoding {encoding:#04x} is not supported; leave the functions that use it where they are"
    )]
    UnsupportedEncoding {
        /// The table.
        what: &'static str,
        /// The place of the pointer or of its encoding byte.
        at: Svma,
        /// The encoding.
        encoding: u8,
    },
    /// The address is not in the module.
    #[error(
        "reading {what}: nothing is stored at {at}; the table that points there is damaged, leave the function where it is"
    )]
    Unmapped {
        /// The table.
        what: &'static str,
        /// The address.
        at: Svma,
    },
    /// A PC-relative field of 32 bits cannot express the distance.
    #[error(
        "writing {what} at {from}: {to} is more than 2 GiB away; place the new code nearer to the module"
    )]
    OutOfReach {
        /// The table.
        what: &'static str,
        /// The place of the field.
        from: Svma,
        /// What it should point to.
        to: Svma,
    },
    /// The caller asked for a table that cannot be expressed.
    #[error(
        "writing {what} for the code at {at}: {why}; correct the caller or leave the function where it is"
    )]
    Inexpressible {
        /// The table.
        what: &'static str,
        /// The code that it describes.
        at: Svma,
        /// What is wrong.
        why: &'static str,
    },
    /// A rule needs a register whose value is not known.
    #[error(
        "unwinding a frame: the value of register {register:?} is not known here; treat the rest of the stack as unknown"
    )]
    UnknownRegister {
        /// The register.
        register: Register,
    },
    /// A rule needs memory that cannot be read.
    #[error("unwinding a frame: the memory at {at} cannot be read; treat the rest of the stack as unknown")]
    UnreadableStack {
        /// The address.
        at: Avma,
    },
    /// A DWARF expression cannot be evaluated.
    #[error(
        "unwinding a frame: its DWARF expression cannot be evaluated ({why}); treat the rest of the stack as unknown"
    )]
    Expression {
        /// The reason.
        #[source]
        why: ExpressionError,
    },
}

/// Why a DWARF expression has no value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExpressionError {
    /// It is malformed, or does not come to its end.
    #[error(transparent)]
    Evaluation(#[from] gimli::Error),
    /// It asks for something that nobody knows here.
    #[error("it needs {what}")]
    Needs {
        /// What, in the evaluator's words.
        what: String,
    },
    /// Its result is no address.
    #[error("it gives no address")]
    NoAddress,
}
