//! Whose plugins a member takes: signatures over whole components, by keys that its operator named.
//!
//! The signature is part of a revision and travels with it, and each member checks it by its own keys before it prepares
//! the revision: whoever finds a member without keys to load a plugin through has gained nothing on the others.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, VerifyingKey};

const PEM_BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const PEM_END: &str = "-----END PUBLIC KEY-----";
/// What stands before the 32 bytes of an Ed25519 key in a SubjectPublicKeyInfo (RFC 8410): it has this one form.
const DER_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The keys of a member. Without any, every component is taken. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct TrustedKeys(Arc<[VerifyingKey]>);

impl TrustedKeys {
    pub(crate) fn new(keys: Vec<VerifyingKey>) -> TrustedKeys {
        TrustedKeys(keys.into())
    }

    /// Whether one of the keys has signed the component. The error is a sentence for the operator.
    pub(crate) fn check(&self, component: &[u8], signature: &[u8]) -> Result<(), String> {
        if self.0.is_empty() {
            return Ok(());
        }
        if signature.is_empty() {
            return Err(
                "the plugin is not signed, and this member takes only those that a trusted key has signed".into()
            );
        }
        let signature = Signature::from_slice(signature).map_err(|_| {
            format!("an Ed25519 signature has {} bytes; this one has {}", Signature::BYTE_SIZE, signature.len())
        })?;
        match self.0.iter().any(|key| key.verify_strict(component, &signature).is_ok()) {
            true => Ok(()),
            false => Err(format!(
                "the signature of the plugin is by none of the {} keys that this member trusts, or of another file",
                self.0.len()
            )),
        }
    }
}

/// Reads the public keys in a file as `openssl pkey -pubout` writes it. The error is the end of a sentence about the file.
pub(crate) fn keys_of_pem(text: &str) -> Result<Vec<VerifyingKey>, String> {
    let mut keys = Vec::new();
    let mut rest = text;
    while let Some((_, behind)) = rest.split_once(PEM_BEGIN) {
        let (body, behind) = behind.split_once(PEM_END).ok_or("a public key has no end")?;
        let letters: String = body.split_whitespace().collect();
        let der = STANDARD.decode(letters).map_err(|error| format!("a public key is no base64: {error}"))?;
        let bytes = der.strip_prefix(&DER_HEAD).and_then(|bytes| <&[u8; 32]>::try_from(bytes).ok());
        let key = bytes.and_then(|bytes| VerifyingKey::from_bytes(bytes).ok());
        keys.push(key.filter(|key| !key.is_weak()).ok_or("a public key is not one of Ed25519")?);
        rest = behind;
    }
    if keys.is_empty() { Err(format!("there is no \"{PEM_BEGIN}\" in it")) } else { Ok(keys) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by openssl 3: genpkey, pkey -pubout, pkeyutl -sign -rawin over these bytes.
    const COMPONENT: &[u8] = b"a component";
    const PEM: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAFGyemQ/pCmX1ON/boL4joiwK7wwumDkgjFpt6wNLUXk=\n-----END PUBLIC KEY-----";
    const OTHER_PEM: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAAAAihD0gpwqsaYTdzsphIFs0YO7Y/5GFoMuDOn5+ROs=\n-----END PUBLIC KEY-----";
    const SIGNATURE: &str = "x7BOVF+DEUSgrjbx9/Lrd4nFa9VNR6ulpRtTJTLxVke0Tnh8kZdcjRdQikqVxWnNuNZmB5ZfZGmZ/jvHqXAbCA==";

    fn keys(pem: &str) -> TrustedKeys {
        TrustedKeys::new(keys_of_pem(pem).unwrap())
    }

    fn signature() -> Vec<u8> {
        STANDARD.decode(SIGNATURE).unwrap()
    }

    #[test]
    fn what_a_trusted_key_has_signed_is_taken() {
        assert_eq!(keys(PEM).check(COMPONENT, &signature()), Ok(()));
        let both = keys(&format!("{OTHER_PEM}\n{PEM}"));
        assert_eq!(both.check(COMPONENT, &signature()), Ok(()));
        assert_eq!(TrustedKeys::default().check(COMPONENT, b""), Ok(()));
    }

    #[test]
    fn all_else_is_refused() {
        let refused = |pem, component: &[u8], signature: &[u8]| keys(pem).check(component, signature).unwrap_err();
        assert!(refused(PEM, COMPONENT, b"").starts_with("the plugin is not signed"));
        assert!(refused(OTHER_PEM, COMPONENT, &signature()).contains("by none of the 1 keys"));
        assert!(refused(PEM, b"another component", &signature()).contains("of another file"));
        assert_eq!(refused(PEM, COMPONENT, &signature()[..63]), "an Ed25519 signature has 64 bytes; this one has 63");
        let mut turned = signature();
        turned[10] ^= 1;
        assert!(refused(PEM, COMPONENT, &turned).contains("by none"));
        turned[63] = 0xff;
        assert!(refused(PEM, COMPONENT, &turned).contains("by none"));
    }

    #[test]
    fn a_file_that_holds_no_key_is_told() {
        let problem = |text: &str| keys_of_pem(text).unwrap_err();
        assert_eq!(problem(""), "there is no \"-----BEGIN PUBLIC KEY-----\" in it");
        assert_eq!(problem(PEM.split_once("-----END").unwrap().0), "a public key has no end");
        assert_eq!(problem(&PEM.replacen("MCow", "MCox", 1)), "a public key is not one of Ed25519");
        assert!(problem(&PEM.replacen("MCow", "M!", 1)).starts_with("a public key is no base64"));
    }
}
