//! The host of plugins: makes a revision of a plugin ready to be asked, and asks it. The only module that names wasmtime.
//!
//! ```text
//!             prepare: inspect -> cache or compile (a process of its own) -> link -> start -> validate-config -> configure
//!  revision ------------------------------------------------------------------------------------------------> Prepared
//!                                                                       admission: a warm instance   |  compaction: a new one
//!                                                  breaker -> budget -> call -> answer or failure <--+
//! ```
//!
//! A plugin is a stranger's program: it gets no more than its limits, cannot wait for anything, and sees nothing but what a
//! call hands in and what it was granted. Whatever it does ends as an answer or as a [`Failure`] in bounded time, and a
//! plugin that goes on failing is not asked for a while. What a failure means for the request is the caller's to decide.
//!
//! Synchronous: callers ask on their own threads. The host has one thread, the clock of deadlines. It changes no replicated
//! state and knows nothing of modes, epochs or other members.

mod admission;
mod author;
mod bindings;
mod breaker;
mod cache;
mod compaction;
mod compile;
mod engine;
mod host_calls;
mod inspect;
mod instance;
mod kv;
mod limits;
mod manifest;
mod rules;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, HasSelf, InstancePre, Linker};

pub(crate) use self::admission::{Code, Ctx, Judged, Op, Question, Space, Verdict};
pub(crate) use self::author::{Keys, Trial, component_of, stated};
pub(crate) use self::breaker::Health;
pub(crate) use self::compaction::{Input, LastRun, Mark, MemberSpace, Plan, Planned};
pub(crate) use self::compile::{Compiler, Urgency};
pub(crate) use self::host_calls::LineListener;
pub(crate) use self::instance::{Failure, FieldProblem, Spent};
pub(crate) use self::kv::{KvError, KvReader, KvRow, end_of};
pub(crate) use self::limits::{AskedLimits, Limits};
pub(crate) use self::manifest::{Key, Manifest, OnFailure, OpKind, check_name};

use self::admission::Pool;
use self::bindings::exports::kuorum::policy as exports;
use self::breaker::Breaker;
use self::cache::{Cache, Lookup};
use self::compile::{CompileError, one_line};
use self::engine::Runtime;
use self::host_calls::{LogBudget, UserMetrics};
use self::instance::{Plugin, State, Template};
use self::manifest::ValueShown;
use self::rules::{Prefixes, Rules};
use crate::metrics;

/// The package of the interface, and its version.
const PACKAGE: &str = "kuorum:policy/";
const VERSION: &str = "@0.1.0";

/// The first argument that makes the program a compiler of plugins (see `compile`).
pub const COMPILE_ARGUMENT: &str = compile::ARGUMENT;

/// The whole of the process that compiles a plugin; the words come after the first argument.
pub fn compile_child(words: impl Iterator<Item = OsString>) -> ExitCode {
    compile::child(words)
}

/// What a plugin can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Compaction,
    Quota,
    Admission,
    BackupSchedule,
    BackupTarget,
}

impl Kind {
    pub(crate) const ALL: [Kind; 5] =
        [Kind::Compaction, Kind::Quota, Kind::Admission, Kind::BackupSchedule, Kind::BackupTarget];

    /// The name of its interface.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Kind::Compaction => "compaction",
            Kind::Quota => "quota",
            Kind::Admission => "admission",
            Kind::BackupSchedule => "backup-schedule",
            Kind::BackupTarget => "backup-target",
        }
    }

    /// Whether this release asks plugins of this kind.
    pub(crate) fn is_asked(self) -> bool {
        match self {
            Kind::Compaction | Kind::Admission => true,
            Kind::Quota | Kind::BackupSchedule | Kind::BackupTarget => false,
        }
    }
}

/// A plugin's component with all that decides what it answers.
pub(crate) struct Revision {
    pub(crate) name: String,
    pub(crate) number: u64,
    /// The file as it was uploaded: a component, or a core module with the interface embedded.
    pub(crate) component: Bytes,
    /// JSON.
    pub(crate) config: String,
    /// Prefixes that it may read.
    pub(crate) grants: Vec<Vec<u8>>,
    /// What the operator sets instead of what the manifest asks for.
    pub(crate) limits: AskedLimits,
    /// How soon it is to be ready, should it have to be compiled.
    pub(crate) urgency: Urgency,
}

