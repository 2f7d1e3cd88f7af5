//! The interface of policies as Rust types, made from `plugin-sdk/wit`. What the host passes in borrows, so that a call
//! copies keys and values once, into the plugin's memory.

#![allow(
    clippy::all,
    unreachable_pub,
    missing_debug_implementations,
    reason = "generated code follows the rules of its generator"
)]

wasmtime::component::bindgen!({
    path: "../plugin-sdk/wit",
    world: "any-plugin",
    ownership: Borrowing { duplicate_if_necessary: true },
    imports: { default: trappable },
    with: { "kuorum:policy/files.writer": super::host_calls::denied::Writer },
});
