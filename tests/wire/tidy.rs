//! Rules about the source that the compiler does not hold: which module may name what, and what no file may contain.
//!
//! A rule looks at code only: comments are cut, and the unit tests at the end of a file are left out where they do not
//! matter.

use std::path::{Path, PathBuf};

use kuorum_tests::subject::workspace;

/// Lines of a file without its tests (style, habit 5).
const LINES_MAX: usize = 800;

/// A name that only some modules of `node/src` may use, and where.
struct Edge {
    name: &'static str,
    /// Path prefixes below `node/src`.
    allowed: &'static [&'static str],
}

const EDGES: [Edge; 14] = [
    // The engine can be replaced behind one module.
    Edge { name: "fjall", allowed: &["storage"] },
    // Consensus is a state machine that one module drives.
    Edge { name: "raft", allowed: &["consensus"] },
    // The wire ends at the front door.
    Edge { name: "tonic", allowed: &["cli", "rpc"] },
    Edge { name: "axum", allowed: &["rpc", "http", "server"] },
    Edge { name: "hyper", allowed: &["rpc", "http", "server"] },
    Edge { name: "wasmtime", allowed: &["plugin"] },
    Edge { name: "wasmparser", allowed: &["plugin"] },
    Edge { name: "wit_component", allowed: &["plugin"] },
    // Files: the store, the log, what is read at start, and a store that another member sends; `cli` reads what it is told to load; `trace` writes the log outputs, `metrics/process` reads
    // /proc, `mvcc/startup` reads and writes the dump of the key index, `plugin/cache` keeps compiled code.
    Edge {
        name: "std::fs",
        allowed: &[
            "storage",
            "log",
            "cli",
            "config/file",
            "server",
            "catch_up",
            "maintenance",
            "trace",
            "metrics/process",
            "mvcc/startup",
            "plugin/cache",
        ],
    },
    // The runtime belongs to the edges; `consensus/answers` hands an answer back to the shard that waits for it, and
    // `roster/tail` what plugins say to whoever listens.
    Edge {
        name: "tokio",
        allowed: &["cli", "rpc", "http", "server", "watch/stream", "maintenance", "consensus/answers", "roster/tail"],
    },
    // Clocks, each a seam with its own reason at the call.
    Edge {
        name: "Instant::now",
        allowed: &[
            "server",
            "rpc",
            "maintenance",
            "consensus/runner",
            "apply/thread",
            "log/disk",
            "transport/link",
            "catch_up",
            "plugin/engine",
        ],
    },
    Edge { name: "SystemTime::now", allowed: &["trace", "server", "maintenance", "rpc/cluster"] },
    Edge { name: "rand", allowed: &["server", "consensus", "rpc", "maintenance/planning"] },
    Edge { name: "protobuf", allowed: &["consensus"] },
];

/// Modules whose result depends on their input alone.
const PURE: [&str; 5] = ["apply", "mvcc", "lease", "auth", "alarm"];
/// What would make it depend on something else.
const IMPURE: [&str; 6] = ["tokio", "async", ".await", "rand", "SystemTime", "Instant"];

/// Files of the node that are tests from their first line.
const TEST_FILES: [&str; 3] = ["/tests.rs", "/model.rs", "/golden.rs"];

/// A source file, its code apart from its unit tests.
struct Source {
    /// Below the workspace.
    path: String,
    code: Vec<String>,
    tests: Vec<String>,
}

impl Source {
    fn of_text(path: &str, text: &str) -> Source {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let is_tests = path.starts_with("node/")
            && (path.contains("/tests/") || TEST_FILES.iter().any(|name| path.ends_with(name)));
        let tests_start = match is_tests {
            true => 0,
            // Only a module with a body: its declaration may stand at the head of the file, with the code behind it.
            false => lines
                .windows(2)
                .position(|pair| pair[0] == "#[cfg(test)]" && pair[1].ends_with('{'))
                .unwrap_or(lines.len()),
        };
        let (code, tests) = lines.split_at(tests_start);
        Source { path: path.to_owned(), code: code.to_vec(), tests: tests.to_vec() }
    }

