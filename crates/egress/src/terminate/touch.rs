//! A stream that restarts the idle timeout whenever bytes move.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::relay::IdleTimer;

pub(super) struct Touch<T> {
    inner: T,
    idle: Arc<IdleTimer>,
}

impl<T> Touch<T> {
    pub(super) fn new(inner: T, idle: Arc<IdleTimer>) -> Self {
        Self { inner, idle }
    }

    fn note<R>(&self, result: Poll<R>) -> Poll<R> {
        if result.is_ready() {
            self.idle.touch();
        }
        result
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Touch<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_read(cx, buf);
        self.note(result)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Touch<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.note(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
