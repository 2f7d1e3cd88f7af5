//! What the names in a script mean on one server.
//!
//! Two servers never agree on ids and need not agree on revisions at the start of a script; a script therefore says
//! `r3` for the third revision after its start, `h-1` for the one before the newest, `L2` for a lease, and answers are
//! written back in the same words.

use std::collections::BTreeMap;

/// Explicit ids of the leases named `L<n>`: the same on both servers, so that hashes of the data agree.
const LEASE_BASE: i64 = 7_000_000;
/// Stands for a lease whose id the server chose, while no such lease has been granted.
const ABSENT_LEASE: i64 = 6_000_000;
/// Stands for a member that has not been added.
const ABSENT_MEMBER: u64 = 0x00ab_5e47;

/// What Status says about the server itself; answers that repeat it are written as "own".
#[derive(Clone, Debug, Default)]
pub struct Own {
    pub cluster_id: u64,
    pub member_id: u64,
    pub raft_term: u64,
    pub client_url: String,
    pub peer_url: String,
}

#[derive(Clone, Debug, Default)]
pub struct Names {
    pub own: Own,
    /// The newest revision when the script started.
    pub base: i64,
    /// The newest revision seen in any header.
    pub head: i64,
    /// The last successful compaction.
    pub compacted: i64,
    /// Ids that the server chose, oldest first: a name may be granted again, and the older lease lives on.
    leases: Vec<(String, i64)>,
    members: BTreeMap<String, u64>,
}

impl Names {
    /// `r3`, `h-1`, `c+0` or a plain number.
    pub fn revision(&self, text: &str) -> Result<i64, String> {
        let (start, rest) = match text.as_bytes().first() {
            Some(b'r') => (self.base, &text[1..]),
            Some(b'h') => (self.head, &text[1..]),
            Some(b'c') => (self.compacted, &text[1..]),
            _ => (0, text),
        };
        if rest.is_empty() && !text.is_empty() {
            return Ok(start);
        }
        number(rest.strip_prefix('+').unwrap_or(rest)).map(|offset| start + offset)
    }

    pub fn show_revision(&self, revision: i64) -> String {
        if revision == 0 {
            return "0".to_owned();
        }
        format!("r{}", revision - self.base)
    }

    /// `L<n>` with its fixed id, `auto<n>` with the id that the server chose, or a plain number.
    pub fn lease(&self, text: &str) -> Result<i64, String> {
        if let Some(digits) = text.strip_prefix("auto") {
            let absent = ABSENT_LEASE + number(digits)?;
            let newest = self.leases.iter().rev().find(|(name, _)| name == text);
            return Ok(newest.map_or(absent, |(_, id)| *id));
        }
        match text.strip_prefix('L') {
            Some(digits) => number(digits).map(|offset| LEASE_BASE + offset),
            None => number(text),
        }
    }

    pub fn learn_lease(&mut self, name: &str, id: i64) {
        if name.starts_with("auto") {
            self.leases.push((name.to_owned(), id));
        }
    }

    pub fn show_lease(&self, id: i64) -> String {
        if let Some((name, _)) = self.leases.iter().find(|(_, known)| *known == id) {
            return name.clone();
        }
        match id - LEASE_BASE {
            offset @ 0..=100_000 => format!("L{offset}"),
            _ => id.to_string(),
        }
    }

    /// `own`, `M<n>` as a MemberAdd named it, or a plain number.
    pub fn member(&self, text: &str) -> Result<u64, String> {
        if text == "own" {
            return Ok(self.own.member_id);
        }
        if text.starts_with('M') {
            return Ok(self.members.get(text).copied().unwrap_or(ABSENT_MEMBER));
        }
        text.parse().map_err(|_| format!("{text} names no member"))
    }

    pub fn learn_member(&mut self, name: &str, id: u64) {
        self.members.insert(name.to_owned(), id);
    }

    pub fn show_member(&self, id: u64) -> String {
        if id == self.own.member_id {
            return "own".to_owned();
        }
        match self.members.iter().find(|(_, known)| **known == id) {
            Some((name, _)) => name.clone(),
            None => id.to_string(),
        }
    }

    /// Replaces what differs between two servers in free text.
    pub fn show_text(&self, text: &str) -> String {
        // Go's text form of a message has one or two blanks between fields, chosen anew by every build and process.
        let mut shown = text.replace("  ", " ").replace(&self.own.member_id.to_string(), "own");
        for (name, id) in &self.members {
            shown = shown.replace(&id.to_string(), name).replace(&format!("{id:x}"), name);
        }
        if !self.own.client_url.is_empty() {
            shown = shown.replace(&self.own.client_url, "own-client-url").replace(&self.own.peer_url, "own-peer-url");
        }
        shown
    }

    /// A new script knows no lease or member of the last one.
    pub fn forget(&mut self) {
        self.leases.clear();
        self.members.clear();
    }

    /// Takes note of a header's revision.
    pub fn saw(&mut self, revision: i64) {
        self.head = self.head.max(revision);
    }
}

pub(crate) fn number(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_are_relative_to_the_script_the_head_and_the_compaction() {
        let names = Names { base: 10, head: 20, compacted: 15, ..Names::default() };
        let read = |text: &str| names.revision(text).unwrap();
        assert_eq!(
            [read("r3"), read("r-1"), read("h"), read("h+2"), read("c-1"), read("7"), read("-1")],
            [13, 9, 20, 22, 14, 7, -1]
        );
        assert_eq!(names.show_revision(13), "r3");
        assert!(names.revision("x").is_err());
    }
}
