//! From the functions that a component exports to the traits that a plugin implements.

use std::{cell::RefCell, marker::PhantomData, thread::LocalKey};

use crate::{
    Failure, FieldError, Plugin,
    bindings::lifecycle::exports::kuorum::policy::lifecycle::Guest,
    plugin::{make, parse},
};

/// Where an instance keeps its plugin once it is configured.
#[doc(hidden)]
pub type Slot<T> = LocalKey<RefCell<Option<T>>>;

/// A plugin with a place to keep it. Only [`crate::export!`] implements this, once per component.
#[doc(hidden)]
pub trait Exported: Plugin {
    fn slot() -> &'static Slot<Self>;
}

/// Carries the generated traits for `T`, which its author never meets.
#[doc(hidden)]
pub struct Adapter<T>(PhantomData<T>);

impl<T: Exported> Adapter<T> {
    /// Asks the plugin. The host configures an instance before it asks anything, and never calls into a running call.
    pub(crate) fn ask<R>(question: impl FnOnce(&mut T) -> Result<R, Failure>) -> Result<R, Failure> {
        T::slot().with_borrow_mut(|plugin| match plugin {
            Some(plugin) => question(plugin),
            None => Err(Failure::Internal("asked before it was configured".into())),
        })
    }
}

impl<T: Exported> Guest for Adapter<T> {
    fn validate_config(json: String) -> Result<(), Vec<FieldError>> {
        tell_panics();
        parse::<T>(&json).map(|_| ())
    }

    fn configure(json: String) -> Result<(), Failure> {
        tell_panics();
        let plugin = make::<T>(&json)?;
        T::slot().set(Some(plugin));
        Ok(())
    }
}

/// Has the message of a panic written to the member's log, since all that the host sees of it is a trap.
#[cfg(target_arch = "wasm32")]
fn tell_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|panic| crate::host::log::error(&panic.to_string(), &[]))));
}

/// A test sees panics by itself.
#[cfg(not(target_arch = "wasm32"))]
fn tell_panics() {}

/// Makes a component of a crate: names the type that is the plugin, and the kinds that it is asked as.
///
/// ```
/// # use kuorum_plugin_sdk::{Failure, NoConfig, Plugin, admission, compaction};
/// # struct Guard;
/// # impl Plugin for Guard {
/// #     type Config = NoConfig;
/// #     fn new(_: NoConfig) -> Result<Self, Failure> {
/// #         Ok(Self)
/// #     }
/// # }
/// # impl admission::Admission for Guard {
/// #     fn check(&mut self, _: &admission::Request) -> Result<admission::Verdict, Failure> {
/// #         Ok(admission::Verdict::Allow)
/// #     }
/// # }
/// # impl compaction::Compaction for Guard {
/// #     fn plan_compaction(&mut self, _: &compaction::Input) -> Result<compaction::Plan, Failure> {
/// #         Ok(compaction::Plan::wait(1000, "never"))
/// #     }
/// # }
/// kuorum_plugin_sdk::export!(Guard: admission, compaction);
/// ```
///
/// The kinds are `admission`, `compaction`, `quota`, `backup_schedule` and `backup_target`. Once in a crate, which is of the
/// types `cdylib` (the component) and `rlib` (for tests in `tests/`). Off wasm32 it
/// checks that the type has the traits and exports nothing.
#[macro_export]
macro_rules! export {
    ($plugin:ident: $($kind:ident),+ $(,)?) => {
        const _: () = {
            ::std::thread_local! {
                static PLUGIN: ::std::cell::RefCell<::std::option::Option<$plugin>> =
                    const { ::std::cell::RefCell::new(::std::option::Option::None) };
            }

            impl $crate::Exported for $plugin {
                fn slot() -> &'static $crate::Slot<Self> {
                    &PLUGIN
                }
            }

            type KuorumPlugin = $crate::Adapter<$plugin>;
            $crate::export_interface!(KuorumPlugin, lifecycle);
            $($crate::export_interface!(KuorumPlugin, $kind);)+
        };
    };
}

/// Exports one interface on wasm32; elsewhere only checks that the trait is there.
#[doc(hidden)]
#[macro_export]
macro_rules! export_interface {
    ($adapter:ident, $interface:ident) => {
        #[cfg(target_arch = "wasm32")]
        $crate::bindings::$interface::export!($adapter with_types_in $crate::bindings::$interface);

        #[cfg(not(target_arch = "wasm32"))]
        const _: () = {
            fn is_plugin<T: $crate::bindings::$interface::exports::kuorum::policy::$interface::Guest>() {}
            let _ = is_plugin::<$adapter>;
        };
    };
}
