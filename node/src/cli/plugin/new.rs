//! `new`: a project with a small plugin that works, its tests with it.
//!
//! The plugin is the SDK's example of the kind, so that there is one text of it, which the SDK's own tests run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use serde_json::json;

use super::arguments::{New, Output};
use super::build::MANIFEST;
use super::output;
use crate::plugin::{Kind, check_name};

const SDK: &str = "kuorum-plugin-sdk";
/// What the SDK's directory is called in Kuorum's source.
const SDK_DIRECTORY: &str = "plugin-sdk";
/// Names that cargo or the project itself has another use for.
const TAKEN: [&str; 6] = ["alloc", "core", "proc-macro", "serde", "std", SDK];
/// Of Rust, as far as they are names of plugins; cargo takes none as a package.
const KEYWORDS: &str = "abstract as async await become box break const continue crate do dyn else enum extern false final \
    fn for gen if impl in let loop macro match mod move mut override priv pub ref return self static struct super test trait \
    true try type typeof unsafe unsized use virtual where while yield";

/// What a project of a kind begins with.
struct Template {
    source: &'static str,
    config: &'static str,
    /// Of plugin.toml, behind name, version and description.
    manifest: &'static str,
}

const ADMISSION_MANIFEST: &str = r#"
# What it is asked about: the rules say operations ("put", "delete" in transactions, "lease-grant") and what their keys
# begin with. An empty prefix stands for all keys; lease grants have none.
[[admission.match]]
ops = ["put"]
prefix = ""

[admission]
# How much of each value it is handed: "none", "all" or { first = 64 }.
value = "none"
# What becomes of a request that it does not answer for: "closed" refuses it, "open" lets it pass.
on_failure = "closed"
"#;

