//! `outbound-http` and `files`, which backup targets import: linked, so that a plugin of several kinds loads, and denied,
//! since this release asks no backup target anything.

use wasmtime::component::Resource;

use super::bytes_of;
use crate::plugin::bindings::kuorum::policy::{files, outbound_http};
use crate::plugin::instance::State;

/// Never made.
#[expect(unreachable_pub, reason = "the generated code exports it again, from a module that nobody else sees")]
pub struct Writer;

impl outbound_http::Host for State {
    fn send(
        &mut self,
        request: outbound_http::Request,
    ) -> wasmtime::Result<Result<outbound_http::Response, outbound_http::HttpError>> {
        let texts = request.grant.len() + request.method.len() + request.path.len();
        self.count_host_call(texts + bytes_of(&request.headers) + request.body.len())?;
        Ok(Err(outbound_http::HttpError::Denied))
    }
}

type FsResult<T> = wasmtime::Result<Result<T, files::FsError>>;

fn denied<T>(state: &mut State, handed_bytes: usize) -> FsResult<T> {
    state.count_host_call(handed_bytes)?;
    Ok(Err(files::FsError::Denied))
}

impl files::Host for State {
    fn create(&mut self, grant: String, path: String) -> FsResult<Resource<Writer>> {
        denied(self, grant.len() + path.len())
    }

    fn read(&mut self, grant: String, path: String, _offset: u64, _max: u32) -> FsResult<Vec<u8>> {
        denied(self, grant.len() + path.len())
    }

    fn list_entries(&mut self, grant: String, under: String) -> FsResult<Vec<files::Entry>> {
        denied(self, grant.len() + under.len())
    }

    fn remove(&mut self, grant: String, path: String) -> FsResult<()> {
        denied(self, grant.len() + path.len())
    }
}

impl files::HostWriter for State {
    fn append(&mut self, _writer: Resource<Writer>, chunk: Vec<u8>) -> FsResult<()> {
        denied(self, chunk.len())
    }

    fn commit(&mut self, _writer: Resource<Writer>) -> FsResult<()> {
        denied(self, 0)
    }

    fn drop(&mut self, _writer: Resource<Writer>) -> wasmtime::Result<()> {
        Ok(())
    }
}
