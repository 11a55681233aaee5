//! Bodies whose contents are searched while they are streamed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;

use super::head::replace_in_fields;
use crate::secrets::{Replacements, StreamReplacer};

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(super) type ProxyBody = UnsyncBoxBody<Bytes, BoxError>;

/// A body with a fixed text.
pub(super) fn text_body(text: String) -> ProxyBody {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

/// A body that is passed on as it is.
pub(super) fn unchanged_body(body: Incoming) -> ProxyBody {
    body.map_err(BoxError::from).boxed_unsync()
}

/// The action for texts that are found.
enum Action {
    Replace,
    /// The body fails, before the end of the text is passed on.
    Fail(Arc<OnceLock<usize>>),
}

/// A body that is searched. Its length does not change.
pub(super) struct SearchedBody {
    inner: Incoming,
    texts: Arc<Replacements>,
    replacer: StreamReplacer,
    action: Action,
    trailers: Option<HeaderMap>,
    has_ended: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("the body contains the placeholder of a secret")]
struct FoundInBody;

impl SearchedBody {
    pub(super) fn replacing(inner: Incoming, texts: &Arc<Replacements>) -> ProxyBody {
        Self::boxed(inner, texts, Action::Replace)
    }

    /// Fails if one of the texts occurs, and sets `found` to the index of its secret.
    pub(super) fn failing(inner: Incoming, texts: &Arc<Replacements>, found: Arc<OnceLock<usize>>) -> ProxyBody {
        Self::boxed(inner, texts, Action::Fail(found))
    }

    fn boxed(inner: Incoming, texts: &Arc<Replacements>, action: Action) -> ProxyBody {
        let (texts, replacer) = (Arc::clone(texts), StreamReplacer::new(Arc::clone(texts)));
        Self { inner, texts, replacer, action, trailers: None, has_ended: false }.boxed_unsync()
    }

    fn check(&self, secret: Option<usize>) -> Result<(), BoxError> {
        match (&self.action, secret) {
            (Action::Fail(found), Some(secret)) => {
                let _ = found.set(secret);
                Err(FoundInBody.into())
            }
            _ => Ok(()),
        }
    }
}

impl Body for SearchedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        while !self.has_ended {
            let Some(frame) = ready!(Pin::new(&mut self.inner).poll_frame(cx)) else {
                self.has_ended = true;
                break;
            };
            match frame?.into_data() {
                Ok(data) => {
                    let ready = self.replacer.push(&data);
                    self.check(self.replacer.found())?;
                    if !ready.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(ready))));
                    }
                }
                Err(frame) => {
                    if let Ok(mut trailers) = frame.into_trailers() {
                        let found = replace_in_fields(&self.texts, &mut trailers);
                        self.check(found)?;
                        self.trailers = Some(trailers);
                    }
                    self.has_ended = true;
                }
            }
        }
        if self.replacer.has_buffered() {
            return Poll::Ready(Some(Ok(Frame::data(self.replacer.finish()))));
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        !self.replacer.has_buffered() && self.trailers.is_none() && (self.has_ended || self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        if self.replacer.has_buffered() { SizeHint::default() } else { self.inner.size_hint() }
    }
}
