//! Writes the seeds of all targets: `seeds FOLDER` makes `FOLDER/TARGET/NUMBER`.

use restitch_fuzz::{TARGETS, seeds::seeds};
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: seeds FOLDER");
        std::process::exit(2);
    };
    for (name, _) in TARGETS {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder)?;
        for (number, seed) in seeds(name).iter().enumerate() {
            std::fs::write(folder.join(number.to_string()), seed)?;
        }
    }
    Ok(())
}