/// Why a revision can't be asked on this member. Shown as one line for the operator.
#[derive(Debug)]
pub(crate) enum PrepareError {
    /// The file is damaged, too complex, or does not compile.
    File(String),
    /// Its manifest, or what was asked for against it.
    Manifest(String),
    /// It is made for another host: an import or an export does not fit.
    World(String),
    /// It could not be started, or does not say whether it takes its configuration.
    Start(Failure),
    Config(Vec<FieldProblem>),
    /// This member could not do its part; it may be able to later.
    Member(String),
}

impl fmt::Display for PrepareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrepareError::File(text) | PrepareError::Manifest(text) | PrepareError::World(text) => f.write_str(text),
            PrepareError::Start(failure) => write!(f, "the plugin does not start: {failure}"),
            PrepareError::Config(problems) => {
                f.write_str("the plugin does not take its configuration")?;
                for (index, FieldProblem { path, message }) in problems.iter().enumerate() {
                    let joint = if index == 0 { ": " } else { "; " };
                    match path.as_str() {
                        "" => write!(f, "{joint}{message}")?,
                        path => write!(f, "{joint}{path}: {message}")?,
                    }
                }
                Ok(())
            }
            PrepareError::Member(text) => write!(f, "this member could not compile it: {text}"),
        }
    }
}

impl std::error::Error for PrepareError {}

/// One for a process, kept for as long as anything that it prepared is asked: its clock holds their deadlines.
pub(crate) struct Host {
    runtime: Runtime,
    linker: Linker<State>,
    cache: Cache,
    compiler: Compiler,
    reader: Arc<dyn KvReader>,
    listener: Option<Arc<dyn LineListener>>,
    // A lock, so that one plugin is compiled at a time whoever asks: a compiler may take gigabytes.
    compiling: Mutex<()>,
}

