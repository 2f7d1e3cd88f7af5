//! `outbound-http` and `files`, which backup targets import: linked, so that a plugin of several kinds loads, and denied,
//! since this release asks no backup target anything.

use wasmtime::component::Resource;

use crate::plugin::bindings::kuorum::policy::{files, outbound_http};
use crate::plugin::instance::State;

/// Never made.
#[expect(unreachable_pub, reason = "the generated code exports it again, from a module that nobody else sees")]
pub struct Writer;

impl outbound_http::Host for State {
    fn send(
        &mut self,
        _req: outbound_http::Request,
    ) -> wasmtime::Result<Result<outbound_http::Response, outbound_http::HttpError>> {
        self.count_host_call()?;
        Ok(Err(outbound_http::HttpError::Denied))
    }
}

type FsResult<T> = wasmtime::Result<Result<T, files::FsError>>;

fn denied<T>(state: &mut State) -> FsResult<T> {
    state.count_host_call()?;
    Ok(Err(files::FsError::Denied))
}

impl files::Host for State {
    fn create(&mut self, _grant: String, _path: String) -> FsResult<Resource<Writer>> {
        denied(self)
    }

    fn read(&mut self, _grant: String, _path: String, _offset: u64, _max: u32) -> FsResult<Vec<u8>> {
        denied(self)
    }

    fn list_entries(&mut self, _grant: String, _under: String) -> FsResult<Vec<files::Entry>> {
        denied(self)
    }

    fn remove(&mut self, _grant: String, _path: String) -> FsResult<()> {
        denied(self)
    }
}

impl files::HostWriter for State {
    fn append(&mut self, _writer: Resource<Writer>, _chunk: Vec<u8>) -> FsResult<()> {
        denied(self)
    }

    fn commit(&mut self, _writer: Resource<Writer>) -> FsResult<()> {
        denied(self)
    }

    fn drop(&mut self, _writer: Resource<Writer>) -> wasmtime::Result<()> {
        Ok(())
    }
}
