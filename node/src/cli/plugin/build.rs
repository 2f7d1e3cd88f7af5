//! `build`: the component of a plugin's project.
//!
//! ```text
//! plugin.toml --checked--> manifest ----+
//! src/ --cargo--> core module --encoded-+--> component --looked at as a node does--> NAME.wasm
//! ```

use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::arguments::{Build, Output};
use super::load::read;
use super::output::{self, hex};
use super::toolchain::{self, TARGET, Toolchain};
use crate::plugin::{self, Kind};

pub(super) const MANIFEST: &str = "plugin.toml";

/// A plugin is small and whole; what an author's shell says goes before this. Names of functions stay, for traps.
const PROFILE: [(&str, &str); 6] = [
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s"),
    ("CARGO_PROFILE_RELEASE_LTO", "fat"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_RELEASE_PANIC", "abort"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
    ("CARGO_PROFILE_RELEASE_STRIP", "debuginfo"),
];

pub(super) fn build(output: Output, build: &Build) -> anyhow::Result<bool> {
    let project = &build.path;
    let toml = project.join(MANIFEST);
    let text = fs::read_to_string(&toml)
        .with_context(|| format!("{}: a plugin's project has one, as `kuorum plugin new` writes it", toml.display()))?;
    let (manifest, section) =
        plugin::Manifest::parse_toml(&text).map_err(|problem| anyhow!("{}: {problem}", toml.display()))?;

    let module = match &build.module {
        Some(module) => module.clone(),
        None => compiled(project, &manifest.name)?,
    };
    let bytes = read(&module)?;
    let component =
        plugin::component_of(&bytes, &section).map_err(|problem| anyhow!("{}: {problem}", module.display()))?;
    let (_, kinds) = plugin::stated(&component).map_err(|problem| anyhow!("{}: {problem}", project.display()))?;
    let out = build.out.clone().unwrap_or_else(|| project.join(format!("{}.wasm", manifest.name)));
    fs::write(&out, &component).with_context(|| out.display().to_string())?;

    let kinds: Vec<&str> = kinds.into_iter().map(Kind::as_str).collect();
    let sha256 = hex(&Sha256::digest(&component));
    // Without the "./" of the default.
    let shown = out.strip_prefix(".").unwrap_or(&out);
    match output {
        Output::Json => output::json(&json!({
            "name": manifest.name,
            "version": manifest.version,
            "kinds": kinds,
            "file": shown,
            "bytes": component.len(),
            "sha256": sha256,
        })),
        Output::Table => {
            let kinds = kinds.join(", ");
            output::line(&format!("{}: {} {}, {kinds}", shown.display(), manifest.name, manifest.version));
            output::line(&format!("  {} bytes, sha256 {sha256}", component.len()));
        }
    }
    Ok(true)
}

/// Has cargo make the project's core module, and returns where that is.
fn compiled(project: &Path, name: &str) -> anyhow::Result<PathBuf> {
    if !project.join("Cargo.toml").is_file() {
        bail!(
            "{} has no Cargo.toml: for a plugin that is not written in Rust, say with --module where its core module is",
            project.display()
        );
    }
    let toolchain = Toolchain::find(project)?;
    eprintln!("compiling {name} for {TARGET}");
    let mut cargo = toolchain::cargo(project);
    // The crate's other type would keep cargo from optimizing it as a whole.
    cargo.args(["rustc", "--release", "--lib", "--crate-type", "cdylib", "--target", TARGET]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    if !io::stderr().is_terminal() {
        cargo.arg("--quiet");
    }
    for (variable, value) in PROFILE {
        if std::env::var_os(variable).is_none() {
            cargo.env(variable, value);
        }
    }
    toolchain.set(&mut cargo, project);
    let output =
        cargo.stderr(Stdio::inherit()).output().context("cargo does not start: install Rust from rustup.rs")?;
    if !output.status.success() {
        bail!("cargo did not build {} ({}); what it said is above", project.display(), output.status);
    }
    module_of(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("cargo built no module of {}: its Cargo.toml needs a [lib]", project.display()))
}

/// The file of the last module that cargo tells of: that of the project itself, behind what it depends on.
fn module_of(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut files = messages.filter(|message| message["reason"] == "compiler-artifact").flat_map(|message| {
        let files = message["filenames"].as_array().cloned().unwrap_or_default();
        files.into_iter().filter_map(|file| Some(PathBuf::from(file.as_str()?)))
    });
    files.find(|file| file.extension().is_some_and(|ending| ending == "wasm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(build: &Build) -> String {
        let refusal = format!("{:#}", super::build(Output::Table, build).unwrap_err());
        assert!(!refusal.contains('\n'), "{refusal}");
        refusal
    }

    #[test]
    fn the_last_module_is_the_projects() {
        let messages = r#"{"reason":"compiler-artifact","filenames":["/t/dependency.wasm"]}
{"reason":"build-script-executed"}
{"reason":"compiler-artifact","filenames":["/t/project.wasm","/t/project.d"]}
{"reason":"build-finished","success":true}"#;
        assert_eq!(module_of(messages), Some("/t/project.wasm".into()));
        assert_eq!(module_of("no json\n"), None);
    }

    #[test]
    fn what_a_project_lacks_is_told() {
        let project = tempfile::tempdir().unwrap();
        let path = |name: &str| project.path().join(name);
        let mut build = Build { path: project.path().to_owned(), out: None, module: None };
        assert!(refusal(&build).contains("plugin.toml: a plugin's project has one"));
        fs::write(path(MANIFEST), "name = \"a\"\nversion = 1\n").unwrap();
        assert!(refusal(&build).contains("plugin.toml: line 2: invalid type"), "{}", refusal(&build));
        fs::write(path(MANIFEST), "name = \"a\"\nversion = \"1\"\n").unwrap();
        assert!(refusal(&build).contains("has no Cargo.toml"));
        build.module = Some(path("m.wasm"));
        assert!(refusal(&build).contains("m.wasm"));
        fs::write(path("m.wasm"), b"\0asm\x01\0\0\0").unwrap();
        assert!(refusal(&build).contains("does not export kuorum:policy/lifecycle"), "{}", refusal(&build));
        fs::write(path("m.wasm"), b"\0asm\x0d\0\x01\0").unwrap();
        assert!(refusal(&build).contains("is a component already"));
    }
}