impl Host {
    /// Starts the engine and makes sure that its deadlines hold. `cache_dir` is where compiled code is kept. The error is
    /// for the operator.
    pub(crate) fn start(cache_dir: &Path, compiler: Compiler, reader: Arc<dyn KvReader>) -> Result<Host, String> {
        let runtime = Runtime::start().map_err(|error| format!("the engine of plugins does not start: {error:#}"))?;
        let took = runtime.self_test().map_err(|problem| format!("the engine of plugins is not safe: {problem}"))?;
        crate::debug!("an endless loop was stopped in time", took = took);
        let cache = Cache::open(cache_dir, engine::fingerprint(runtime.engine()));
        let mut linker = Linker::new(runtime.engine());
        bindings::AnyPlugin::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)
            .map_err(|error| format!("the calls of plugins can't be linked: {error:#}"))?;
        Ok(Host { runtime, linker, cache, compiler, reader, listener: None, compiling: Mutex::new(()) })
    }

    /// Has what plugins log told to somebody, of those that are prepared from now on.
    pub(crate) fn tell_lines(&mut self, listener: Arc<dyn LineListener>) {
        self.listener = Some(listener);
    }

    /// Makes the revision ready to be asked. May take as long as the component takes to compile; bounded.
    pub(crate) fn prepare(&self, revision: &Revision) -> Result<Prepared, PrepareError> {
        let inspected = inspect::inspect(&revision.component).map_err(PrepareError::File)?;
        let manifest = Manifest::parse(&inspected.manifest).map_err(PrepareError::Manifest)?;
        let limits =
            manifest.allow(&revision.name, &revision.grants, &revision.limits).map_err(PrepareError::Manifest)?;
        let component = self.component(&revision.component, revision.urgency)?;
        let kinds = self.kinds(&component)?;
        check_kinds(&kinds, &manifest).map_err(PrepareError::Manifest)?;
        let template = self.template(revision, limits, &component)?;

        let mut started = template.instantiate().map_err(PrepareError::Start)?;
        template.validate_config(&mut started).map_err(PrepareError::Start)?.map_err(PrepareError::Config)?;
        template.configure(&mut started).map_err(PrepareError::Start)?;
        template.check_exports(&kinds, &mut started).map_err(PrepareError::World)?;
        // Calls of the host cost time and no fuel.
        let may_take_long =
            limits.fuel.max(started.fuel) > limits::FUEL_DEFAULT || limits.deadline_ms > limits::DEADLINE_MS_DEFAULT;
        let pool = Pool::new(limits.memory_bytes);
        if template.admission.is_some() {
            pool.add(&template, started).map_err(PrepareError::Start)?;
        }
        let rules = manifest.admission.as_ref().map_or_else(Rules::default, |admission| Rules::of(&admission.rules));
        let value_shown = manifest.admission.as_ref().map_or(ValueShown::None, |admission| admission.value);
        let reads_values = self.imports(&component, "request-values");
        let breaker = Breaker::default();
        Ok(Prepared(Arc::new(Inner {
            template,
            manifest,
            kinds,
            rules,
            value_shown,
            reads_values,
            may_take_long,
            breaker,
            pool,
        })))
    }

    /// The compiled component, from the cache or by compiling it.
    fn component(&self, file: &[u8], urgency: Urgency) -> Result<Component, PrepareError> {
        let _one_at_a_time = self.compiling.lock();
        if let Some(component) = self.cached(file) {
            return Ok(component);
        }
        let began = engine::now();
        let code = self.compiler.compile(file, urgency).map_err(|error| match error {
            CompileError::Refused(text) | CompileError::Stopped(text) => PrepareError::File(text),
            CompileError::Hindered(text) => PrepareError::Member(text),
            CompileError::Io(error) => PrepareError::Member(error.to_string()),
        })?;
        let took: Duration = engine::now().saturating_duration_since(began);
        crate::info!("compiled a plugin", bytes = file.len(), compiled_bytes = code.len(), took = took);
        let component = self.loaded(&code).map_err(|error| PrepareError::Member(format!("{error:#}")))?;
        if let Err(error) = self.cache.put(file, &code) {
            crate::warn!("compiled code is not kept, and will be made again", error = error.to_string());
        }
        Ok(component)
    }

    fn cached(&self, file: &[u8]) -> Option<Component> {
        match self.cache.get(file) {
            Ok(Lookup::Found(code)) => match self.loaded(&code) {
                Ok(component) => return Some(component),
                Err(error) => {
                    crate::warn!("compiled code is not taken, and made again", error = one_line(&format!("{error:#}")));
                    if let Err(error) = self.cache.remove(file) {
                        crate::warn!("compiled code can't be removed", error = error.to_string());
                    }
                }
            },
            Ok(Lookup::Damaged) => crate::warn!("compiled code was damaged on disk, and is made again"),
            Ok(Lookup::Missing) => {}
            Err(error) => crate::warn!("compiled code can't be read", error = error.to_string()),
        }
        None
    }

    #[expect(
        unsafe_code,
        reason = "wasmtime runs these bytes as they are: they come from this member's own compiler, through a pipe or \
                  through a file whose sum was checked after it was read"
    )]
    fn loaded(&self, code: &[u8]) -> wasmtime::Result<Component> {
        // SAFETY: see the reason above; nothing that a client or another member sent gets here.
        unsafe { Component::deserialize(self.runtime.engine(), code) }
    }

    fn kinds(&self, component: &Component) -> Result<Vec<Kind>, PrepareError> {
        let engine = self.runtime.engine();
        let ty = component.component_type();
        let exported: Vec<String> = ty.exports(engine).map(|(name, _)| name.to_owned()).collect();
        let kinds = kinds_of(&exported).map_err(PrepareError::World)?;
        // An import of types alone asks for nothing.
        let foreign = ty.imports(engine).find(|(name, import)| {
            let asks = !matches!(import.ty, ComponentItem::Type(_));
            asks && !is_ours(name)
        });
        match foreign {
            Some((name, _)) => Err(PrepareError::World(foreign_import(name))),
            None => Ok(kinds),
        }
    }

    fn imports(&self, component: &Component, name: &str) -> bool {
        let wanted = interface(name);
        component.component_type().imports(self.runtime.engine()).any(|(name, _)| name == wanted)
    }

    fn template(&self, revision: &Revision, limits: Limits, component: &Component) -> Result<Template, PrepareError> {
        let world = |error: wasmtime::Error| PrepareError::World(one_line(&format!("the component: {error:#}")));
        let before: InstancePre<State> = self.linker.instantiate_pre(component).map_err(world)?;
        let plugin = Plugin {
            name: revision.name.clone(),
            number: revision.number,
            grants: Prefixes::of(revision.grants.iter().map(Vec::as_slice)),
            limits,
            reader: Arc::clone(&self.reader),
            lines: LogBudget::default(),
            listener: self.listener.clone(),
            user_metrics: UserMetrics::default(),
            counts: metrics::get().plugin(&revision.name),
        };
        Ok(Template {
            plugin: Arc::new(plugin),
            lifecycle: exports::lifecycle::GuestIndices::new(&before).map_err(world)?,
            admission: exports::admission::GuestIndices::new(&before).ok(),
            compaction: exports::compaction::GuestIndices::new(&before).ok(),
            before,
            config: revision.config.clone(),
            clock: self.runtime.clock(),
        })
    }
}

