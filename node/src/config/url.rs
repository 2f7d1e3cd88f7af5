//! The URLs of listeners and members: scheme, host and port, nothing else.
//!
//! The rules and the words of refusal are those of etcd's `types.NewURLs`. A host is never looked up: `localhost`
//! stands for 127.0.0.1, every other host of a listener must be an address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// What etcd accepts before the `://`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    Http,
    Https,
    Unix,
    Unixs,
}

/// One URL as the operator wrote it, and its parts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Url {
    /// First, so that URLs sort by their text as etcd sorts them.
    text: String,
    scheme: Scheme,
    host: String,
    port: u16,
}

impl Url {
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Without the brackets of an IPv6 address; for a unix socket everything after the scheme.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// 0 for unix sockets.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address to bind or dial. `None` for a host name other than `localhost`, and for unix sockets.
    pub fn socket_address(&self) -> Option<SocketAddr> {
        if matches!(self.scheme, Scheme::Unix | Scheme::Unixs) {
            return None;
        }
        let ip = match self.host.as_str() {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            // Go listens on every address when the host is empty, and etcd refuses that before it comes to it.
            host => host.parse().ok()?,
        };
        Some(SocketAddr::new(ip, self.port))
    }

    /// Whether both name the same endpoint, `localhost` and 127.0.0.1 being one host.
    pub(crate) fn is_same_endpoint(&self, other: &Url) -> bool {
        if self.text == other.text {
            return true;
        }
        match (self.socket_address(), other.socket_address()) {
            (Some(own), Some(their)) => self.scheme == other.scheme && own == their,
            _ => false,
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Url, String> {
        let text = text.trim();
        let (scheme, rest) = split_scheme(text)?;
        let (host, port) = match scheme {
            Scheme::Unix | Scheme::Unixs => (rest.to_owned(), 0),
            Scheme::Http | Scheme::Https => split_authority(text, rest)?,
        };
        Ok(Url { text: text.to_owned(), scheme, host, port })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn split_scheme(text: &str) -> Result<(Scheme, &str), String> {
    let wrong = || format!("URL scheme must be http, https, unix, or unixs: {text}");
    let (scheme, rest) = text.split_once(':').ok_or_else(wrong)?;
    let scheme = match scheme.to_ascii_lowercase().as_str() {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        "unix" => Scheme::Unix,
        "unixs" => Scheme::Unixs,
        _ => return Err(wrong()),
    };
    Ok((scheme, rest.strip_prefix("//").unwrap_or(rest)))
}

fn split_authority(text: &str, rest: &str) -> Result<(String, u16), String> {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let no_port = || format!("URL address does not have the form \"host:port\": {text}");
    let (host, port) = authority.rsplit_once(':').ok_or_else(no_port)?;
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inside) => inside,
        None if host.contains(':') => return Err(no_port()),
        None => host,
    };
    let invalid_port = || format!("parse {text:?}: invalid port {:?} after host", format!(":{port}"));
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid_port());
    }
    // Go takes an empty port for 0.
    let port = if port.is_empty() { 0 } else { port.parse().map_err(|_| invalid_port())? };
    if tail.starts_with('/') {
        return Err(format!("URL must not contain a path: {text}"));
    }
    Ok((host.to_owned(), port))
}

/// A comma separated list, sorted and without duplicates as etcd keeps it.
pub(super) fn parse_list(text: &str) -> Result<Vec<Url>, String> {
    let mut urls = text.split(',').map(Url::parse).collect::<Result<Vec<Url>, String>>()?;
    urls.sort();
    urls.dedup();
    Ok(urls)
}

/// Back to the comma separated form.
pub(super) fn join(urls: &[Url]) -> String {
    urls.iter().map(Url::text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts are etcd 3.7.3's, seen after `invalid value "..." for flag -listen-client-urls: `.
    #[test]
    fn wrong_urls_are_refused_in_etcds_words() {
        for (text, words) in [
            ("foo", "URL scheme must be http, https, unix, or unixs: foo"),
            ("http://1.2.3.4", "URL address does not have the form \"host:port\": http://1.2.3.4"),
            ("http://1.2.3.4:2379/x", "URL must not contain a path: http://1.2.3.4:2379/x"),
            ("ftp://1.2.3.4:2379", "URL scheme must be http, https, unix, or unixs: ftp://1.2.3.4:2379"),
            ("http://1.2.3.4:abc", "parse \"http://1.2.3.4:abc\": invalid port \":abc\" after host"),
            ("", "URL scheme must be http, https, unix, or unixs: "),
        ] {
            assert_eq!(Url::parse(text).expect_err(text), words);
        }
    }

    #[test]
    fn localhost_is_bound_without_a_name_server() {
        let address = |text: &str| Url::parse(text).expect("a URL").socket_address().map(|a| a.to_string());
        assert_eq!(address("http://localhost:2379").as_deref(), Some("127.0.0.1:2379"));
        assert_eq!(address("http://[::1]:0").as_deref(), Some("[::1]:0"));
        assert_eq!(address("http://example.com:1"), None);
        assert_eq!(address("unix://localhost:1"), None);
    }

    #[test]
    fn lists_are_sorted_and_unique() {
        let urls = parse_list("http://b:1, http://a:1,http://b:1").expect("URLs");
        assert_eq!(join(&urls), "http://a:1,http://b:1");
    }
}
