//! A reader with a buffer that is allocated when it is needed and grows while the peer sends much.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncBufRead, AsyncRead, ReadBuf};

/// Initial size of the buffer for each direction of a connection.
const MIN_BYTES: usize = 16 * 1024;
/// Maximum size of the buffer. A transfer with larger reads needs fewer system calls per byte.
const MAX_BYTES: usize = 128 * 1024;

/// A buffered reader.
#[derive(Debug)]
pub(crate) struct ReadBuffer<R> {
    inner: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<R> ReadBuffer<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, buffer: Vec::new(), start: 0, end: 0 }
    }

    /// Returns the reader without what was read ahead.
    pub(crate) fn into_inner(self) -> R {
        self.inner
    }
}

impl<R: AsyncRead + Unpin> AsyncBufRead for ReadBuffer<R> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        if this.start == this.end {
            // The last read filled the whole buffer.
            if this.end == this.buffer.len() && this.end < MAX_BYTES {
                this.buffer = vec![0; (2 * this.end).clamp(MIN_BYTES, MAX_BYTES)];
            }
            (this.start, this.end) = (0, 0);
            let mut buffer = ReadBuf::new(&mut this.buffer);
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut buffer))?;
            this.end = buffer.filled().len();
        }
        Poll::Ready(Ok(&this.buffer[this.start..this.end]))
    }

    fn consume(self: Pin<&mut Self>, count: usize) {
        let this = self.get_mut();
        this.start = (this.start + count).min(this.end);
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for ReadBuffer<R> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let ready = ready!(self.as_mut().poll_fill_buf(context))?;
        let count = ready.len().min(to.remaining());
        to.put_slice(&ready[..count]);
        self.consume(count);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncReadExt};

    use super::*;

    #[tokio::test]
    async fn buffer_grows_with_full_reads_up_to_its_limit() {
        let input: Vec<u8> = (0..4 * MAX_BYTES).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let mut reader = ReadBuffer::new(input.as_slice());
        assert_eq!(reader.buffer.capacity(), 0);
        let (mut sizes, mut output) = (Vec::new(), Vec::new());
        loop {
            let ready = reader.fill_buf().await.unwrap();
            if ready.is_empty() {
                break;
            }
            sizes.push(ready.len());
            output.extend_from_slice(ready);
            let count = ready.len();
            reader.consume(count);
        }
        assert_eq!(sizes[..5], [MIN_BYTES, 2 * MIN_BYTES, 4 * MIN_BYTES, MAX_BYTES, MAX_BYTES]);
        assert!(output == input && reader.buffer.len() == MAX_BYTES);
    }

    #[tokio::test]
    async fn small_reads_keep_the_buffer_small_and_lose_nothing() {
        let mut reader = ReadBuffer::new(&b"hello world"[..]);
        let mut part = [0; 5];
        reader.read_exact(&mut part).await.unwrap();
        assert_eq!((&part, reader.fill_buf().await.unwrap()), (b"hello", &b" world"[..]));
        let mut rest = String::new();
        reader.read_to_string(&mut rest).await.unwrap();
        assert_eq!((rest.as_str(), reader.buffer.len()), (" world", MIN_BYTES));
    }
}
