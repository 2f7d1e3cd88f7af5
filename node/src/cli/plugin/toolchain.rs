//! Which compiler makes modules for wasm32-unknown-unknown on this machine.
//!
//! The one of the author's toolchain, where it has the target. Where it hasn't, and can't get it, Debian's `rustc-web` has a
//! compiler for it and the source of the standard library, but not the library: that is built once, and kept.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::output::hex;

pub(super) const TARGET: &str = "wasm32-unknown-unknown";

const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_LINKER: &str = "/usr/bin/wasm-ld";
/// Where a compiler looks for a target's libraries below its sysroot.
const LIBRARIES: &str = "lib/rustlib/wasm32-unknown-unknown/lib";
/// Bytes of the hashes in the names of kept libraries.
const NAME_HASH_BYTES: usize = 8;
/// To be changed with the way in which the library is built: what was kept before is then built anew.
const LIBRARY_BUILD: &str = "2";
/// Between the compiler's flags.
const FLAG_END: &str = "\x1f";

/// What would have cargo compile otherwise than is meant here, or for another target.
const FOREIGN_VARIABLES: [&str; 9] = [
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_RUSTC_WRAPPER",
    "CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS",
];

pub(super) enum Toolchain {
    /// What `cargo` uses by itself has the target.
    Own,
    Debian {
        sysroot: PathBuf,
    },
}

/// `cargo`, in this directory, undisturbed by what the author's shell says of other builds.
pub(super) fn cargo(directory: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(directory).stdin(Stdio::null());
    for name in FOREIGN_VARIABLES {
        command.env_remove(name);
    }
    command
}

impl Toolchain {
    /// Finds one for the project, or makes one.
    pub(super) fn find(project: &Path) -> anyhow::Result<Toolchain> {
        if has_target(project) {
            return Ok(Toolchain::Own);
        }
        if has_debian() {
            return Ok(Toolchain::Debian { sysroot: kept_sysroot()? });
        }
        bail!(
            "no compiler here has the target {TARGET}: run `rustup target add {TARGET}`, or on Debian \
             `apt-get install rustc-web cargo-web rust-web-src lld`"
        )
    }

    /// Has `cargo` compile the project with this.
    pub(super) fn set(&self, cargo: &mut Command, project: &Path) {
        let mut flags = Flags::default();
        match self {
            Toolchain::Own => {}
            Toolchain::Debian { sysroot } => {
                flags.push("-Cpanic=abort");
                flags.push("--sysroot");
                flags.push(sysroot);
                cargo.env("RUSTC", DEBIAN_RUSTC).env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", DEBIAN_LINKER);
            }
        }
        flags.rename_places(project);
        flags.set(cargo);
    }
}

/// What the compiler is told beside what cargo tells it.
#[derive(Default)]
struct Flags(OsString);

impl Flags {
    fn push(&mut self, flag: impl AsRef<OsStr>) {
        if !self.0.is_empty() {
            self.0.push(FLAG_END);
        }
        self.0.push(flag);
    }

    /// Has files below a directory of this machine called otherwise where the module names them, in what is said of panics:
    /// who built a plugin, and where, is nobody's business and no part of its hash.
    fn rename(&mut self, directory: &Path, name: &str) {
        let mut renamed = directory.as_os_str().to_owned();
        renamed.push("=");
        renamed.push(name);
        self.push("--remap-path-prefix");
        self.push(renamed);
    }

    /// The author's directories. The last that fits is the one that counts.
    fn rename_places(&mut self, project: &Path) {
        if let Some(home) = cargo_home() {
            self.rename(&home, "cargo");
        }
        let mut metadata = cargo(project);
        metadata.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).stderr(Stdio::null());
        // Where cargo can't tell, it says so when it builds.
        let metadata = printed(metadata).and_then(|text| serde_json::from_str::<Value>(&text).ok()).unwrap_or_default();
        if let Some(root) = metadata["workspace_root"].as_str() {
            self.rename(Path::new(root), ".");
        }
        // What is made while building, and built in: it may lie in the workspace or elsewhere.
        if let Some(target) = metadata["target_directory"].as_str() {
            self.rename(Path::new(target), "target");
        }
        let packages = metadata["packages"].as_array().into_iter().flatten();
        for dependency in packages.flat_map(|package| package["dependencies"].as_array().into_iter().flatten()) {
            if let (Some(path), Some(name)) = (dependency["path"].as_str(), dependency["name"].as_str()) {
                self.rename(Path::new(path), name);
            }
        }
    }

    /// This variable goes before all other places that flags come from, an author's files of cargo included, and is not for
    /// what runs on this machine while building.
    fn set(&self, cargo: &mut Command) {
        cargo.env("CARGO_ENCODED_RUSTFLAGS", &self.0);
    }
}

