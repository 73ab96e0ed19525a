//! Signatures of modules, for kernels that take no others (Secure Boot, `module.sig_enforce`).
//!
//! Behind the module's bytes stands a detached PKCS #7 message about them (RFC 5652), its description and a
//! mark (`include/linux/module_signature.h`; `scripts/sign-file.c` makes the same). The message is made by
//! `openssl cms`; the key is one that the machine's owner has enrolled.

use crate::error::{CERTIFICATE, ControlError, KEY};
use rustix::io::Errno;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where DKMS and Debian's shim-signed keep the machine's own.
const PLACES: [(&str, &str); 2] = [
    ("/var/lib/dkms/mok.key", "/var/lib/dkms/mok.pub"),
    ("/var/lib/shim-signed/mok/MOK.priv", "/var/lib/shim-signed/mok/MOK.der"),
];
/// At the end of each signed module.
const MARK: &[u8] = b"~Module signature appended~\n";
/// `PKEY_ID_PKCS7`: the third byte of `struct module_signature`; the others but the length are 0.
const PKCS7: u8 = 2;

/// A private key and its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleKey {
    key: PathBuf,
    certificate: PathBuf,
}

impl ModuleKey {
    /// The key in this file, with the certificate in that one.
    pub fn new(key: &Path, certificate: &Path) -> Self {
        Self { key: key.into(), certificate: certificate.into() }
    }

    /// The one that the environment names ([`KEY`], [`CERTIFICATE`]; one without the other signs nothing);
    /// else, where the running kernel takes signed modules only, the machine's own, if it is where DKMS or
    /// shim-signed put it.
    pub fn of_machine() -> Option<Self> {
        let named = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let (key, certificate) = (named(KEY), named(CERTIFICATE));
        if key.is_some() || certificate.is_some() {
            return Some(Self { key: key.unwrap_or_default(), certificate: certificate.unwrap_or_default() });
        }
        let places =
            PLACES.iter().map(|(key, certificate)| Self::new(Path::new(key), Path::new(certificate)));
        places.filter(|_| wants_signatures()).find(|place| place.key.exists() && place.certificate.exists())
    }

    /// The module with its signature.
    ///
    /// # Errors
    /// [`ControlError::NoSigner`] if `openssl` is missing, [`ControlError::Signing`] if it does not take the
    /// key or the certificate.
    pub fn sign(&self, module: &[u8]) -> Result<Vec<u8>, ControlError> {
        if self.key.as_os_str().is_empty() || self.certificate.as_os_str().is_empty() {
            return Err(self.failed("one of the two is not set"));
        }
        let message = self.message(module)?;
        let length = u32::try_from(message.len()).map_err(|_| self.failed("the signature is too long"))?;
        let description = [&[0, 0, PKCS7, 0, 0, 0, 0, 0][..], &length.to_be_bytes()].concat();
        Ok([module, &message, &description, MARK].concat())
    }

    /// What `openssl` says of these bytes.
    fn message(&self, module: &[u8]) -> Result<Vec<u8>, ControlError> {
        let mut command = Command::new("openssl");
        command.args(["cms", "-sign", "-binary", "-outform", "DER", "-md", "sha256"]);
        command.args(["-nocerts", "-noattr", "-nosmimecap", "-passin", "pass:", "-inkey"]).arg(&self.key);
        command.arg("-signer").arg(&self.certificate);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = command.spawn().map_err(no_signer)?;
        // It reads all before it writes.
        let written = running.stdin.take().map(|mut input| input.write_all(module));
        let done = running.wait_with_output().map_err(no_signer)?;
        if done.status.success() && matches!(written, Some(Ok(()))) {
            return Ok(done.stdout);
        }
        let said = String::from_utf8_lossy(&done.stderr);
        Err(self.failed(said.lines().next().unwrap_or("openssl has failed").trim()))
    }

    fn failed(&self, why: &str) -> ControlError {
        ControlError::Signing {
            key: self.key.clone(),
            certificate: self.certificate.clone(),
            why: why.into(),
        }
    }
}

fn no_signer(error: std::io::Error) -> ControlError {
    ControlError::NoSigner { source: Errno::from_io_error(&error).unwrap_or(Errno::IO) }
}

/// Whether the running kernel refuses modules without a signature that it trusts.
pub(crate) fn wants_signatures() -> bool {
    let says = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    says("/sys/module/module/parameters/sig_enforce").trim() == "Y"
        || ["[integrity]", "[confidentiality]"]
            .iter()
            .any(|level| says("/sys/kernel/security/lockdown").contains(level))
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_testkit::{find_program, require, scratch};

    fn openssl(folder: &Path, arguments: &[&str]) {
        let done = Command::new("openssl").args(arguments).current_dir(folder).output().expect("it starts");
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    #[test]
    fn what_is_signed_can_be_verified() {
        require!(find_program("openssl"), "openssl");
        let folder = scratch();
        let at = |name: &str| folder.path().join(name);
        let make = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-days", "2"];
        openssl(folder.path(), &[&make[..], &["-keyout", "key", "-out", "certificate"]].concat());
        openssl(folder.path(), &["x509", "-in", "certificate", "-outform", "DER", "-out", "certificate.der"]);
        let module: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(at("module"), &module).expect("written");
        for certificate in ["certificate", "certificate.der"] {
            let signed = ModuleKey::new(&at("key"), &at(certificate)).sign(&module).expect("signed");
            let rest = signed.strip_prefix(&module[..]).and_then(|rest| rest.strip_suffix(MARK));
            let (message, description) = rest.expect("both ends").split_last_chunk::<12>().expect("there");
            assert_eq!(description[..8], [0, 0, 2, 0, 0, 0, 0, 0]);
            assert_eq!(
                u32::from_be_bytes(description[8..].try_into().expect("four")) as usize,
                message.len()
            );
            std::fs::write(at("message"), message).expect("written");
            let verify =
                ["cms", "-verify", "-binary", "-inform", "DER", "-in", "message", "-content", "module"];
            let by = ["-certfile", "certificate", "-noverify", "-out", "verified"];
            openssl(folder.path(), &[&verify[..], &by].concat());
        }
    }

    #[test]
    fn keys_that_cannot_be_used_are_told() {
        require!(find_program("openssl"), "openssl");
        let folder = scratch();
        let path = folder.path().join("absent");
        let told = ModuleKey::new(&path, &path).sign(b"module").expect_err("there is no key").to_string();
        assert!(told.contains("absent") && told.contains(KEY), "{told}");
        let told = ModuleKey::new(&path, Path::new("")).sign(b"module").expect_err("half of it").to_string();
        assert!(told.contains("not set") && told.contains(CERTIFICATE), "{told}");
    }
}
