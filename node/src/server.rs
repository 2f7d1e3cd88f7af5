//! Wires the modules together and stops them in reverse order.

/// Serves until a signal arrives.
pub fn run(_config: crate::config::Config) -> anyhow::Result<()> {
    anyhow::bail!("the server is not wired yet")
}
