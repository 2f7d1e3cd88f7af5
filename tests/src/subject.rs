//! Which binary is under test, and which one is the truth.

use std::path::{Path, PathBuf};

/// Path of the binary under test, when it is not the one that `make` builds.
const BINARY_VARIABLE: &str = "KUORUM_BIN";
/// Set to `etcd` when the binary under test is a real etcd: the suites are then tested themselves.
const IDENTITY_VARIABLE: &str = "KUORUM_BIN_IS";
/// Directory of etcd, etcdctl and etcdutl.
const ORACLE_VARIABLE: &str = "KUORUM_ORACLE_DIR";

#[derive(Clone, Debug)]
pub struct Subject {
    pub binary: PathBuf,
    /// "kuorum" or "etcd", as it stands in messages.
    pub name: &'static str,
    /// Whether it answers as etcd does even where etcd is wrong.
    pub is_etcd: bool,
}

impl Subject {
    pub fn kuorum() -> Subject {
        let binary = match std::env::var_os(BINARY_VARIABLE) {
            Some(path) => PathBuf::from(path),
            None => target_dir().join("fast").join("kuorum"),
        };
        require(&binary, "make fast");
        Subject {
            binary,
            name: "kuorum",
            is_etcd: std::env::var(IDENTITY_VARIABLE).is_ok_and(|identity| identity == "etcd"),
        }
    }

    pub fn etcd() -> Subject {
        Subject { binary: oracle("etcd"), name: "etcd", is_etcd: true }
    }
}

/// The path of one of the oracle's programs: etcd, etcdctl or etcdutl.
pub fn oracle(program: &str) -> PathBuf {
    let directory = match std::env::var_os(ORACLE_VARIABLE) {
        Some(path) => PathBuf::from(path),
        None => target_dir().join("oracle"),
    };
    let binary = directory.join(program);
    require(&binary, "make oracle");
    binary
}

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace").to_path_buf()
}

/// Where builds and reports go.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(path) => PathBuf::from(path),
        None => workspace().join("target"),
    }
}

fn require(binary: &Path, command: &str) {
    assert!(binary.is_file(), "{} is missing: run `{command}` first", binary.display());
}
