//! The servers that a plugin reaches.

use std::cell::RefCell;

use crate::host::outbound_http::{HttpError, Request, Response};

type Server = Box<dyn FnMut(&Request) -> Result<Response, HttpError>>;

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

/// Answers every request from now on. Until then all are denied.
pub fn answer(server: impl FnMut(&Request) -> Result<Response, HttpError> + 'static) {
    SERVER.set(Some(Box::new(server)));
}

pub(super) fn reset() {
    SERVER.set(None);
}

pub(crate) fn send(request: Request) -> Result<Response, HttpError> {
    SERVER.with_borrow_mut(|server| match server {
        Some(server) => server(&request),
        None => Err(HttpError::Denied),
    })
}
