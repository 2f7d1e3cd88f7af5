//! Token buckets of users and prefixes. Time is the calls' own; whole numbers throughout.

use std::collections::BTreeMap;

use kuorum_plugin_sdk::{
    Prefix,
    admission::{Op, Request, Space},
};

use crate::config::{PrefixRate, Rates, UserRate};

/// Users with a bucket of their own by `each_user`. At more, the one that was longest idle is forgotten.
const USERS_MAX: usize = 1024;

/// A put costs this many tokens: at one put a second, one token comes in each millisecond.
const PUT_TOKENS: u64 = 1000;

/// All buckets of this instance.
pub(crate) struct Buckets {
    above_space_percent: u8,
    users: BTreeMap<String, Bucket>,
    each_user: Option<UserRate>,
    others: BTreeMap<String, Bucket>,
    prefixes: Vec<(Prefix, Bucket)>,
}

struct Bucket {
    tokens_per_ms: u64,
    tokens_max: u64,
    tokens: u64,
    filled_ms: u64,
}

impl Buckets {
    pub(crate) fn new(rates: Option<Rates>) -> Self {
        let Some(rates) = rates else {
            let (users, others) = (BTreeMap::new(), BTreeMap::new());
            return Self { above_space_percent: 0, users, each_user: None, others, prefixes: Vec::new() };
        };
        let prefix = |rate: PrefixRate| (rate.prefix, Bucket::full(rate.puts_per_s, rate.burst, 0));
        let user = |(user, rate): (String, UserRate)| (user, Bucket::full(rate.puts_per_s, rate.burst, 0));
        Self {
            above_space_percent: rates.above_space_percent,
            users: rates.users.into_iter().map(user).collect(),
            each_user: rates.each_user,
            others: BTreeMap::new(),
            prefixes: rates.prefixes.into_iter().map(prefix).collect(),
        }
    }

    /// Takes what the request's puts cost out of every bucket they fall to. Where one has too little nothing is taken, and
    /// the answer says which.
    pub(crate) fn take(&mut self, request: &Request) -> Option<String> {
        if !self.is_space_short(&request.space) {
            return None;
        }
        let keys = || request.ops.iter().filter_map(|op| if let Op::Put(put) = op { Some(&put.key) } else { None });
        let puts = keys().count() as u64;
        if puts == 0 {
            return None;
        }

        let now_ms = request.ctx.now_ms;
        let name = request.user.as_deref().unwrap_or_default();
        let mut user = bucket_of(&mut self.users, self.each_user, &mut self.others, name, now_ms);
        if user.as_mut().is_some_and(|bucket| !bucket.has(puts, now_ms)) {
            let whose = if name.is_empty() { "without a user".into() } else { format!("of user {name:?}") };
            return Some(whose);
        }
        let puts_under = |prefix: &Prefix| keys().filter(|key| prefix.contains(key)).count() as u64;
        for (prefix, bucket) in &mut self.prefixes {
            if !bucket.has(puts_under(prefix), now_ms) {
                return Some(format!("under {:?}", String::from_utf8_lossy(&prefix.0)));
            }
        }

        if let Some(bucket) = user {
            bucket.take(puts);
        }
        for (prefix, bucket) in &mut self.prefixes {
            bucket.take(puts_under(prefix));
        }
        None
    }

    fn is_space_short(&self, space: &Space) -> bool {
        let limited = self.each_user.is_some() || !self.users.is_empty() || !self.prefixes.is_empty();
        let used = u128::from(space.db_bytes) * 100;
        // A quota of 0 is none, and then space never is.
        limited && space.quota_bytes > 0 && used >= u128::from(space.quota_bytes) * u128::from(self.above_space_percent)
    }
}

/// The bucket of a user: the one of their name, or one like everybody else's; none where there is no rate for them.
fn bucket_of<'a>(
    users: &'a mut BTreeMap<String, Bucket>,
    each_user: Option<UserRate>,
    others: &'a mut BTreeMap<String, Bucket>,
    name: &str,
    now_ms: u64,
) -> Option<&'a mut Bucket> {
    if let Some(bucket) = users.get_mut(name) {
        return Some(bucket);
    }
    let rate = each_user?;
    if !others.contains_key(name) {
        if others.len() >= USERS_MAX {
            let idle = others.iter().min_by_key(|(_, bucket)| bucket.filled_ms).map(|(user, _)| user.clone());
            others.remove(&idle?);
        }
        others.insert(name.into(), Bucket::full(rate.puts_per_s, rate.burst, now_ms));
    }
    others.get_mut(name)
}

impl Bucket {
    fn full(puts_per_s: u32, burst: u32, now_ms: u64) -> Self {
        let tokens_max = u64::from(burst) * PUT_TOKENS;
        Self { tokens_per_ms: puts_per_s.into(), tokens_max, tokens: tokens_max, filled_ms: now_ms }
    }

    /// Whether there are tokens for so many puts. A new leader's clock may be behind: that fills nothing and counts from
    /// there on.
    fn has(&mut self, puts: u64, now_ms: u64) -> bool {
        let came_in = now_ms.saturating_sub(self.filled_ms).saturating_mul(self.tokens_per_ms);
        self.tokens = self.tokens.saturating_add(came_in).min(self.tokens_max);
        self.filled_ms = now_ms;
        self.tokens >= self.cost(puts)
    }

    fn take(&mut self, puts: u64) {
        self.tokens -= self.cost(puts);
    }

    /// More puts than the burst cost the whole burst, or they could never be admitted.
    fn cost(&self, puts: u64) -> u64 {
        puts.saturating_mul(PUT_TOKENS).min(self.tokens_max)
    }
}
