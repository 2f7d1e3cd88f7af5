//! One server answering the lines of a script.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use kuorum_proto::etcdserverpb as pb;
use pb::watch_request::RequestUnion;
use tokio_stream::StreamExt;

use crate::client::{CALL_TIMEOUT, Client};
use crate::member::Member;
use crate::names::{Names, Own};
use crate::render;
use crate::request::{Request, parse};
use crate::subject::Subject;
use crate::watch_log::WatchLog;

/// An answer on a watch stream that takes longer hangs.
const CONTROL_WAIT: Duration = Duration::from_secs(10);
/// How long silence must last to count as no answer.
const SILENCE: Duration = Duration::from_millis(200);
/// A progress request may be dropped while a watcher catches up; ask again after this long.
const PROGRESS_RETRY: Duration = Duration::from_millis(250);
/// Watch ids of the answer to a manual progress request, from etcd.
const PROGRESS_ID: i64 = -1;

/// Falsifies an answer, to prove that the comparison sees it.
pub type Doctor = fn(&str) -> String;

pub struct Side {
    pub member: Member,
    pub client: Client,
    pub names: Names,
    pub doctor: Option<Doctor>,
    streams: BTreeMap<String, WatchLog>,
}

impl Side {
    pub async fn started(subject: &Subject, flags: &[&str]) -> Side {
        let mut member = Member::started(subject, flags).await;
        let client = member.ready().await;
        let mut side = Side { member, client, names: Names::default(), doctor: None, streams: BTreeMap::new() };
        side.learn_own().await;
        side.begin().await;
        side
    }

    /// Kills the member and starts it again on its data; streams end, revisions and leases keep their names.
    pub async fn restart(&mut self) {
        self.streams.clear();
        self.member.kill();
        self.member.start();
        self.client = self.member.ready().await;
        self.learn_own().await;
    }

    async fn learn_own(&mut self) {
        let status = self
            .client
            .maintenance
            .status(pb::StatusRequest {})
            .await
            .expect("a ready member answers Status")
            .into_inner();
        let header = status.header.unwrap_or_default();
        self.names.own = Own {
            cluster_id: header.cluster_id,
            member_id: header.member_id,
            raft_term: header.raft_term,
            client_url: self.member.client_url(),
            peer_url: self.member.peer_url(),
        };
    }

    /// Empties the store, forgets what the last script left, and counts revisions from here.
    pub async fn begin(&mut self) {
        self.streams.clear();
        self.names.forget();
        let everything = pb::DeleteRangeRequest {
            key: Bytes::from_static(b"\0"),
            range_end: Bytes::from_static(b"\0"),
            prev_kv: false,
        };
        let deleted = self.client.kv.delete_range(everything).await;
        let header = deleted.expect("an idle member deletes").into_inner().header.unwrap_or_default();
        let leases = self.client.lease.lease_leases(pb::LeaseLeasesRequest {});
        let leases = leases.await.expect("an idle member lists its leases");
        for lease in leases.into_inner().leases {
            let revoke = pb::LeaseRevokeRequest { id: lease.id };
            // A lease that expires at this moment is gone either way.
            drop(self.client.lease.lease_revoke(revoke).await);
        }
        self.names.base = header.revision;
        self.names.saw(header.revision);
    }

    /// The answer to one line. `events` lines are answered with what has come so far.
    pub async fn answer(&mut self, line: &str) -> String {
        let request = match parse(line, &self.names) {
            Ok(request) => request,
            Err(problem) => panic!("{problem}"),
        };
        let text = match tokio::time::timeout(CALL_TIMEOUT, self.perform(request)).await {
            Ok(text) => text,
            Err(_) => format!("no answer in {} s", CALL_TIMEOUT.as_secs()),
        };
        match self.doctor {
            Some(doctor) => doctor(&text),
            None => text,
        }
    }

