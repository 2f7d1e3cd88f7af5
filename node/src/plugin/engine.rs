//! The engine: how code is compiled and run, the clock of deadlines, and the test that the clock works.
//!
//! One engine a process. What it compiles counts fuel and looks at the epoch wherever it loops or calls. A thread of its
//! own raises the epoch each millisecond while plugins are being asked, and sleeps for good once nobody was for longer than
//! the longest call lasts: an idle member wakes for nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, Linker, Module, PoolingAllocationConfig, Store, StoreLimits, Trap,
};

use super::limits::{
    CORE_INSTANCES_MAX, DEADLINE_MS_MAX, MEMORIES_MAX, MEMORY_BYTES_MAX, TABLE_ELEMENTS_MAX, TABLES_MAX,
};

pub(super) const TICK: Duration = Duration::from_millis(1);
/// Three times the longest call.
const IDLE_TICKS: u32 = 3 * DEADLINE_MS_MAX;
/// Part of the caller's stack that a plugin may use. Shards and the node's other threads have far more.
const STACK_BYTES: usize = 512 * 1024;

/// Instances at one time of all plugins: 32 plugins, three revisions of each that may be kept, 16 warm instances of each
/// revision, and as many again for calls under way. Each costs address space until it is used, and no memory.
const INSTANCES_MAX: u32 = 2_048;
const INSTANCE_BYTES_MAX: usize = 4 << 20;

/// An endless loop under the name "run", for the self-test: `(module (func (export "run") (loop (br 0))))`.
const ENDLESS_LOOP: &[u8] = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x07\x07\x01\x03run\0\0\
      \x0a\x09\x01\x07\0\x03\x40\x0c\0\x0b\x0b";
const SELF_TEST_DEADLINE_MS: u64 = 10;
/// The machine may keep the clock's thread waiting; a second late is no clock.
const SELF_TEST_MAX: Duration = Duration::from_secs(1);
const SELF_TESTS: usize = 3;
/// Ends the loop within some seconds where the clock does not.
const SELF_TEST_FUEL: u64 = 5_000_000_000;

/// The engine with the clock of its deadlines.
pub(super) struct Runtime {
    engine: Engine,
    clock: Arc<Clock>,
    thread: Option<JoinHandle<()>>,
}

/// Shared by the callers of plugins and the thread that ticks.
pub(super) struct Clock {
    /// Set by every call, taken back by the thread.
    asked: AtomicBool,
    ticking: AtomicBool,
    stopped: AtomicBool,
    thread: std::sync::OnceLock<Thread>,
}

impl Clock {
    /// To be said before a call: the thread ticks until the longest call is over.
    #[inline]
    pub(super) fn wake(&self) {
        // Both are sequentially consistent: either the thread sees the call before it sleeps, or the call sees it asleep.
        self.asked.store(true, Ordering::SeqCst);
        if !self.ticking.load(Ordering::SeqCst) {
            self.resume();
        }
    }

