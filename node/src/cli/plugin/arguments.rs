//! The command line of `kuorum plugin`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use kuorum_proto::kuorum::v1::{PluginLimits, PluginMode};

use crate::plugin::{Key, Kind};

const DEFAULT_ENDPOINT: &str = "127.0.0.1:2379";
/// For shells in which many commands go to the same members, as etcdctl has it.
const ENDPOINTS_VARIABLE: &str = "KUORUM_ENDPOINTS";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20);
const DEFAULT_WAIT: Duration = Duration::from_secs(60);
/// As long as a member lets anyone wait.
const WAIT_MAX: Duration = Duration::from_secs(600);

pub(super) const USAGE: &str = "Usage: kuorum plugin COMMAND [NAME] [flags]

Writing a plugin, for which no member has to run:
  new NAME                 Write a project with a small plugin that works.
      --kind KIND          admission (default), compaction, quota, backup-schedule or backup-target.
      --path DIR           Where to (default ./NAME).
      --sdk DIR            Where the directory plugin-sdk of Kuorum's source is (default: looked for around DIR).
  build                    Build a project for wasm32-unknown-unknown, and make the component of it.
      --path DIR           The project (default .).
      --out FILE           The component (default DIR/NAME.wasm).
      --module FILE        Take this core module instead of running cargo: of a plugin that is not written in Rust.
  test FILE                Ask a component, in two new instances and again in one that has been asked before, and fail
                           where the answers differ.
      --config FILE | --config-json TEXT
                           Its configuration (default {}).
      --questions FILE     What to ask, in JSON (default: made from its manifest).

Running plugins:
  load FILE                Bring a plugin into the cluster as its candidate, and wait until every member has prepared it.
      --name NAME          Refuse the file if its manifest names another plugin.
      --config FILE | --config-json TEXT
                           Its configuration (default {}).
      --kv-read PREFIX     Let it read keys that begin so, of those that its manifest asks for; may be given several
                           times. hex:00ff for bytes.
      --fuel N  --memory-bytes N  --deadline-ms N
                           Limits of one call (default: what the plugin's manifest asks for).
      --signature FILE     The Ed25519 signature of FILE, for members that demand one.
      --wait SECONDS       How long to wait for the members (default 60).
  list                     Every plugin.
  inspect NAME             One plugin, with its revisions and which members have prepared them.
  shadow NAME              Ask the candidate, or the current revision, and note what it says without following it.
  activate NAME            Enforce the candidate, or the current revision.
  off NAME                 Ask no revision of it any more.
  rollback NAME            Put the revision before in the place of the current one.
  remove NAME              Forget a plugin that is off.
  tail NAME                Follow what it decides and says.

Of shadow, activate and off:
      --revision N         The revision that is meant, if not the newest.
Of shadow, activate, off and rollback:
      --expected-epoch N   Refuse the change when another policy epoch is in force (default, but for off: the one in
                           force when the command begins).
Of shadow, activate and rollback:
      --allow-missing-members
                           Go on though not every voter has prepared the revision, as long as one has.

Of all that run plugins:
      --endpoints LIST     Members to speak to, host:port, by commas; the first that answers is asked
                           (default the variable KUORUM_ENDPOINTS, or 127.0.0.1:2379).
      --timeout SECONDS    How long to wait for an answer (default 20).
Of all:
      --output FORMAT      table or json (default table).
";

/// What was asked for.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    /// The command as it was typed.
    pub(super) word: String,
    pub(super) output: Output,
    pub(super) action: Action,
}

/// Which members to speak to, and how long.
#[derive(Debug, PartialEq)]
pub(super) struct Members {
    pub(super) endpoints: Vec<String>,
    pub(super) timeout: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Output {
    Table,
    Json,
}

#[derive(Debug, PartialEq)]
pub(super) enum Action {
    /// For the author of a plugin.
    Author(Authoring),
    /// For the operator of a cluster.
    Operator(Members, Operation),
}

#[derive(Debug, PartialEq)]
pub(super) enum Authoring {
    New(New),
    Build(Build),
    Test(Test),
}

#[derive(Debug, PartialEq)]
pub(super) struct New {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) path: PathBuf,
    pub(super) sdk: Option<PathBuf>,
}