fn interface(name: &str) -> String {
    format!("{PACKAGE}{name}{VERSION}")
}

fn is_ours(interface: &str) -> bool {
    interface.starts_with(PACKAGE) && interface.ends_with(VERSION)
}

fn foreign_import(name: &str) -> String {
    format!("the component imports {name}, which this host does not have")
}

/// What a component with these exports answers.
fn kinds_of(exported: &[String]) -> Result<Vec<Kind>, String> {
    let exports = |name: &str| exported.iter().any(|exported| *exported == interface(name));
    if !exports("lifecycle") {
        let lifecycle = interface("lifecycle");
        return Err(format!("the component does not export {lifecycle}: it is no plugin of this interface"));
    }
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| exports(kind.as_str())).collect();
    if kinds.is_empty() {
        return Err("the component answers no kind of question".to_owned());
    }
    Ok(kinds)
}

impl Manifest {
    /// Reads what a file says of itself, component or core module, without compiling it. The error is one sentence.
    pub(crate) fn of_file(file: &[u8]) -> Result<Manifest, String> {
        Manifest::parse(&inspect::inspect(file)?.manifest)
    }

    /// What a revision gets that is loaded under this name: its limits, if the manifest asks for all that it is granted.
    /// The error is one sentence.
    pub(crate) fn allow(
        &self,
        name: &str,
        grants: &[impl AsRef<[u8]>],
        limits: &AskedLimits,
    ) -> Result<Limits, String> {
        if self.name != name {
            return Err(format!("the manifest names the plugin {}, and it was loaded as {name}", self.name));
        }
        let asked = Prefixes::of(self.kv_read.iter().map(|prefix| prefix.0.as_slice()));
        if let Some(grant) = grants.iter().find(|grant| !asked.cover(grant.as_ref())) {
            let grant = grant.as_ref().escape_ascii();
            return Err(format!("the grant \"{grant}\" is not among what kv_read asks for"));
        }
        Limits::resolve(limits, &self.limits)
    }

    /// Prefixes that the manifest asks to read and of which these grants leave something out.
    pub(crate) fn not_granted(&self, grants: &[impl AsRef<[u8]>]) -> Vec<&[u8]> {
        let granted = Prefixes::of(grants.iter().map(AsRef::as_ref));
        self.kv_read.iter().map(|prefix| prefix.0.as_slice()).filter(|prefix| !granted.cover(prefix)).collect()
    }
}

fn check_kinds(kinds: &[Kind], manifest: &Manifest) -> Result<(), String> {
    match (kinds.contains(&Kind::Admission), &manifest.admission) {
        (true, None) => Err("the manifest has no [admission], and the component answers admission".to_owned()),
        (false, Some(_)) => Err("the manifest has [admission], and the component does not answer it".to_owned()),
        (true, Some(_)) | (false, None) => Ok(()),
    }
}

/// What a plugin's file says, before it is compiled, of the requests that it is to be asked about.
pub(crate) struct Scope {
    /// `None`: it is not asked about requests at all.
    rules: Option<Rules>,
    on_failure: OnFailure,
    /// What it exports by its file.
    kinds: Vec<Kind>,
}