impl Template {
    fn of(kind: Kind) -> Template {
        let (source, config, manifest) = match kind {
            Kind::Admission => (
                include_str!("../../../../plugin-sdk/examples/tiny_admission.rs"),
                r#"{"value_bytes_max": 1024}"#,
                ADMISSION_MANIFEST,
            ),
            Kind::Compaction => {
                (include_str!("../../../../plugin-sdk/examples/tiny_compaction.rs"), r#"{"revisions": 10000}"#, "")
            }
            Kind::Quota => (include_str!("../../../../plugin-sdk/examples/tiny_quota.rs"), r#"{"percent": 90}"#, ""),
            Kind::BackupSchedule => {
                let source = include_str!("../../../../plugin-sdk/examples/tiny_backup_schedule.rs");
                (source, r#"{"hours": 24, "keep": 7}"#, "")
            }
            Kind::BackupTarget => (include_str!("../../../../plugin-sdk/examples/tiny_backup_target.rs"), "{}", ""),
        };
        Template { source, config, manifest }
    }

    /// The first line of the source says what the plugin does.
    fn description(&self) -> &'static str {
        let first = self.source.lines().next().unwrap_or_default();
        first.trim_start_matches("//!").trim().trim_end_matches('.')
    }
}

pub(super) fn create(output: Output, new: &New) -> anyhow::Result<bool> {
    let New { name, kind, path, sdk } = new;
    check_name(name).map_err(|problem| anyhow!(problem))?;
    if TAKEN.contains(&name.as_str()) || KEYWORDS.split_whitespace().any(|keyword| keyword == name) {
        bail!("{name:?} can't be the name of a crate: choose another");
    }
    refuse_what_is_there(path)?;
    let sdk = match sdk {
        Some(sdk) => checked_sdk(sdk)?,
        None => found_sdk(path)?,
    };
    for (file, text) in files(name, *kind, path, &sdk)? {
        let file = path.join(file);
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        }
        fs::write(&file, text).with_context(|| file.display().to_string())?;
    }
    match output {
        Output::Json => output::json(&json!({ "name": name, "kind": kind.as_str(), "path": path, "sdk": sdk })),
        Output::Table => {
            output::line(&format!("{}: a project of the kind {}", path.display(), kind.as_str()));
            output::line("  cargo test           runs it on this machine");
            output::line("  kuorum plugin build  makes the component");
        }
    }
    Ok(true)
}

/// Only an empty directory is written to.
fn refuse_what_is_there(path: &Path) -> anyhow::Result<()> {
    match fs::read_dir(path) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => bail!("{} is there already, and not empty", path.display()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// The SDK in this directory, by its full path.
fn checked_sdk(directory: &Path) -> anyhow::Result<PathBuf> {
    let package = directory.join("Cargo.toml");
    let text = fs::read_to_string(&package).with_context(|| format!("--sdk: {}", package.display()))?;
    if !text.contains(&format!("name = \"{SDK}\"")) {
        bail!("--sdk: {} is not the package {SDK}", package.display());
    }
    fs::canonicalize(directory).with_context(|| directory.display().to_string())
}

/// The SDK of the source that the project, or this very program, lies in.
fn found_sdk(path: &Path) -> anyhow::Result<PathBuf> {
    let project = std::path::absolute(path).with_context(|| path.display().to_string())?;
    // A program that does not know where it lies is none in the source.
    let program = std::env::current_exe().unwrap_or_default();
    let around = project.ancestors().skip(1).chain(program.ancestors().skip(1));
    let found = around.map(|directory| directory.join(SDK_DIRECTORY)).find_map(|sdk| checked_sdk(&sdk).ok());
    found.with_context(|| {
        format!("{SDK} is on no registry, and not in a directory around {}: say with --sdk where it is", path.display())
    })
}

fn files(name: &str, kind: Kind, path: &Path, sdk: &Path) -> anyhow::Result<[(&'static str, String); 6]> {
    let template = Template::of(kind);
    let description = template.description();
    let kind = kind.as_str();
    let manifest =
        format!("name = \"{name}\"\nversion = \"0.1.0\"\ndescription = {description:?}\n{}", template.manifest);
    let readme = format!(
        "# {name}\n\n{description}. A Kuorum plugin of the kind {kind}.\n\n`config.json` is a configuration of it, \
         `plugin.toml` says what it is asked about and may do.\n\n```sh\ncargo test\nkuorum plugin build\nkuorum plugin \
         test {name}.wasm --config config.json\nkuorum plugin load {name}.wasm --config config.json\n```\n"
    );
    Ok([
        ("Cargo.toml", package(name, description, path, sdk)?),
        (MANIFEST, manifest),
        ("config.json", format!("{}\n", template.config)),
        ("src/lib.rs", template.source.to_owned()),
        ("README.md", readme),
        (".gitignore", "/target\n/*.wasm\n".to_owned()),
    ])
}

fn package(name: &str, description: &str, path: &Path, sdk: &Path) -> anyhow::Result<String> {
    let sdk_text = sdk.to_str().with_context(|| format!("{} is not UTF-8", sdk.display()))?;
    let project = std::path::absolute(path).with_context(|| path.display().to_string())?;
    // Kuorum's own workspace takes what lies there as its member.
    let is_member = project.parent() == sdk.parent().map(|source| source.join("plugins")).as_deref();
    let (sdk_text, workspace) = match is_member {
        true => ("../../plugin-sdk", ""),
        false => (sdk_text, "\n# Whatever lies around this project is another.\n[workspace]\n"),
    };
    Ok(format!(
        "[package]\nname = \"{name}\"\ndescription = {description:?}\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
         # cdylib is the component, rlib is for tests in tests/.\n[lib]\ncrate-type = [\"cdylib\", \"rlib\"]\n\n\
         [dependencies]\n{SDK} = {{ path = {sdk_text:?} }}\nserde = {{ version = \"1\", features = [\"derive\"] }}\n\
         {workspace}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(name: &str, kind: Kind, path: &Path) -> New {
        let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugin-sdk");
        New { name: name.to_owned(), kind, path: path.to_owned(), sdk: Some(sdk) }
    }

    #[test]
    fn a_project_of_each_kind_has_a_manifest_that_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        for kind in Kind::ALL {
            let path = directory.path().join(kind.as_str());
            create(Output::Json, &new("a-plugin", kind, &path)).unwrap();
            let text = fs::read_to_string(path.join(MANIFEST)).unwrap();
            let (manifest, _) = crate::plugin::Manifest::parse_toml(&text).unwrap();
            assert_eq!((manifest.name.as_str(), manifest.admission.is_some()), ("a-plugin", kind == Kind::Admission));
            assert!(manifest.description.len() > 10, "{}", manifest.description);
            let package: toml::Table = fs::read_to_string(path.join("Cargo.toml")).unwrap().parse().unwrap();
            let sdk = package["dependencies"][SDK]["path"].as_str().unwrap();
            assert!(Path::new(sdk).join("Cargo.toml").is_file(), "{sdk}");
            let config = fs::read_to_string(path.join("config.json")).unwrap();
            serde_json::from_str::<serde_json::Value>(&config).unwrap();
            assert!(fs::read_to_string(path.join("src/lib.rs")).unwrap().contains("kuorum_plugin_sdk::export!"));
        }
    }

    #[test]
    fn a_bad_name_and_what_is_there_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p");
        let refusal = |new: &New| create(Output::Json, new).unwrap_err().to_string();
        for name in ["A", "", "a_b", "../a", "-a"] {
            assert!(refusal(&new(name, Kind::Quota, &path)).contains("must be a lower-case letter"), "{name}");
        }
        for name in ["core", "match", "kuorum-plugin-sdk"] {
            assert!(refusal(&new(name, Kind::Quota, &path)).contains("can't be the name of a crate"), "{name}");
        }
        fs::create_dir(&path).unwrap();
        fs::write(path.join("x"), "").unwrap();
        assert!(refusal(&new("a", Kind::Quota, &path)).ends_with("is there already, and not empty"));
        fs::remove_file(path.join("x")).unwrap();
        let wrong = New { sdk: Some(path.clone()), ..new("a", Kind::Quota, &path) };
        assert!(refusal(&wrong).starts_with("--sdk: "));
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "nothing is written of what is refused");
        create(Output::Json, &new("a", Kind::Quota, &path)).unwrap();
    }
}