#[derive(Debug, PartialEq)]
pub(super) struct Build {
    pub(super) path: PathBuf,
    pub(super) out: Option<PathBuf>,
    pub(super) module: Option<PathBuf>,
}

#[derive(Debug, PartialEq)]
pub(super) struct Test {
    pub(super) component: PathBuf,
    pub(super) config: Configuration,
    pub(super) questions: Option<PathBuf>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Operation {
    Load(Load),
    List,
    Inspect { name: String },
    SetMode(SetMode),
    Rollback(Change),
    Remove { name: String },
    Tail { name: String },
}

#[derive(Debug, PartialEq)]
pub(super) struct Load {
    pub(super) component: PathBuf,
    /// That the file has to have, if it was named.
    pub(super) name: Option<String>,
    pub(super) config: Configuration,
    pub(super) kv_read: Vec<Bytes>,
    pub(super) limits: PluginLimits,
    pub(super) signature: Option<PathBuf>,
    pub(super) wait: Duration,
}

#[derive(Debug, PartialEq)]
pub(super) enum Configuration {
    None,
    File(PathBuf),
    Text(String),
}

#[derive(Debug, PartialEq)]
pub(super) struct SetMode {
    pub(super) mode: PluginMode,
    /// 0 when none was named.
    pub(super) revision: u64,
    pub(super) change: Change,
}

#[derive(Debug, PartialEq)]
pub(super) struct Change {
    pub(super) name: String,
    pub(super) expected_epoch: Option<u64>,
    pub(super) allow_missing_members: bool,
}

pub(super) enum Parsed {
    Request(Box<Request>),
    Help,
}

/// Reads the words after `kuorum plugin`. An error is a mistake, in a few words.
pub(super) fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Parsed, String> {
    let mut words = Vec::new();
    for argument in arguments {
        words.push(argument.into_string().map_err(|bytes| format!("argument {bytes:?} is not UTF-8"))?);
    }
    if words.is_empty() || words.iter().any(|word| matches!(word.as_str(), "-h" | "--help" | "help")) {
        return Ok(Parsed::Help);
    }
    let mut flags = Flags::split(words)?;
    let output = match flags.take("output")?.as_deref() {
        None | Some("table") => Output::Table,
        Some("json") => Output::Json,
        Some(other) => return Err(format!("--output is table or json, not {other:?}")),
    };
    let word = flags.word("a command")?;
    let action = match authoring(&word, &mut flags)? {
        Some(authoring) => Action::Author(authoring),
        None => Action::Operator(members(&mut flags)?, operation(&word, &mut flags)?),
    };
    flags.finish()?;
    Ok(Parsed::Request(Box::new(Request { word, output, action })))
}

fn members(flags: &mut Flags) -> Result<Members, String> {
    let named = flags.take("endpoints")?.or_else(|| std::env::var(ENDPOINTS_VARIABLE).ok());
    let endpoints = endpoints(named.as_deref().unwrap_or(DEFAULT_ENDPOINT))?;
    let timeout = flags.seconds("timeout")?.unwrap_or(DEFAULT_TIMEOUT);
    Ok(Members { endpoints, timeout })
}

/// `None`: the word is no command for authors.
fn authoring(word: &str, flags: &mut Flags) -> Result<Option<Authoring>, String> {
    Ok(Some(match word {
        "new" => Authoring::New(new(flags)?),
        "build" => Authoring::Build(Build {
            path: flags.take("path")?.map_or_else(|| PathBuf::from("."), PathBuf::from),
            out: flags.take("out")?.map(PathBuf::from),
            module: flags.take("module")?.map(PathBuf::from),
        }),
        "test" => Authoring::Test(Test {
            component: PathBuf::from(flags.word("the file of a component")?),
            config: configuration(flags)?,
            questions: flags.take("questions")?.map(PathBuf::from),
        }),
        _ => return Ok(None),
    }))
}

fn new(flags: &mut Flags) -> Result<New, String> {
    let name = flags.word("the name of a plugin")?;
    let kind = match flags.take("kind")? {
        None => Kind::Admission,
        Some(text) => {
            let known = Kind::ALL.into_iter().find(|kind| kind.as_str() == text);
            known.ok_or_else(|| format!("--kind is {}, not {text:?}", Kind::ALL.map(Kind::as_str).join(", ")))?
        }
    };
    let path = flags.take("path")?.map_or_else(|| PathBuf::from(&name), PathBuf::from);
    Ok(New { name, kind, path, sdk: flags.take("sdk")?.map(PathBuf::from) })
}

fn operation(word: &str, flags: &mut Flags) -> Result<Operation, String> {
    Ok(match word {
        "load" => Operation::Load(load(flags)?),
        "list" => Operation::List,
        "inspect" => Operation::Inspect { name: flags.word("the name of a plugin")? },
        "shadow" => Operation::SetMode(set_mode(flags, PluginMode::Shadow)?),
        "activate" => Operation::SetMode(set_mode(flags, PluginMode::Enforce)?),
        "off" => Operation::SetMode(set_mode(flags, PluginMode::Off)?),
        "rollback" => Operation::Rollback(change(flags)?),
        "remove" => Operation::Remove { name: flags.word("the name of a plugin")? },
        "tail" => Operation::Tail { name: flags.word("the name of a plugin")? },
        other => return Err(format!("there is no command {other:?}")),
    })
}

fn load(flags: &mut Flags) -> Result<Load, String> {
    let component = PathBuf::from(flags.word("the file of a component")?);
    let name = flags.take("name")?;
    let config = configuration(flags)?;
    let mut kv_read = Vec::new();
    while let Some(prefix) = flags.take_one("kv-read")? {
        kv_read.push(Key::parse(&prefix)?.0.into());
    }
    let limits = PluginLimits {
        fuel: flags.positive("fuel")?,
        memory_bytes: flags.positive("memory-bytes")?,
        deadline_ms: flags.positive("deadline-ms")?,
    };
    let signature = flags.take("signature")?.map(PathBuf::from);
    let wait = flags.seconds("wait")?.unwrap_or(DEFAULT_WAIT);
    if wait > WAIT_MAX {
        return Err(format!("--wait is {} at most", WAIT_MAX.as_secs()));
    }
    Ok(Load { component, name, config, kv_read, limits, signature, wait })
}

fn configuration(flags: &mut Flags) -> Result<Configuration, String> {
    match (flags.take("config")?, flags.take("config-json")?) {
        (None, None) => Ok(Configuration::None),
        (Some(path), None) => Ok(Configuration::File(path.into())),
        (None, Some(text)) => Ok(Configuration::Text(text)),
        (Some(_), Some(_)) => Err("--config and --config-json exclude each other".to_owned()),
    }
}

fn set_mode(flags: &mut Flags, mode: PluginMode) -> Result<SetMode, String> {
    let revision = flags.positive("revision")?;
    // Nobody has to be ready for a plugin to be switched off.
    let change = if mode == PluginMode::Off { change_of(flags, false)? } else { change(flags)? };
    Ok(SetMode { mode, revision, change })
}

fn change(flags: &mut Flags) -> Result<Change, String> {
    let allow_missing_members = flags.switch("allow-missing-members")?;
    change_of(flags, allow_missing_members)
}

fn change_of(flags: &mut Flags, allow_missing_members: bool) -> Result<Change, String> {
    Ok(Change {
        name: flags.word("the name of a plugin")?,
        expected_epoch: flags.number("expected-epoch")?,
        allow_missing_members,
    })
}

fn endpoints(list: &str) -> Result<Vec<String>, String> {
    let endpoint = |text: &str| match text.strip_prefix("http://").unwrap_or(text) {
        secure if secure.starts_with("https://") => Err("TLS is not available in this release".to_owned()),
        endpoint if endpoint.rsplit_once(':').is_some_and(|(host, port)| is_address(host, port)) => {
            Ok(format!("http://{endpoint}"))
        }
        other => Err(format!("endpoint {other:?} is not host:port")),
    };
    list.split(',').map(endpoint).collect()
}

fn is_address(host: &str, port: &str) -> bool {
    !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok_and(|port| port != 0)
}

/// Flags that stand without a value.
const SWITCHES: [&str; 1] = ["allow-missing-members"];

/// The words of a command line, each taken by whoever has a use for it.
struct Flags {
    /// Words that belong to no flag, in order.
    words: std::collections::VecDeque<String>,
    flags: Vec<(String, Option<String>)>,
}

impl Flags {
    fn split(arguments: Vec<String>) -> Result<Flags, String> {
        let mut split = Flags { words: std::collections::VecDeque::new(), flags: Vec::new() };
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let Some(flag) = argument.strip_prefix("--").filter(|flag| !flag.is_empty()) else {
                split.words.push_back(argument);
                continue;
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None if SWITCHES.contains(&flag) => (flag.to_owned(), None),
                None => (flag.to_owned(), Some(arguments.next().ok_or_else(|| format!("--{flag} needs a value"))?)),
            };
            split.flags.push((name, value));
        }
        Ok(split)
    }