    #[cold]
    fn resume(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn run(&self, engine: &Engine) {
        let mut idle_ticks = 0;
        while !self.stopped.load(Ordering::SeqCst) {
            if self.asked.swap(false, Ordering::SeqCst) {
                idle_ticks = 0;
            }
            if idle_ticks >= IDLE_TICKS {
                self.ticking.store(false, Ordering::SeqCst);
                while !self.asked.load(Ordering::SeqCst) && !self.stopped.load(Ordering::SeqCst) {
                    std::thread::park();
                }
                self.ticking.store(true, Ordering::SeqCst);
                continue;
            }
            std::thread::sleep(TICK);
            engine.increment_epoch();
            idle_ticks += 1;
        }
    }
}

impl Runtime {
    pub(super) fn start() -> wasmtime::Result<Runtime> {
        // The pool reserves address space ahead, which an operator may have limited; without it instances are made one by
        // one, which takes longer and works as well.
        let engine = Engine::new(&configuration(true)).or_else(|_| Engine::new(&configuration(false)))?;
        let clock = Arc::new(Clock {
            asked: AtomicBool::new(false),
            ticking: AtomicBool::new(true),
            stopped: AtomicBool::new(false),
            thread: std::sync::OnceLock::new(),
        });
        let thread = std::thread::Builder::new().name("plugin-clock".into()).spawn({
            let (clock, engine) = (Arc::clone(&clock), engine.clone());
            move || clock.run(&engine)
        })?;
        clock.thread.get_or_init(|| thread.thread().clone());
        Ok(Runtime { engine, clock, thread: Some(thread) })
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn clock(&self) -> Arc<Clock> {
        Arc::clone(&self.clock)
    }

    /// Lets an endless loop run into its deadline, again if a busy machine was late. The error says what happened instead.
    pub(super) fn self_test(&self) -> Result<Duration, String> {
        let mut tested = self.test();
        for _ in 1..SELF_TESTS {
            tested = tested.or_else(|_| self.test());
        }
        tested
    }

    fn test(&self) -> Result<Duration, String> {
        let module = Module::new(&self.engine, ENDLESS_LOOP).map_err(|error| format!("{error:#}"))?;
        let mut store = Store::new(&self.engine, StoreLimits::default());
        let run = store
            .set_fuel(SELF_TEST_FUEL)
            .and_then(|()| {
                store.set_epoch_deadline(SELF_TEST_DEADLINE_MS);
                Linker::new(&self.engine).instantiate(&mut store, &module)
            })
            .and_then(|instance| instance.get_typed_func::<(), ()>(&mut store, "run"))
            .map_err(|error| format!("{error:#}"))?;
        self.clock.wake();
        let started = now();
        let outcome = run.call(&mut store, ());
        let took = started.elapsed();
        match outcome.map_err(|error| error.downcast_ref::<Trap>().copied()) {
            Err(Some(Trap::Interrupt)) if took <= SELF_TEST_MAX => Ok(took),
            Err(Some(Trap::Interrupt | Trap::OutOfFuel)) => {
                Err(format!("a call of {SELF_TEST_DEADLINE_MS} ms was stopped after {} ms only", took.as_millis()))
            }
            other => Err(format!("an endless loop ended with {other:?}")),
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.clock.stopped.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It can only have panicked, which the panic hook has told already.
            drop(thread.join());
        }
    }
}

/// An engine for the process that compiles: it makes no instance, and its address space is limited.
pub(super) fn compiler() -> wasmtime::Result<Engine> {
    Engine::new(&configuration(false))
}

/// What compiled code must agree with the engine about, wasmtime's version and this processor included.
pub(super) fn fingerprint(engine: &Engine) -> [u8; 32] {
    struct Sink(Sha256);
    impl std::hash::Hasher for Sink {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let mut sink = Sink(Sha256::new());
    std::hash::Hash::hash(&engine.precompile_compatibility_hash(), &mut sink);
    sink.0.finalize().into()
}

fn configuration(pooled: bool) -> Config {
    let mut config = Config::new();
    config.wasm_component_model(true).consume_fuel(true).epoch_interruption(true).max_wasm_stack(STACK_BYTES);
    // What a plugin answers may depend on nothing but its input: NaNs have one form, and what differs between processors
    // is off.
    config.cranelift_nan_canonicalization(true).wasm_relaxed_simd(false);
    config.wasm_memory64(false);
    if pooled {
        let mut pool = PoolingAllocationConfig::new();
        pool.total_component_instances(INSTANCES_MAX)
            .total_core_instances(8 * INSTANCES_MAX)
            .total_memories(INSTANCES_MAX)
            .total_tables(2 * INSTANCES_MAX)
            .max_core_instances_per_component(CORE_INSTANCES_MAX)
            .max_memories_per_component(MEMORIES_MAX)
            .max_tables_per_component(TABLES_MAX)
            .max_tables_per_module(TABLES_MAX)
            .max_memories_per_module(MEMORIES_MAX)
            .max_component_instance_size(INSTANCE_BYTES_MAX)
            .max_core_instance_size(INSTANCE_BYTES_MAX)
            .max_memory_size(usize::try_from(MEMORY_BYTES_MAX).expect("an address has 64 bits"))
            .table_elements(TABLE_ELEMENTS_MAX);
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    }
    config
}

#[expect(clippy::disallowed_methods, reason = "the clock seam of plugins: how long a call took, and nothing else")]
#[inline]
pub(super) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_loop_is_stopped_by_the_clock() {
        let runtime = Runtime::start().unwrap();
        let took = runtime.self_test().unwrap();
        assert!(took >= Duration::from_millis(SELF_TEST_DEADLINE_MS - 1), "{took:?}");
    }

    #[test]
    fn there_is_address_space_for_the_pool() {
        assert!(Engine::new(&configuration(true)).is_ok());
    }

    #[test]
    fn the_compiler_and_the_engine_that_runs_agree() {
        let runtime = Runtime::start().unwrap();
        assert_eq!(fingerprint(runtime.engine()), fingerprint(&compiler().unwrap()));
    }
}
