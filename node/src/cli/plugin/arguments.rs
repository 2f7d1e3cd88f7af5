//! The command line of `kuorum plugin`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use kuorum_proto::kuorum::v1::{PluginLimits, PluginMode};

const DEFAULT_ENDPOINT: &str = "127.0.0.1:2379";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20);
const DEFAULT_WAIT: Duration = Duration::from_secs(60);
/// As long as a member lets anyone wait.
const WAIT_MAX: Duration = Duration::from_secs(600);

pub(super) const USAGE: &str = "Usage: kuorum plugin COMMAND [NAME] [flags]

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

Of all:
      --endpoints LIST     Members to speak to, host:port, by commas; the first that answers is asked
                           (default 127.0.0.1:2379).
      --output FORMAT      table or json (default table).
      --timeout SECONDS    How long to wait for an answer (default 20).
";

/// What was asked for.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    pub(super) endpoints: Vec<String>,
    pub(super) output: Output,
    pub(super) timeout: Duration,
    pub(super) action: Action,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Output {
    Table,
    Json,
}

#[derive(Debug, PartialEq)]
pub(super) enum Action {
    Load(Load),
    List,
    Inspect { name: String },
    SetMode(SetMode),
    Rollback(Change),
    Remove { name: String },
    Tail { name: String },
}

impl Action {
    /// As it is typed.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Action::Load(_) => "load",
            Action::List => "list",
            Action::Inspect { .. } => "inspect",
            Action::SetMode(change) => match change.mode {
                PluginMode::Off => "off",
                PluginMode::Shadow => "shadow",
                PluginMode::Enforce => "activate",
            },
            Action::Rollback(_) => "rollback",
            Action::Remove { .. } => "remove",
            Action::Tail { .. } => "tail",
        }
    }
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
    Request(Request),
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
    let endpoints = endpoints(flags.take("endpoints")?.as_deref().unwrap_or(DEFAULT_ENDPOINT))?;
    let output = match flags.take("output")?.as_deref() {
        None | Some("table") => Output::Table,
        Some("json") => Output::Json,
        Some(other) => return Err(format!("--output is table or json, not {other:?}")),
    };
    let timeout = flags.seconds("timeout")?.unwrap_or(DEFAULT_TIMEOUT);
    let action = action(&mut flags)?;
    flags.finish()?;
    Ok(Parsed::Request(Request { endpoints, output, timeout, action }))
}

fn action(flags: &mut Flags) -> Result<Action, String> {
    let word = flags.word("a command")?;
    Ok(match word.as_str() {
        "load" => Action::Load(load(flags)?),
        "list" => Action::List,
        "inspect" => Action::Inspect { name: flags.word("the name of a plugin")? },
        "shadow" => Action::SetMode(set_mode(flags, PluginMode::Shadow)?),
        "activate" => Action::SetMode(set_mode(flags, PluginMode::Enforce)?),
        "off" => Action::SetMode(set_mode(flags, PluginMode::Off)?),
        "rollback" => Action::Rollback(change(flags)?),
        "remove" => Action::Remove { name: flags.word("the name of a plugin")? },
        "tail" => Action::Tail { name: flags.word("the name of a plugin")? },
        other => return Err(format!("there is no command {other:?}")),
    })
}

fn load(flags: &mut Flags) -> Result<Load, String> {
    let component = PathBuf::from(flags.word("the file of a component")?);
    let name = flags.take("name")?;
    let config = match (flags.take("config")?, flags.take("config-json")?) {
        (None, None) => Configuration::None,
        (Some(path), None) => Configuration::File(path.into()),
        (None, Some(text)) => Configuration::Text(text),
        (Some(_), Some(_)) => return Err("--config and --config-json exclude each other".to_owned()),
    };
    let mut kv_read = Vec::new();
    while let Some(prefix) = flags.take_one("kv-read")? {
        kv_read.push(key(&prefix)?);
    }
    let limits = PluginLimits {
        fuel: flags.number("fuel")?.unwrap_or(0),
        memory_bytes: flags.number("memory-bytes")?.unwrap_or(0),
        deadline_ms: flags.number("deadline-ms")?.unwrap_or(0),
    };
    let signature = flags.take("signature")?.map(PathBuf::from);
    let wait = flags.seconds("wait")?.unwrap_or(DEFAULT_WAIT);
    if wait > WAIT_MAX {
        return Err(format!("--wait is {} at most", WAIT_MAX.as_secs()));
    }
    Ok(Load { component, name, config, kv_read, limits, signature, wait })
}

fn set_mode(flags: &mut Flags, mode: PluginMode) -> Result<SetMode, String> {
    let revision = flags.number("revision")?.unwrap_or(0);
    Ok(SetMode { mode, revision, change: change(flags)? })
}

fn change(flags: &mut Flags) -> Result<Change, String> {
    Ok(Change {
        name: flags.word("the name of a plugin")?,
        expected_epoch: flags.number("expected-epoch")?,
        allow_missing_members: flags.switch("allow-missing-members")?,
    })
}

/// Keys are text, or bytes in hexadecimal behind `hex:`.
fn key(text: &str) -> Result<Bytes, String> {
    let Some(digits) = text.strip_prefix("hex:") else { return Ok(Bytes::copy_from_slice(text.as_bytes())) };
    let wrong = || format!("{text:?} has no whole bytes in hexadecimal behind hex:");
    if digits.len() % 2 != 0 || !digits.is_ascii() {
        return Err(wrong());
    }
    let pair = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| wrong());
    (0..digits.len()).step_by(2).map(pair).collect()
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

    fn parsed(line: &str) -> Result<Request, String> {
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
        assert_eq!(request.endpoints, ["http://a:1", "http://b:2"]);
        assert_eq!((request.output, request.timeout), (Output::Json, Duration::from_secs(3)));
        let load = Load {
            component: "x.wasm".into(),
            name: Some("n".to_owned()),
            config: Configuration::Text("{\"a\":1}".to_owned()),
            kv_read: vec![Bytes::from_static(b"/a/"), Bytes::from_static(b"\0\xff")],
            limits: PluginLimits { fuel: 5, ..PluginLimits::default() },
            signature: Some("x.sig".into()),
            wait: Duration::from_secs(7),
        };
        assert_eq!(request.action, Action::Load(load));
    }

    #[test]
    fn a_change_of_mode_wherever_its_flags_stand() {
        let change = Change { name: "n".to_owned(), expected_epoch: Some(4), allow_missing_members: true };
        let expected = Action::SetMode(SetMode { mode: PluginMode::Enforce, revision: 2, change });
        for line in [
            "activate n --revision 2 --expected-epoch 4 --allow-missing-members",
            "--allow-missing-members --expected-epoch=4 activate --revision=2 n",
        ] {
            assert_eq!(parsed(line).unwrap().action, expected);
        }
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
            mistake("off n --allow-missing-members=maybe"),
            "--allow-missing-members is true or false, not \"maybe\""
        );
        assert_eq!(mistake("list --endpoints x"), "endpoint \"x\" is not host:port");
        assert_eq!(mistake("list --endpoints https://x:1"), "TLS is not available in this release");
        assert_eq!(mistake("shadow n --revision one"), "--revision is a number, not \"one\"");
        assert_eq!(mistake("list --output"), "--output needs a value");
        assert_eq!(
            mistake("load x --name n --kv-read hex:0"),
            "\"hex:0\" has no whole bytes in hexadecimal behind hex:"
        );
    }
}