impl Scope {
    /// Reads the manifest of a file. The error is for the operator.
    pub(crate) fn of(file: &[u8]) -> Result<Scope, String> {
        let inspected = inspect::inspect(file)?;
        let is_exported = |kind: &Kind| inspected.interfaces.contains(&interface(kind.as_str()));
        let kinds = Kind::ALL.into_iter().filter(is_exported).collect();
        Ok(match Manifest::parse(&inspected.manifest)?.admission {
            Some(admission) => {
                Scope { rules: Some(Rules::of(&admission.rules)), on_failure: admission.on_failure, kinds }
            }
            None => Scope { rules: None, on_failure: OnFailure::Closed, kinds },
        })
    }

    /// Whether it is of this kind, should it turn out to be whole.
    pub(crate) fn may_answer(&self, kind: Kind) -> bool {
        match kind {
            // The manifest says it, and whether requests pass meanwhile.
            Kind::Admission => self.rules.is_some(),
            kind => self.kinds.contains(&kind),
        }
    }

    /// Whether the plugin is to be asked about a request with this operation.
    pub(crate) fn matches(&self, op: &Op<'_>) -> bool {
        self.rules.as_ref().is_some_and(|rules| rules.match_op(op))
    }

    /// Whether a request passes that the plugin can't judge.
    pub(crate) fn fails_open(&self) -> bool {
        self.on_failure == OnFailure::Open
    }
}

/// A revision that can be asked. Cheap to clone; the last one to go frees its instances.
#[derive(Clone)]
pub(crate) struct Prepared(Arc<Inner>);

struct Inner {
    template: Template,
    manifest: Manifest,
    kinds: Vec<Kind>,
    rules: Rules,
    value_shown: ValueShown,
    /// Whether values have to be kept at hand during a call.
    reads_values: bool,
    /// See [`Prepared::may_take_long`].
    may_take_long: bool,
    breaker: Breaker,
    pool: Pool,
}

impl Prepared {
    pub(crate) fn manifest(&self) -> &Manifest {
        &self.0.manifest
    }

    /// Every kind that the component answers, asked in this release or not.
    pub(crate) fn kinds(&self) -> &[Kind] {
        &self.0.kinds
    }

    /// The limits in force.
    pub(crate) fn limits(&self) -> Limits {
        self.0.template.plugin.limits
    }

    pub(crate) fn counts(&self) -> &metrics::Plugin {
        &self.0.template.plugin.counts
    }

    /// Takes a line from what the plugin may log in a second. Returns false if none is left.
    pub(crate) fn may_log(&self) -> bool {
        self.0.template.plugin.may_log()
    }

    /// What the breaker says, for whoever shows it or raises an alarm.
    pub(crate) fn health(&self) -> Health {
        self.0.breaker.health()
    }

    /// A sentence that says why it can't be put in force, if it can't.
    pub(crate) fn activation_refusal(&self) -> Option<String> {
        let kind = self.0.kinds.iter().find(|kind| !kind.is_asked())?;
        Some(format!(
            "plugin {} answers {}, which this release does not ask plugins yet: it can be loaded, and not put in force",
            self.0.manifest.name,
            kind.as_str()
        ))
    }

    /// Tells the breaker how a call went, and the operator when that changes whether the plugin is asked.
    fn settle(&self, failure: Option<&Failure>) {
        let Inner { template, breaker, .. } = &*self.0;
        let plugin = &template.plugin;
        let breakage = failure.filter(|failure| failure.is_breakage());
        if let Some(failure) = failure {
            failure.count(&plugin.counts);
        }
        match breakage {
            None => {
                if breaker.succeeded() {
                    let (plugin, revision) = (plugin.name.as_str(), plugin.number);
                    crate::info!("a plugin answers again", plugin = plugin, revision = revision);
                }
            }
            Some(failure) if breaker.failed(engine::now()) => {
                let (plugin, revision) = (plugin.name.as_str(), plugin.number);
                let error = failure.to_string();
                crate::warn!(
                    "a plugin failed too often, and is not asked for a while",
                    plugin = plugin,
                    revision = revision,
                    error = error
                );
            }
            Some(failure) => {
                let (plugin, revision) = (plugin.name.as_str(), plugin.number);
                crate::debug!("a plugin failed", plugin = plugin, revision = revision, error = failure.to_string());
            }
        }
    }
}