    /// The path below `node/src`, for files of the node.
    fn module(&self) -> Option<&str> {
        self.path.strip_prefix("node/src/")
    }

    /// Lines of code without comments, numbered from 1.
    fn statements(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.iter().enumerate().map(|(index, line)| {
            let code = line.split_once("//").map_or(line.as_str(), |(code, _)| code);
            (index + 1, code)
        })
    }
}

/// Whether `module` is the file of one of `prefixes` or lies below its folder.
fn is_under(module: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| module.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/') || rest == ".rs"))
}

/// Whether `code` names `name` as a path of its own: `fjall::Keyspace`, `use fjall;`, but not `super::fjall` or
/// `my_fjall`.
fn names(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(start, _)| {
        let before = code[..start].chars().next_back();
        let after = &code[start + name.len()..];
        let begins = before.is_none_or(|letter| !(letter.is_alphanumeric() || matches!(letter, '_' | ':')));
        let is_call = name.contains("::") || name.starts_with('.');
        let ends = after.starts_with("::")
            || (is_call && !after.starts_with(|letter: char| letter.is_alphanumeric() || letter == '_'))
            || (code.trim_start().starts_with("use ") && after.starts_with([';', ' ']));
        begins && ends
    })
}

/// As `names`, for words that need no path behind them.
fn has_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(start, _)| {
        let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
        let before = code[..start].chars().next_back();
        let after = code[start + word.len()..].chars().next();
        (word.starts_with('.') || !before.is_some_and(is_part)) && !after.is_some_and(is_part)
    })
}

fn edges_of(source: &Source) -> Vec<String> {
    let Some(module) = source.module() else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    for (number, code) in source.statements() {
        for edge in &EDGES {
            if names(code, edge.name) && !is_under(module, edge.allowed) {
                problems.push(format!("{}:{number}: only {:?} may name {}", source.path, edge.allowed, edge.name));
            }
        }
    }
    problems
}

fn impurities_of(source: &Source) -> Vec<String> {
    let is_pure = source.module().is_some_and(|module| {
        // The thread around apply measures how long a batch took; what a batch does is decided beside it.
        is_under(module, &PURE) && !is_under(module, &["apply/thread"])
    });
    if !is_pure {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for (number, code) in source.statements() {
        for word in IMPURE.iter().filter(|word| has_word(code, word)) {
            problems.push(format!("{}:{number}: {word} in a pure module", source.path));
        }
    }
    problems
}

fn length_of(source: &Source) -> Vec<String> {
    match source.code.len() {
        lines if lines > LINES_MAX => {
            vec![format!("{}: {lines} lines without tests, {LINES_MAX} at most", source.path)]
        }
        _ => Vec::new(),
    }
}

/// Written apart, so that this file does not break its own rule.
fn banned() -> [String; 4] {
    ["todo!", "unimplemented!", "dbg!", "#[ignore"].map(str::to_owned)
}

fn leftovers_of(source: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    let lines = source.code.iter().chain(&source.tests);
    for (index, line) in lines.enumerate() {
        let number = index + 1;
        for word in
            banned().iter().filter(|word| line.trim_start().starts_with(*word) || line.contains(&format!(" {word}")))
        {
            problems.push(format!("{}:{number}: {word}", source.path));
        }
        let marks = ["TODO", "FIXME", "XXX"];
        let mark = marks.iter().find(|mark| has_word(line, mark));
        if let Some(mark) = mark.filter(|_| line.contains("//") && !line.contains('#')) {
            problems.push(format!("{}:{number}: {mark} without an issue number", source.path));
        }
    }
    problems
}

fn problems_of(source: &Source) -> Vec<String> {
    [edges_of, impurities_of, length_of, leftovers_of].iter().flat_map(|rule| rule(source)).collect()
}

/// Every Rust file of the workspace but this one, which quotes what it forbids.
fn sources() -> Vec<Source> {
    let root = workspace();
    let mut sources = Vec::new();
    for package in ["node", "plugin-sdk", "plugins", "proto", "tests"] {
        walk(&root.join(package), &mut |path| {
            let below = path.strip_prefix(&root).expect("a walk stays below its root");
            let below = below.to_string_lossy().into_owned();
            if below.ends_with(".rs") && below != "tests/wire/tidy.rs" {
                let text = std::fs::read_to_string(path).expect("a source file is text");
                sources.push(Source::of_text(&below, &text));
            }
        });
    }
    assert!(sources.len() > 50, "the walk found {} files", sources.len());
    sources
}

fn walk(directory: &Path, visit: &mut impl FnMut(&Path)) {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a directory can be listed").path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() && !path.ends_with("target") {
            walk(&path, visit);
        } else if path.is_file() {
            visit(&path);
        }
    }
}