    fn word(&mut self, what: &str) -> Result<String, String> {
        self.words.pop_front().ok_or_else(|| format!("{what} is missing"))
    }

    /// The value of a flag that may be given several times: of the first that is left.
    fn take_one(&mut self, name: &str) -> Result<Option<String>, String> {
        let Some(place) = self.flags.iter().position(|(known, _)| known == name) else { return Ok(None) };
        self.flags.remove(place).1.ok_or_else(|| format!("--{name} needs a value")).map(Some)
    }

    fn take(&mut self, name: &str) -> Result<Option<String>, String> {
        let value = self.take_one(name)?;
        match self.flags.iter().any(|(known, _)| known == name) {
            true => Err(format!("--{name} stands there twice")),
            false => Ok(value),
        }
    }

    fn number(&mut self, name: &str) -> Result<Option<u64>, String> {
        let Some(text) = self.take(name)? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("--{name} is a number, not {text:?}"))
    }

    /// A number that is not 0; 0 stands for none.
    fn positive(&mut self, name: &str) -> Result<u64, String> {
        match self.number(name)? {
            Some(0) => Err(format!("--{name} is 1 at least")),
            number => Ok(number.unwrap_or(0)),
        }
    }

    fn seconds(&mut self, name: &str) -> Result<Option<Duration>, String> {
        match self.number(name)? {
            Some(0) => Err(format!("--{name} is a second at least")),
            seconds => Ok(seconds.map(Duration::from_secs)),
        }
    }

    fn switch(&mut self, name: &str) -> Result<bool, String> {
        let Some(place) = self.flags.iter().position(|(known, _)| known == name) else { return Ok(false) };
        match self.flags.remove(place).1.as_deref() {
            None | Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => Err(format!("--{name} is true or false, not {other:?}")),
        }
    }

    /// Whatever is left is a mistake.
    fn finish(self) -> Result<(), String> {
        if let Some((flag, _)) = self.flags.first() {
            return Err(format!("--{flag} has no meaning here"));
        }
        match self.words.front() {
            Some(word) => Err(format!("{word:?} has no meaning here")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Box<Request>, String> {
        match parse(line.split_whitespace().map(OsString::from))? {
            Parsed::Request(request) => Ok(request),
            Parsed::Help => Err("help".to_owned()),
        }
    }

    #[test]
    fn a_load_with_everything() {
        let line = "load x.wasm --name n --config-json {\"a\":1} --kv-read /a/ --kv-read hex:00ff --fuel 5 --wait=7 \
                    --signature x.sig --endpoints a:1,http://b:2 --output json --timeout 3";
        let request = parsed(line).unwrap();
        assert_eq!(request.output, Output::Json);
        let endpoints = ["http://a:1", "http://b:2"].map(str::to_owned).to_vec();
        let members = Members { endpoints, timeout: Duration::from_secs(3) };
        let load = Load {
            component: "x.wasm".into(),
            name: Some("n".to_owned()),
            config: Configuration::Text("{\"a\":1}".to_owned()),
            kv_read: vec![Bytes::from_static(b"/a/"), Bytes::from_static(b"\0\xff")],
            limits: PluginLimits { fuel: 5, ..PluginLimits::default() },
            signature: Some("x.sig".into()),
            wait: Duration::from_secs(7),
        };
        assert_eq!(request.action, Action::Operator(members, Operation::Load(load)));
    }

    #[test]
    fn a_change_of_mode_wherever_its_flags_stand() {
        let change = Change { name: "n".to_owned(), expected_epoch: Some(4), allow_missing_members: true };
        let expected = Operation::SetMode(SetMode { mode: PluginMode::Enforce, revision: 2, change });
        for line in [
            "activate n --revision 2 --expected-epoch 4 --allow-missing-members",
            "--allow-missing-members --expected-epoch=4 activate --revision=2 n",
        ] {
            let Action::Operator(_, operation) = parsed(line).unwrap().action else { panic!("not for operators") };
            assert_eq!(operation, expected);
        }
    }

    #[test]
    fn what_authors_ask_for() {
        let authoring = |line: &str| match parsed(line).unwrap().action {
            Action::Author(authoring) => authoring,
            Action::Operator(..) => panic!("not for authors"),
        };
        let new = New { name: "a".to_owned(), kind: Kind::Admission, path: "a".into(), sdk: None };
        assert_eq!(authoring("new a"), Authoring::New(new));
        let new = New { name: "a".to_owned(), kind: Kind::BackupTarget, path: "d".into(), sdk: Some("s".into()) };
        assert_eq!(authoring("new a --kind backup-target --path d --sdk s"), Authoring::New(new));
        assert_eq!(authoring("build"), Authoring::Build(Build { path: ".".into(), out: None, module: None }));
        let config = Configuration::Text("{}".to_owned());
        let test = Test { component: "a.wasm".into(), config, questions: Some("q".into()) };
        assert_eq!(authoring("test a.wasm --config-json {} --questions q"), Authoring::Test(test));
    }

    #[test]
    fn a_mistake_is_named() {
        let mistake = |line: &str| parsed(line).unwrap_err();
        assert_eq!(mistake(""), "help");
        assert_eq!(mistake("list --help"), "help");
        assert_eq!(mistake("burn n"), "there is no command \"burn\"");
        assert_eq!(mistake("inspect"), "the name of a plugin is missing");
        assert_eq!(mistake("load"), "the file of a component is missing");
        assert_eq!(mistake("list n"), "\"n\" has no meaning here");
        assert_eq!(mistake("list --revision 3"), "--revision has no meaning here");
        assert_eq!(
            mistake("shadow n --allow-missing-members=maybe"),
            "--allow-missing-members is true or false, not \"maybe\""
        );
        assert_eq!(mistake("off n --allow-missing-members"), "--allow-missing-members has no meaning here");
        assert_eq!(mistake("list --endpoints x"), "endpoint \"x\" is not host:port");
        assert_eq!(mistake("list --endpoints https://x:1"), "TLS is not available in this release");
        for flag in ["activate n --revision", "load x --fuel", "load x --memory-bytes", "load x --deadline-ms"] {
            let name = flag.split_once("--").unwrap().1;
            assert_eq!(mistake(&format!("{flag} 0")), format!("--{name} is 1 at least"));
        }
        assert_eq!(mistake("shadow n --revision one"), "--revision is a number, not \"one\"");
        assert_eq!(mistake("list --output"), "--output needs a value");
        assert!(mistake("load x --name n --kv-read hex:0").starts_with("\"hex:0\" is no key"));
        assert_eq!(mistake("new"), "the name of a plugin is missing");
        assert!(mistake("new a --kind audit").starts_with("--kind is compaction, quota, admission, backup-schedule"));
        assert_eq!(mistake("build --endpoints a:1"), "--endpoints has no meaning here");
    }
}
