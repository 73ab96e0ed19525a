//! `restitch kernel` where Secure Boot has locked the kernel down: its group modules are signed with a key
//! that the firmware trusts. The firmware is OVMF with Debian's key for tests (package ovmf).

mod guest_files;

use guest_files::{file, program, with_libraries};
use restitch_guest::{Error, Guest, Job, Lab, Output, SecureBoot, build_control_module};
use restitch_kernel_control::ModuleKey;
use restitch_testkit::{find_program, scratch, skip, skip_unsupported};
use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPT: &str = include_str!("../../../tests/guest/secure_boot.sh");
const FIRMWARE: &str = "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd";
const VARIABLES: &str = "/usr/share/OVMF/OVMF_VARS_4M.snakeoil.fd";
const CERTIFICATE: &str = "/usr/share/ovmf/PkKek-1-snakeoil.pem";
/// Its passphrase is its name.
const KEY: &str = "/usr/share/ovmf/PkKek-1-snakeoil.key";

fn done(command: &mut Command) {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The firmware's key, without a passphrase.
fn key(folder: &Path) -> PathBuf {
    let key = folder.join("key");
    done(Command::new("openssl").args(["rsa", "-in", KEY, "-passin", "pass:snakeoil", "-out"]).arg(&key));
    key
}

fn run(folder: &Path, key: &Path) -> Result<Output, Error> {
    let lab = Lab::open()?;
    let kernel = lab.kernel("6.1")?;
    let control = build_control_module(&lab, &kernel)?;
    let module = std::fs::read(&control).expect("it was built");
    let signed = ModuleKey::new(key, Path::new(CERTIFICATE)).sign(&module).expect("signed");
    let signed_at = folder.join("control.ko");
    std::fs::write(&signed_at, signed).expect("room");
    let image = folder.join("vmlinuz");
    let mut sign = Command::new("sbsign");
    done(
        sign.arg("--key").arg(key).args(["--cert", CERTIFICATE, "--output"]).arg(&image).arg(kernel.image()?),
    );
    let openssl = find_program("openssl").expect("it was asked for");
    let mut files_in = program(folder).expect("it was asked for");
    files_in.extend(with_libraries(&openssl));
    let installed = format!("/lib/modules/{}/updates/dkms/restitch-kernel.ko", kernel.release());
    files_in.extend([
        file(installed, &signed_at),
        file("/control.ko", &signed_at),
        file("/unsigned.ko", &control),
    ]);
    files_in.extend([file("/key", key), file("/certificate", CERTIFICATE)]);
    // Both programs need some of the same libraries.
    files_in.sort_by(|one, other| one.guest.cmp(&other.guest));
    files_in.dedup_by(|one, other| one.guest == other.guest);
    let job = Job { script: SCRIPT.into(), files_in, files_out: Vec::new() };
    let secure_boot = SecureBoot { code: FIRMWARE.into(), variables: VARIABLES.into(), image };
    Guest::new(&lab, &kernel).processors(2).secure_boot(secure_boot).run(&job)
}

#[test]
fn groups_are_signed_where_secure_boot_asks_for_it() {
    if ["sbsign", "openssl", "strip"].iter().any(|name| find_program(name).is_none())
        || [FIRMWARE, VARIABLES, CERTIFICATE, KEY].iter().any(|path| !Path::new(path).exists())
    {
        skip!("ovmf, sbsigntool or openssl is not installed");
    }
    let folder = scratch();
    match run(folder.path(), &key(folder.path())) {
        Ok(output) => {
            println!("{}", output.text);
            assert!(output.text.ends_with("all held\n"), "{}", output.console);
        }
        Err(error) if error.is_missing() => skip_unsupported!("{error}"),
        Err(error) => panic!("{error}"),
    }
}
