//! Commands beside the server: for authors of plugins, which run here alone, and those that speak to a running cluster, over
//! the same port and protocol as any client.
//!
//! Each writes what it found to standard output, as a table for people or as JSON for programs, and what goes on
//! meanwhile or went wrong to standard error. It ends with 0 when what was asked for is so, with 1 when not, and with 2
//! when it was not understood.

pub mod plugin;
