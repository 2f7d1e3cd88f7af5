//! Components of plugins: those that are kept in `tests/golden`, and the same under other manifests.

use std::path::PathBuf;

use serde_json::Value;

use crate::subject::workspace;

/// The section that holds a plugin's manifest.
const SECTION: &str = "kuorum-manifest";
/// Bytes of a component before its first section.
const HEADER_BYTES: usize = 8;

/// A component that is kept.
pub fn golden(name: &str) -> PathBuf {
    workspace().join("tests/golden").join(format!("{name}.wasm"))
}

/// A kept component with another manifest in the place of its own.
pub fn with_manifest(name: &str, manifest: &Value) -> Vec<u8> {
    let component = std::fs::read(golden(name)).expect("golden components are part of the sources");
    let (mut made, mut rest) = component.split_at(HEADER_BYTES);
    let mut file = made.to_vec();
    while let Some((&id, behind)) = rest.split_first() {
        let (size, body) = leb128(behind);
        let (body, next) = body.split_at(size);
        made = &rest[..rest.len() - next.len()];
        if !(id == 0 && body[1..].starts_with(SECTION.as_bytes())) {
            file.extend_from_slice(made);
        }
        rest = next;
    }
    append_manifest(&mut file, manifest);
    file
}

/// Puts a manifest behind what there is of a file.
pub fn append_manifest(file: &mut Vec<u8>, manifest: &Value) {
    let name_bytes = u8::try_from(SECTION.len()).expect("a short name");
    let body = [&[name_bytes], SECTION.as_bytes(), manifest.to_string().as_bytes()].concat();
    file.push(0);
    let mut size = body.len();
    loop {
        let seven = u8::try_from(size & 0x7f).expect("seven bits");
        size >>= 7;
        if size == 0 {
            file.push(seven);
            break;
        }
        file.push(seven | 0x80);
    }
    file.extend(body);
}

/// A number at the beginning of bytes, and what follows it.
fn leb128(bytes: &[u8]) -> (usize, &[u8]) {
    let (mut number, mut shift) = (0, 0);
    for (place, byte) in bytes.iter().enumerate() {
        number |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return (number, &bytes[place + 1..]);
        }
    }
    panic!("a component ends inside a number");
}