#[test]
fn the_source_keeps_its_rules() {
    let problems: Vec<String> = sources().iter().flat_map(problems_of).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_directory_of_scripts_has_scripts() {
    for directory in ["node/testscripts", "tests/wire/edges"] {
        let Ok(entries) = std::fs::read_dir(workspace().join(directory)) else {
            continue;
        };
        for entry in entries {
            let path = entry.expect("a directory can be listed").path();
            let mut files = 0;
            walk(&path, &mut |_| files += 1);
            assert!(files > 0, "{} holds no script", path.display());
        }
    }
}

#[test]
fn bad_text_is_seen_by_the_rules() {
    let bad = [
        ("node/src/mvcc/store.rs", "use fjall::Keyspace;"),
        ("node/src/apply.rs", "    let now = std::time::Instant::now();"),
        ("node/src/lease.rs", "pub(crate) async fn grant() {}"),
        ("node/src/alarm.rs", "    answer.await"),
        ("node/src/storage.rs", "use raft::RawNode;"),
        ("node/src/watch.rs", "use tonic::Status;"),
        ("node/src/mvcc.rs", "use tokio;"),
        ("node/src/command.rs", "    std::fs::read(path)?;"),
        ("node/src/storage_other.rs", "use fjall::Batch;"),
        ("node/src/main.rs", "    todo!()"),
        ("node/src/main.rs", "    let x = unimplemented!();"),
        ("node/src/main.rs", "    dbg!(x);"),
        ("plugin-sdk/src/lib.rs", "#[ignore = \"slow\"]"),
        ("tests/src/lib.rs", "// TODO: later"),
    ];
    for (path, text) in bad {
        let problems = problems_of(&Source::of_text(path, text));
        assert!(!problems.is_empty(), "{path}: {text}: no rule minds");
    }
    let below_a_declaration = "#[cfg(test)]\nmod tests;\n\nuse fjall::Keyspace;\n";
    assert_eq!(problems_of(&Source::of_text("node/src/log.rs", below_a_declaration)).len(), 1);
    let long = "let a = 1;\n".repeat(LINES_MAX + 1);
    assert_eq!(problems_of(&Source::of_text("node/src/main.rs", &long)).len(), 1);
    let ignored_test = "fn f() {}\n#[cfg(test)]\nmod tests {\n    #[ignore]\n}\n";
    assert_eq!(problems_of(&Source::of_text("node/src/main.rs", ignored_test)).len(), 1);
}

#[test]
fn good_text_is_left_alone() {
    let good = [
        ("node/src/storage.rs", "use fjall::Keyspace;"),
        ("node/src/storage/batch.rs", "use fjall::Batch;"),
        ("node/src/mvcc.rs", "// fjall::Keyspace would be named in storage"),
        ("node/src/consensus/driver.rs", "use raft::RawNode;"),
        ("node/src/mvcc.rs", "use crate::raft::nothing; let my_tokio = 1;"),
        ("node/src/apply.rs", "let operand = random_access(asynchronous);"),
        ("tests/src/lib.rs", "// TODO(#12): later"),
    ];
    for (path, text) in good {
        let problems = problems_of(&Source::of_text(path, text));
        assert!(problems.is_empty(), "{problems:?}");
    }
    let long_tests = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{}", "let a = 1;\n".repeat(2 * LINES_MAX));
    assert!(problems_of(&Source::of_text("node/src/main.rs", &long_tests)).is_empty());
}