    /// What the watchers of a stream received since the last `clear_events`; `*` names every stream.
    pub fn events(&mut self, stream: &str) -> String {
        let mut texts = Vec::new();
        for (name, log) in &mut self.streams {
            if stream == "*" || stream == name {
                log.pull(&mut self.names);
                texts.push(match stream {
                    "*" => format!("{name}: {}", log.text()),
                    _ => log.text(),
                });
            }
        }
        texts.join("\n")
    }

    /// As `events`, but only what was read on the way to the last answer of that stream.
    pub fn events_before_answer(&self, stream: &str) -> String {
        self.streams.get(stream).map_or_else(String::new, WatchLog::text)
    }

    pub fn clear_events(&mut self, stream: &str) {
        for (name, log) in &mut self.streams {
            if stream == "*" || stream == name {
                log.clear();
            }
        }
    }

    pub fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    async fn perform(&mut self, request: Request) -> String {
        match request {
            Request::Put(_)
            | Request::Range(_)
            | Request::RangeStream(_)
            | Request::DeleteRange(_)
            | Request::Txn(_)
            | Request::Compact(_) => self.key_value(request).await,
            Request::LeaseGrant { .. }
            | Request::LeaseRevoke(_)
            | Request::LeaseKeepAlive(_)
            | Request::LeaseTimeToLive(_)
            | Request::LeaseLeases => self.lease(request).await,
            Request::Watch { .. }
            | Request::WatchCancel { .. }
            | Request::WatchProgress { .. }
            | Request::WatchNotified { .. }
            | Request::WatchEvents { .. }
            | Request::WatchHalfClose { .. } => self.watch(request).await,
            Request::MemberList(_)
            | Request::MemberAdd { .. }
            | Request::MemberRemove(_)
            | Request::MemberUpdate(_)
            | Request::MemberPromote(_) => self.cluster(request).await,
            Request::HashKv(_)
            | Request::Status
            | Request::Alarm(_)
            | Request::Defragment
            | Request::MoveLeader(_)
            | Request::Downgrade(_) => self.upkeep(request).await,
            Request::Wait { milliseconds } => {
                tokio::time::sleep(Duration::from_millis(milliseconds)).await;
                "waited".to_owned()
            }
        }
    }

    fn saw(&mut self, header: Option<&pb::ResponseHeader>) {
        self.names.saw(header.map_or(0, |header| header.revision));
    }

    fn shown<T>(
        &mut self,
        result: Result<tonic::Response<T>, tonic::Status>,
        header: fn(&T) -> Option<&pb::ResponseHeader>,
        show: impl Fn(&T, &Names) -> String,
    ) -> String {
        match result {
            Err(status) => render::refusal(&status, &self.names),
            Ok(answer) => {
                let answer = answer.into_inner();
                self.saw(header(&answer));
                show(&answer, &self.names)
            }
        }
    }

    async fn key_value(&mut self, request: Request) -> String {
        let mut kv = self.client.kv.clone();
        match request {
            Request::Put(put) => {
                let answer = kv.put(put).await;
                self.shown(answer, |answer| answer.header.as_ref(), render::put)
            }
            Request::Range(range) => {
                let answer = kv.range(range).await;
                self.shown(answer, |answer| answer.header.as_ref(), render::range)
            }
            Request::DeleteRange(delete) => {
                let answer = kv.delete_range(delete).await;
                self.shown(answer, |answer| answer.header.as_ref(), render::delete_range)
            }
            Request::Txn(txn) => {
                let answer = kv.txn(txn).await;
                self.shown(answer, |answer| answer.header.as_ref(), render::txn)
            }
            Request::Compact(compaction) => {
                let answer = kv.compact(compaction).await;
                if answer.is_ok() {
                    self.names.compacted = compaction.revision;
                }
                self.shown(answer, |answer| answer.header.as_ref(), render::compact)
            }
            Request::RangeStream(range) => self.range_stream(range).await,
            _ => unreachable!("perform sends requests of the KV service only"),
        }
    }

