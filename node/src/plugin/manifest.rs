//! What a plugin says about itself, in its custom section `kuorum-manifest`.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use super::compile::one_line;
use super::limits::{AskedLimits, Limits};

pub(super) const SECTION: &str = "kuorum-manifest";

/// A manifest is a page of text; what is longer is none.
const MANIFEST_BYTES_MAX: usize = 64 * 1024;
const NAME_CHARS_MAX: usize = 63;
const TEXT_BYTES_MAX: usize = 1024;
const RULES_MAX: usize = 64;
const PREFIXES_MAX: usize = 64;
const PREFIX_BYTES_MAX: usize = 1024;
/// The most of a value that travels with a request; more is read on demand.
pub(super) const VALUE_INLINE_BYTES_MAX: u32 = 8 * 1024;

/// A plugin's name, the kinds it is made for, and what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) name: String,
    pub(crate) version: String,
    #[serde(default)]
    pub(crate) description: String,
    #[serde(default)]
    pub(crate) admission: Option<AdmissionManifest>,
    /// Prefixes it asks to read.
    #[serde(default)]
    pub(crate) kv_read: Vec<Key>,
    #[serde(default)]
    pub(crate) limits: AskedLimits,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AdmissionManifest {
    #[serde(rename = "match")]
    pub(crate) rules: Vec<Rule>,
    #[serde(default)]
    pub(crate) value: ValueShown,
    #[serde(default)]
    pub(crate) on_failure: OnFailure,
}

/// Which operations a plugin is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) ops: Vec<OpKind>,
    /// Absent for rules of lease grants alone.
    #[serde(default)]
    pub(crate) prefix: Option<Key>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OpKind {
    Put,
    Delete,
    LeaseGrant,
}

/// How much of a value comes with the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ValueShown {
    #[default]
    None,
    /// Up to 8 KiB.
    All,
    First(u32),
}

/// What becomes of a matched request that the plugin could not be asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnFailure {
    #[default]
    Closed,
    Open,
}

/// A key or a prefix: text, or `hex:` and its bytes in hexadecimal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(pub(crate) Vec<u8>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl Key {
    /// Reads it as it stands in manifests.
    pub(crate) fn parse(text: &str) -> Result<Key, String> {
        let Some(digits) = text.strip_prefix("hex:") else {
            return Ok(Key(text.as_bytes().to_vec()));
        };
        let byte = |pair: &[u8]| u8::try_from(digit(pair[0])? * 16 + digit(*pair.get(1)?)?).ok();
        digits
            .as_bytes()
            .chunks(2)
            .map(byte)
            .collect::<Option<Vec<u8>>>()
            .map(Key)
            .ok_or_else(|| format!("{text:?} is no key: behind \"hex:\" stand pairs of hexadecimal digits"))
    }
}

fn digit(letter: u8) -> Option<u32> {
    char::from(letter).to_digit(16)
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key as text")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Key, E> {
                Key::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl Manifest {
    /// Reads and checks the text of the section. The error is one sentence for the author.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Manifest, String> {
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(format!("the manifest has {} bytes, {MANIFEST_BYTES_MAX} at most", bytes.len()));
        }
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|error| format!("the manifest: {}", one_line(&error.to_string())))?;
        manifest.check().map_err(|problem| format!("the manifest: {problem}"))?;
        Ok(manifest)
    }

    /// Reads what an author writes, `plugin.toml`, and returns it with the text of its section. The error is one sentence
    /// that names the line where there is one.
    pub(crate) fn parse_toml(text: &str) -> Result<(Manifest, String), String> {
        let told = |error: toml::de::Error| {
            let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
            let what = one_line(error.message());
            line.map_or(what.clone(), |line| format!("line {line}: {what}"))
        };
        let manifest: Manifest = toml::from_str(text).map_err(told)?;
        manifest.check()?;
        let section: serde_json::Value = toml::from_str(text).map_err(told)?;
        Ok((manifest, section.to_string()))
    }

    fn check(&self) -> Result<(), String> {
        check_name(&self.name)?;
        for (field, text) in [("version", &self.version), ("description", &self.description)] {
            if text.len() > TEXT_BYTES_MAX {
                return Err(format!("{field} has {} bytes, {TEXT_BYTES_MAX} at most", text.len()));
            }
        }
        if self.version.is_empty() {
            return Err("version is empty".to_owned());
        }
        if self.kv_read.len() > PREFIXES_MAX {
            return Err(format!("kv_read names {} prefixes, {PREFIXES_MAX} at most", self.kv_read.len()));
        }
        self.kv_read.iter().try_for_each(|prefix| check_prefix("kv_read", prefix))?;
        Limits::resolve(&AskedLimits::default(), &self.limits)?;
        self.admission.as_ref().map_or(Ok(()), AdmissionManifest::check)
    }
}

impl AdmissionManifest {
    fn check(&self) -> Result<(), String> {
        if !(1..=RULES_MAX).contains(&self.rules.len()) {
            return Err(format!("admission.match has {} rules, and must have 1 to {RULES_MAX}", self.rules.len()));
        }
        if let ValueShown::First(bytes) = self.value
            && !(1..=VALUE_INLINE_BYTES_MAX).contains(&bytes)
        {
            return Err(format!("admission.value.first is {bytes}, and must be 1 to {VALUE_INLINE_BYTES_MAX}"));
        }
        self.rules.iter().enumerate().try_for_each(|(index, rule)| {
            rule.check().map_err(|problem| format!("admission.match[{index}]: {problem}"))
        })
    }
}

