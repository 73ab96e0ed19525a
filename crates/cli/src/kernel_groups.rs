//! `restitch kernel revert`: a group out of the kernel.

use restitch_kernel_control::{Control, unload};
use restitch_report::paragraph;
use restitch_session::SessionError;
use std::time::Duration;

/// How long tasks may stand in copies that no calls lead to any more. The control module looks each second.
const PATIENCE: Duration = Duration::from_secs(10);

/// Leads calls back to the original code, waits until nobody is in the copies, and unloads them; what to say.
pub(crate) fn revert(name: &str) -> Result<String, SessionError> {
    Control::default().disable(name)?;
    unload(name, PATIENCE)?;
    let words = format!("group {name} is out of the kernel: its calls go to the original code");
    Ok(paragraph("", &words))
}
