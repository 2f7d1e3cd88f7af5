//! The public keys that `--plugin-trusted-keys` names, read at start: a member that can't read one of them does not start,
//! rather than take what it should not.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};

use crate::policy::plugins::{TrustedKeys, keys_of_pem};

pub(super) fn read(files: &[PathBuf]) -> anyhow::Result<TrustedKeys> {
    let mut keys = Vec::new();
    for file in files {
        let named = || format!("--plugin-trusted-keys names {}", file.display());
        let text = std::fs::read_to_string(file).with_context(named)?;
        keys.extend(keys_of_pem(&text).map_err(|problem| anyhow!("{problem}")).with_context(named)?);
    }
    Ok(TrustedKeys::new(keys))
}