impl Rule {
    fn check(&self) -> Result<(), String> {
        let with_keys = self.ops.iter().any(|op| *op != OpKind::LeaseGrant);
        match &self.prefix {
            _ if self.ops.is_empty() => Err("ops is empty".to_owned()),
            None if with_keys => {
                Err("a rule of puts or deletes needs a prefix; an empty one stands for all keys".to_owned())
            }
            Some(_) if self.ops.contains(&OpKind::LeaseGrant) => {
                Err("a lease grant has no key: give it a rule of its own, without a prefix".to_owned())
            }
            Some(prefix) => check_prefix("prefix", prefix),
            None => Ok(()),
        }
    }
}

fn check_prefix(field: &str, prefix: &Key) -> Result<(), String> {
    match prefix.0.len() {
        0..=PREFIX_BYTES_MAX => Ok(()),
        bytes => Err(format!("{field} holds a prefix of {bytes} bytes, {PREFIX_BYTES_MAX} at most")),
    }
}

/// Whether a plugin can be called so. The error is one sentence.
pub(crate) fn check_name(text: &str) -> Result<(), String> {
    let is_part = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
    let is_name = text.len() <= NAME_CHARS_MAX
        && text.bytes().next().is_some_and(|first| first.is_ascii_lowercase())
        && text.bytes().all(is_part);
    if is_name {
        return Ok(());
    }
    let rest_max = NAME_CHARS_MAX - 1;
    Err(format!(
        "name {text:?} must be a lower-case letter followed by up to {rest_max} lower-case letters, digits or dashes"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str, part: &str) {
        let error = Manifest::parse(text.as_bytes()).unwrap_err();
        assert!(error.contains(part), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn a_whole_manifest_is_read() {
        let text = r#"{"name":"admission-guard","version":"0.1.0","description":"d",
            "admission":{"match":[{"ops":["put","delete"],"prefix":"hex:2f00ff"},{"ops":["lease-grant"]}],
                         "value":{"first":64},"on_failure":"open"},
            "kv_read":["/quota/"],"limits":{"fuel":1000}}"#;
        let manifest = Manifest::parse(text.as_bytes()).unwrap();
        let admission = manifest.admission.unwrap();
        assert_eq!(admission.rules[0].prefix, Some(Key(vec![0x2f, 0, 0xff])));
        assert_eq!(admission.value, ValueShown::First(64));
        assert_eq!(admission.on_failure, OnFailure::Open);
        assert_eq!(manifest.limits.fuel, Some(1000));
    }

    #[test]
    fn what_is_left_out_is_the_default() {
        let text = r#"{"name":"a","version":"1","admission":{"match":[{"ops":["put"],"prefix":""}]}}"#;
        let admission = Manifest::parse(text.as_bytes()).unwrap().admission.unwrap();
        assert_eq!(admission.value, ValueShown::None);
        assert_eq!(admission.on_failure, OnFailure::Closed);
    }

    #[test]
    fn a_bad_manifest_is_refused_with_the_name_of_the_field() {
        refused("{", "the manifest: EOF while parsing");
        refused(r#"{"name":"a","version":"1","colour":1}"#, "unknown field `colour`");
        refused(r#"{"name":"a"}"#, "missing field `version`");
        refused(r#"{"name":"A","version":"1"}"#, "name \"A\" must be");
        refused(r#"{"name":"a","version":"1","kv_read":["hex:0"]}"#, "\"hex:0\" is no key");
        refused(r#"{"name":"a","version":"1","kv_read":["hex:+1"]}"#, "\"hex:+1\" is no key");
        refused(
            r#"{"name":"a","version":"1","limits":{"fuel":0}}"#,
            "limits.fuel is 0, and must be from 1 to 5000000000",
        );
        refused(r#"{"name":"a","version":"1","limits":{"fuel":-1}}"#, "invalid value: integer `-1`");
        let admission = |rest: &str| format!(r#"{{"name":"a","version":"1","admission":{{{rest}}}}}"#);
        refused(&admission(r#""match":[]"#), "admission.match has 0 rules");
        refused(
            &admission(r#""match":[{"ops":["put"]}]"#),
            "admission.match[0]: a rule of puts or deletes needs a prefix",
        );
        refused(&admission(r#""match":[{"ops":["lease-grant"],"prefix":"/"}]"#), "a lease grant has no key");
        refused(&admission(r#""match":[{"ops":["range"],"prefix":"/"}]"#), "unknown variant `range`");
        refused(
            &admission(r#""match":[{"ops":["put"],"prefix":"/"}],"value":{"first":9000}"#),
            "admission.value.first is 9000",
        );
    }

    #[test]
    fn what_an_author_writes_becomes_the_section() {
        let text = "name = \"a\"\nversion = \"1\"\nkv_read = [\"/l/\"]\n[[admission.match]]\nops = [\"put\"]\nprefix = \"\"\n\
                    [admission]\nvalue = { first = 64 }\n";
        let (manifest, section) = Manifest::parse_toml(text).unwrap();
        assert_eq!(manifest.admission.as_ref().unwrap().value, ValueShown::First(64));
        assert_eq!(Manifest::parse(section.as_bytes()).unwrap(), manifest);
    }

    #[test]
    fn an_author_is_told_the_line() {
        let mistake = |text: &str| Manifest::parse_toml(text).unwrap_err();
        let unknown = mistake("name = \"a\"\nversion = \"1\"\ncolour = 1\n");
        assert!(unknown.starts_with("line 3: unknown field `colour`"), "{unknown}");
        let broken = mistake("name = \"a\"\nversion = 1 2\n");
        assert!(broken.starts_with("line 2: "), "{broken}");
        assert!(mistake("name = \"A\"\nversion = \"1\"\n").starts_with("name \"A\" must be"));
        let lacking = mistake("name = \"a\"\n");
        assert!(lacking.contains("missing field `version`"), "{lacking}");
    }
}
