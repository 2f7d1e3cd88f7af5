//! Files of plugins, made from the built ones in `golden/`: with another manifest, larger, or different.

use std::path::{Path, PathBuf};

use ed25519_dalek::{Signer as _, SigningKey};
use serde_json::Value;

/// The section that says what a plugin is and asks for.
const MANIFEST: &[u8] = b"kuorum-manifest";
/// Bytes in front of the first section.
const HEAD_BYTES: usize = 8;

/// Where a built component lies, by its file's name without the ending.
pub fn golden_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("{name}.wasm"))
}

/// The file of a plugin.
#[derive(Clone)]
pub struct PluginFile(Vec<u8>);

impl PluginFile {
    /// One of those in `golden/`.
    pub fn golden(name: &str) -> PluginFile {
        let path = golden_path(name);
        PluginFile(std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    /// Any bytes, be they a plugin or not.
    pub fn of(bytes: Vec<u8>) -> PluginFile {
        PluginFile(bytes)
    }

    /// With this manifest in the place of its own.
    pub fn with_manifest(self, manifest: &Value) -> PluginFile {
        let mut file = self.0[..HEAD_BYTES].to_vec();
        let mut rest = &self.0[HEAD_BYTES..];
        while let Some(&id) = rest.first() {
            let (size, at) = leb128(&rest[1..]);
            let (section, behind) = rest.split_at(1 + at + size);
            let is_manifest = id == 0 && section[1 + at + 1..].starts_with(MANIFEST);
            if !is_manifest {
                file.extend_from_slice(section);
            }
            rest = behind;
        }
        let mut changed = PluginFile(file);
        changed.add_section(MANIFEST, manifest.to_string().as_bytes());
        changed
    }

    /// Larger by as many bytes and some, in a section that nobody reads.
    pub fn with_ballast(mut self, bytes: usize) -> PluginFile {
        self.add_section(b"ballast", &vec![b'.'; bytes]);
        self
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Over the whole file, as `openssl pkeyutl -sign -rawin` makes it.
    pub fn signed_by(&self, key: &Key) -> Vec<u8> {
        SigningKey::from_bytes(&key.secret).sign(&self.0).to_bytes().to_vec()
    }

    fn add_section(&mut self, name: &[u8], content: &[u8]) {
        let length = u8::try_from(name.len()).expect("the name of a section is short");
        let section = [&[length], name, content].concat();
        self.0.push(0);
        // LEB128, five bytes of it.
        self.0.extend((0..5).map(|place| {
            let seven = u8::try_from((section.len() >> (7 * place)) & 0x7f).expect("seven bits fit");
            if place < 4 { seven | 0x80 } else { seven }
        }));
        self.0.extend(section);
    }
}

/// A key that signs plugins.
pub struct Key {
    secret: [u8; 32],
    /// As `openssl pkey -pubout` writes it.
    pub public_pem: &'static str,
}

pub const KEY: Key = Key {
    secret: [1; 32],
    public_pem: "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAiojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=\n-----END PUBLIC KEY-----\n",
};
pub const OTHER_KEY: Key = Key {
    secret: [2; 32],
    public_pem: "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAgTl3Dqh9F19Wo1Rmw0x+zMuNipG07jeiXfYPW4/Js5Q=\n-----END PUBLIC KEY-----\n",
};

/// A number, and how many bytes it took.
fn leb128(bytes: &[u8]) -> (usize, usize) {
    let length = 1 + bytes.iter().position(|byte| byte & 0x80 == 0).expect("a whole file has whole numbers");
    let number = bytes[..length].iter().rev().fold(0, |number, byte| (number << 7) | usize::from(byte & 0x7f));
    (number, length)
}