    async fn range_stream(&mut self, range: pb::RangeRequest) -> String {
        let mut kv = self.client.kv.clone();
        let mut stream = match kv.range_stream(range).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => return render::refusal(&status, &self.names),
        };
        let mut chunks = Vec::new();
        loop {
            match stream.message().await {
                Ok(Some(chunk)) => chunks.push(chunk.range_response.unwrap_or_default()),
                Ok(None) => return render::range_stream(&chunks, &self.names),
                Err(status) => return render::refusal(&status, &self.names),
            }
        }
    }

    async fn lease(&mut self, request: Request) -> String {
        let mut lease = self.client.lease.clone();
        match request {
            Request::LeaseGrant { name, request } => {
                let answer = lease.lease_grant(request).await;
                if let Ok(granted) = &answer {
                    self.names.learn_lease(&name, granted.get_ref().id);
                }
                self.shown(answer, |answer| answer.header.as_ref(), render::lease_grant)
            }
            Request::LeaseRevoke(revoke) => {
                let answer = lease.lease_revoke(revoke).await;
                self.shown(answer, |answer| answer.header.as_ref(), render::lease_revoke)
            }
            Request::LeaseTimeToLive(query) => {
                let answer = lease.lease_time_to_live(query).await;
                let show = render::lease_time_to_live;
                self.shown(answer, |answer| answer.header.as_ref(), show)
            }
            Request::LeaseLeases => {
                let answer = lease.lease_leases(pb::LeaseLeasesRequest {}).await;
                self.shown(answer, |answer| answer.header.as_ref(), render::lease_leases)
            }
            Request::LeaseKeepAlive(beat) => {
                let answer = lease.lease_keep_alive(tokio_stream::once(beat)).await;
                let mut stream = match answer {
                    Ok(answer) => answer.into_inner(),
                    Err(status) => return render::refusal(&status, &self.names),
                };
                match stream.next().await {
                    None => "keepalive stream ended without an answer".to_owned(),
                    Some(answer) => self.shown(
                        answer.map(tonic::Response::new),
                        |answer| answer.header.as_ref(),
                        render::lease_keep_alive,
                    ),
                }
            }
            _ => unreachable!("perform sends requests of the Lease service only"),
        }
    }

    async fn watch(&mut self, request: Request) -> String {
        match request {
            Request::Watch { stream, request } => {
                let log = self.streams.entry(stream).or_insert_with(|| WatchLog::open(&self.client));
                log.send(RequestUnion::CreateRequest(request)).await;
                let answer = log.control(CONTROL_WAIT, &mut self.names, |answer| answer.created).await;
                self.shown_control(answer)
            }
            Request::WatchCancel { stream, id } => {
                let Some(log) = self.streams.get_mut(&stream) else {
                    return "no such stream".to_owned();
                };
                log.send(RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id: id })).await;
                let wait = if log.is_live(id) { CONTROL_WAIT } else { SILENCE };
                let answer = log
                    .control(wait, &mut self.names, |answer| {
                        answer.canceled && !answer.created && answer.watch_id == id
                    })
                    .await;
                self.shown_control(answer)
            }
            Request::WatchProgress { stream, once } => self.progress(stream, once).await,
            Request::WatchNotified { stream, id } => {
                let Some(log) = self.streams.get_mut(&stream) else {
                    return "no such stream".to_owned();
                };
                let answer = log
                    .control(CONTROL_WAIT, &mut self.names, |answer| is_progress(answer) && answer.watch_id == id)
                    .await;
                self.shown_control(answer)
            }
            Request::WatchHalfClose { stream } => {
                if let Some(log) = self.streams.get_mut(&stream) {
                    log.half_close();
                }
                "half-closed".to_owned()
            }
            Request::WatchEvents { stream } => self.events(&stream),
            _ => unreachable!("perform sends requests of the Watch service only"),
        }
    }

    async fn progress(&mut self, stream: String, once: bool) -> String {
        let log = self.streams.entry(stream).or_insert_with(|| WatchLog::open(&self.client));
        let (attempts, wait) = match once {
            true => (1, SILENCE),
            false => (40, PROGRESS_RETRY),
        };
        for _ in 0..attempts {
            log.send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await;
            let answer = log
                .control(wait, &mut self.names, |answer| is_progress(answer) && answer.watch_id == PROGRESS_ID)
                .await;
            if answer.is_some() {
                return self.shown_control(answer);
            }
        }
        "no answer".to_owned()
    }

    fn shown_control(&self, answer: Option<pb::WatchResponse>) -> String {
        match answer {
            None => "no answer".to_owned(),
            Some(answer) => render::watch_control(&answer, &self.names),
        }
    }

    async fn cluster(&mut self, request: Request) -> String {
        let mut cluster = self.client.cluster.clone();
        match request {
            Request::MemberList(list) => {
                let answer = cluster.member_list(list).await;
                self.shown(
                    answer,
                    |answer| answer.header.as_ref(),
                    |answer, names| render::members("members", answer.header.as_ref(), &answer.members, names),
                )
            }
            Request::MemberAdd { name, request } => {
                let answer = cluster.member_add(request).await;
                if let Ok(added) = &answer {
                    let id = added.get_ref().member.as_ref().map_or(0, |member| member.id);
                    self.names.learn_member(&name, id);
                }
                self.shown(
                    answer,
                    |answer| answer.header.as_ref(),
                    |answer, names| {
                        let added = answer.member.as_slice();
                        format!(
                            "{} {}",
                            render::members("added", answer.header.as_ref(), added, names),
                            render::members("all", None, &answer.members, names)
                        )
                    },
                )
            }
            Request::MemberRemove(remove) => {
                let answer = cluster.member_remove(remove).await;
                self.shown(
                    answer,
                    |answer| answer.header.as_ref(),
                    |answer, names| render::members("left", answer.header.as_ref(), &answer.members, names),
                )
            }
            Request::MemberUpdate(update) => {
                let answer = cluster.member_update(update).await;
                self.shown(
                    answer,
                    |answer| answer.header.as_ref(),
                    |answer, names| render::members("updated", answer.header.as_ref(), &answer.members, names),
                )
            }
            Request::MemberPromote(promote) => {
                let answer = cluster.member_promote(promote).await;
                self.shown(
                    answer,
                    |answer| answer.header.as_ref(),
                    |answer, names| render::members("promoted", answer.header.as_ref(), &answer.members, names),
                )
            }
            _ => unreachable!("perform sends requests of the Cluster service only"),
        }
    }

    async fn upkeep(&mut self, request: Request) -> String {
        let mut maintenance = self.client.maintenance.clone();
        match request {
            Request::HashKv(query) => {
                let answer = maintenance.hash_kv(query).await;
                self.shown(answer, |answer| answer.header.as_ref(), render::hash_kv)
            }
            Request::Status => {
                let answer = maintenance.status(pb::StatusRequest {}).await;
                self.shown(answer, |answer| answer.header.as_ref(), render::status)
            }
            Request::Alarm(alarm) => {
                let answer = maintenance.alarm(alarm).await;
                self.shown(answer, |answer| answer.header.as_ref(), render::alarms)
            }
            Request::Defragment => {
                let answer = maintenance.defragment(pb::DefragmentRequest {}).await;
                self.shown(
                    answer,
                    |answer| answer.header.as_ref(),
                    |answer, names| format!("defragment {}", render::header(answer.header.as_ref(), names)),
                )
            }
            Request::MoveLeader(target) => {
                let answer = maintenance.move_leader(target).await;
                self.shown(
                    answer,
                    |answer| answer.header.as_ref(),
                    |answer, names| format!("move-leader {}", render::header(answer.header.as_ref(), names)),
                )
            }
            Request::Downgrade(downgrade) => {
                let answer = maintenance.downgrade(downgrade).await;
                self.shown(answer, |answer| answer.header.as_ref(), render::downgrade)
            }
            _ => unreachable!("perform sends requests of the Maintenance service only"),
        }
    }
}

fn is_progress(answer: &pb::WatchResponse) -> bool {
    !answer.created && !answer.canceled && answer.events.is_empty()
}