/// Where cargo keeps the sources of what it downloads.
fn cargo_home() -> Option<PathBuf> {
    variable("CARGO_HOME").or_else(|| Some(variable("HOME")?.join(".cargo")))
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Whether the compiler that cargo starts in this directory has the target's library.
fn has_target(project: &Path) -> bool {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc")));
    rustc.current_dir(project).args(["--print", "target-libdir", "--target", TARGET]);
    let Some(libraries) = printed(rustc) else { return false };
    let Ok(entries) = fs::read_dir(libraries.trim_end()) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libstd-"))
}

/// What a program printed, if it ran well.
fn printed(mut command: Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

/// Whether all that is needed of Debian is there: its compiler with the source of its standard library, and the linker.
fn has_debian() -> bool {
    let mut rustc = Command::new(DEBIAN_RUSTC);
    rustc.args(["--print", "sysroot"]);
    let Some(sysroot) = printed(rustc) else { return false };
    let library = Path::new(sysroot.trim_end()).join("lib/rustlib/src/rust/library");
    library.join("std").is_dir() && Path::new(DEBIAN_LINKER).is_file()
}

/// The standard library, built for Debian's compiler. Kept under a name that has the compiler's version in it, and a hash of
/// the library: cargo then sees it when it was built anew.
fn kept_sysroot() -> anyhow::Result<PathBuf> {
    let cache = cache_dir()?;
    let mut rustc = Command::new(DEBIAN_RUSTC);
    rustc.arg("-vV");
    let version = printed(rustc).with_context(|| format!("{DEBIAN_RUSTC} does not tell its version"))?;
    let compiler = short_hash(&Sha256::new().chain_update(version).chain_update(LIBRARY_BUILD).finalize());
    fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    for entry in fs::read_dir(&cache).with_context(|| cache.display().to_string())? {
        let entry = entry.with_context(|| cache.display().to_string())?;
        if entry.file_name().to_string_lossy().starts_with(&compiler) {
            return Ok(entry.path());
        }
    }

    let building = cache.join(format!(".building-{}", std::process::id()));
    let built = build_library(&building).and_then(|sysroot| {
        let place = cache.join(format!("{compiler}-{}", library_hash(&sysroot)?));
        // Whoever came first has built the same.
        match fs::rename(&sysroot, &place) {
            Err(_) if place.is_dir() => Ok(place),
            renamed => renamed.with_context(|| place.display().to_string()).map(|()| place),
        }
    });
    // What is left is of no use, and the next build uses another name.
    fs::remove_dir_all(&building).ok();
    built.context("Rust's standard library for wasm32-unknown-unknown")
}

fn cache_dir() -> anyhow::Result<PathBuf> {
    let caches = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let caches = caches.context("there is nowhere to keep the standard library: set HOME or XDG_CACHE_HOME")?;
    Ok(caches.join("kuorum").join("wasm-std"))
}

/// Has cargo build the library for an empty crate, and gathers what came of it.
fn build_library(directory: &Path) -> anyhow::Result<PathBuf> {
    eprintln!("building Rust's standard library for {TARGET}, once: about a minute");
    let source = directory.join("src");
    fs::create_dir_all(&source).with_context(|| source.display().to_string())?;
    let package =
        "[package]\nname = \"empty\"\nedition = \"2021\"\n[profile.release]\npanic = \"abort\"\n[workspace]\n";
    fs::write(directory.join("Cargo.toml"), package)?;
    fs::write(source.join("lib.rs"), "#![no_std]\n")?;
    let target = directory.join("target");
    let mut flags = Flags::default();
    // Without the bitcode, no plugin could be optimized as a whole.
    flags.push("-Cembed-bitcode=yes");
    flags.rename_places(directory);
    let mut cargo = cargo(directory);
    flags.set(&mut cargo);
    let status = cargo
        .args(["build", "--quiet", "--release", "-Zbuild-std=std,panic_abort", "--target", TARGET])
        .env("RUSTC", DEBIAN_RUSTC)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", DEBIAN_LINKER)
        .stdout(Stdio::null())
        .status()
        .context("cargo does not start")?;
    if !status.success() {
        bail!("cargo did not build it ({status}); what it said is above");
    }
    let libraries = directory.join("sysroot").join(LIBRARIES);
    fs::create_dir_all(&libraries)?;
    for entry in fs::read_dir(target.join(TARGET).join("release/deps"))? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        let is_library = path.extension().is_some_and(|ending| ending == "rlib");
        if is_library && !name.to_string_lossy().starts_with("libempty-") {
            fs::copy(&path, libraries.join(name))?;
        }
    }
    Ok(directory.join("sysroot"))
}

fn library_hash(sysroot: &Path) -> anyhow::Result<String> {
    let mut files = fs::read_dir(sysroot.join(LIBRARIES))?.collect::<Result<Vec<_>, _>>()?;
    files.sort_by_key(fs::DirEntry::file_name);
    let mut hash = Sha256::new();
    for file in files {
        hash.update(fs::read(file.path())?);
    }
    Ok(short_hash(&hash.finalize()))
}

fn short_hash(hash: &[u8]) -> String {
    hex(&hash[..NAME_HASH_BYTES])
}
